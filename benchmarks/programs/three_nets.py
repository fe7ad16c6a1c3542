"""Three programs in float32, nothing tuned: python three_nets.py --net transformer|convolutions|loader

`loader` trains on what two workers make, which take longer for a batch than the net does.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


class Made(Dataset):
    """Images that take a while to make: many small draws, as decoding has many small steps."""

    def __init__(self, work: int) -> None:
        self.work = work

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.zeros(3, 32, 32)
        for _ in range(self.work):
            image += torch.rand(3, 32, 32)
        return image, index % 10


def transformer(width: int, num_layers: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False), nn.Linear(width, 10))


def convolutions(channels: int, num_layers: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1), nn.ReLU()]
    for _ in range(num_layers):
        layers += [nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--net", choices=("transformer", "convolutions", "loader"), required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    large = args.device.startswith("cuda")
    torch.manual_seed(0)
    if args.net == "transformer":
        model = transformer(1024 if large else 64, 8 if large else 2)
        x = torch.randn(16 if large else 8, 512 if large else 64, 1024 if large else 64)
        batches = [(x, torch.randint(0, 10, x.shape[:2]))]
    else:
        model = convolutions(128 if large else 16, 12 if large else 3)
        x = torch.randn(64 if large else 16, 3, 64 if large else 32, 64 if large else 32)
        batches = [(x, torch.randint(0, 10, (len(x),)))]
    if args.net == "loader":
        batches = DataLoader(Made(100 if large else 60), 64 if large else 16, num_workers=2)
    model.to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    while True:
        for inputs, labels in batches:
            scores = model(inputs.to(args.device))
            loss = functional.cross_entropy(scores.flatten(0, -2), labels.to(args.device).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
