"""Train a net on several ranks: torchrun --nproc-per-node 2 ddp_net.py resnet|gpt|many|few [--device cuda]
[--steps N]

`many` has hundreds of small parameters, `few` has four large ones. Gradients are exchanged by
DistributedDataParallel as it is by default.
"""

from __future__ import annotations

import argparse
import os

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        norms = [nn.BatchNorm2d(width) for _ in range(2)]
        convolutions = [nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2)]
        self.layers = nn.Sequential(convolutions[0], norms[0], nn.ReLU(), convolutions[1], norms[1])

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return torch.relu(pixels + self.layers(pixels))


def resnet(large: bool) -> tuple[nn.Module, torch.Tensor]:
    width, blocks, size = (256, 12, 32) if large else (8, 2, 8)
    layers = [nn.Conv2d(3, width, 3, padding=1), *(Residual(width) for _ in range(blocks))]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
    return net, torch.randn(64 if large else 4, 3, size, size)


def gpt(large: bool) -> tuple[nn.Module, torch.Tensor]:
    width, layers, length = (768, 12, 256) if large else (32, 2, 16)
    block = nn.TransformerEncoderLayer(
        width, width // 16, 4 * width, dropout=0.0, batch_first=True, norm_first=True
    )
    blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
    return nn.Sequential(blocks, nn.Linear(width, 10)), torch.randn(8 if large else 2, length, width)


def many(large: bool) -> tuple[nn.Module, torch.Tensor]:
    width, layers = (128, 200) if large else (8, 20)
    parts = [
        part for _ in range(layers) for part in (nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU())
    ]
    return nn.Sequential(*parts, nn.Linear(width, 10)), torch.randn(256 if large else 8, width)


def few(large: bool) -> tuple[nn.Module, torch.Tensor]:
    width = 8192 if large else 64
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)), torch.randn(64, width)


NETS = {"resnet": resnet, "gpt": gpt, "many": many, "few": few}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("net", choices=list(NETS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, default=2000)
    asked = parser.parse_args()
    cuda = asked.device == "cuda"
    torch.distributed.init_process_group("nccl" if cuda else "gloo")
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    net, inputs = NETS[asked.net](cuda)
    inputs = inputs.to(device)
    model = DistributedDataParallel(net.to(device), device_ids=[rank] if cuda else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(asked.steps):
        with torch.autocast(asked.device, torch.bfloat16, enabled=cuda):
            loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
