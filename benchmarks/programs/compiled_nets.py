"""Programs that torch.compile compiles, nothing tuned: python compiled_nets.py --net mlp|resnet|transformer

`transformer` is torch's own encoder, which nobody wrote for this. `mlp` has few kernels.
"""

import argparse

import torch
from torch import nn

NETS = ("mlp", "resnet", "transformer")


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        same = stride == 1 and channels == out
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet(width: int, num_blocks: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    channels = width
    for stage in range(3):
        out = width << stage
        for number in range(num_blocks):
            layers.append(Block(channels, out, 2 if stage and not number else 1))
            channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def transformer(width: int, num_layers: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
    return nn.Sequential(
        nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False), nn.Linear(width, 10)
    )


def mlp(width: int, num_layers: int) -> nn.Module:
    layers = [layer for _ in range(num_layers) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def model_and_batch(net: str, device: str, batch_size: int | None = None) -> tuple[nn.Module, torch.Tensor]:
    """Return a net and a batch for it on the device: small ones on a CPU."""
    large = device.startswith("cuda")
    if net == "resnet":
        model = resnet(64 if large else 8, 3 if large else 1)
        side = 64 if large else 16
        x = torch.randn(batch_size or (32 if large else 4), 3, side, side)
    elif net == "mlp":
        model = mlp(1024 if large else 32, 4)
        x = torch.randn(batch_size or (256 if large else 8), 1024 if large else 32)
    else:
        model = transformer(512 if large else 32, 4 if large else 1)
        x = torch.randn(batch_size or (16 if large else 4), 256 if large else 16, 512 if large else 32)
    return model.to(device), x.to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--net", choices=NETS, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.manual_seed(0)
    model, x = model_and_batch(args.net, args.device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    compiled = torch.compile(model)
    while True:
        compiled(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
