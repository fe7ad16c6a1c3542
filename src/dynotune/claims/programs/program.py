"""Train or run a small model for as long as somebody wants: `python program.py WORKLOAD [WAY]`.

Each workload is one that a claim says something of: it is bound by what the claim is about, or by something else.

    conv, conv-shapes     a convolution network, on images of one size or of ever other sizes
    dense, attention      training bound by products
    small                 inference of many small layers: bound by launching
    pointwise             elementwise work without end
    rows                  a product by rows in Python, or at once (WAY loop, vector)
    load, draw            a loader whose samples take the processor's time; draw copies nothing to the GPU
    dense-loaded, small-loaded   the same models behind a loader that costs nothing
    copy                  large batches that a GPU hardly computes with (WAY pinned-by-hand)
"""

from __future__ import annotations

import itertools
import sys
import zlib
from collections.abc import Iterator

import torch
from torch import nn

WORKLOAD, WAY = sys.argv[1], (sys.argv[2:] or ["plain"])[0]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH, BATCH = (4096, 1024) if DEVICE == "cuda" else (512, 64)


class Samples(torch.utils.data.Dataset):
    """Rows that take time to make, or none."""

    def __init__(self, width: int, effort: int) -> None:
        self.width, self.effort = width, effort

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        check = 0
        for part in range(self.effort):
            check = zlib.crc32(bytes(20_000), index + part + check)
        return torch.full((self.width,), float(check % 7))


class Rows(nn.Module):
    """A product, row by row or at once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if WAY == "loop":
            return torch.stack([(row * row).sum() for row in x])
        return (x * x).sum(dim=1)


class Pointwise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(12):
            x = torch.tanh(x * 1.01 + 0.1) * torch.sigmoid(x)
        return x


def dense(depth: int, width: int) -> nn.Module:
    return nn.Sequential(*itertools.chain(*((nn.Linear(width, width), nn.ReLU()) for _ in range(depth))))


def model() -> nn.Module:
    kind = WORKLOAD.removesuffix("-loaded").removesuffix("-shapes")
    if kind == "conv":
        return nn.Sequential(
            nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 5), nn.ReLU(), nn.Conv2d(64, 8, 3), nn.Flatten(2)
        )
    if kind == "attention":
        layer = nn.TransformerEncoderLayer(WIDTH // 4, 8, dropout=0.0, batch_first=True)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    if kind in ("load", "draw", "copy"):
        return nn.Linear(SAMPLE_WIDTH, 8)
    return {
        "dense": lambda: dense(3, WIDTH),
        "small": lambda: dense(40, 64),
        "rows": Rows,
        "pointwise": Pointwise,
    }[kind]()


SAMPLE_WIDTH = {"copy": 100_000, "dense-loaded": WIDTH}.get(WORKLOAD, 64)
SHAPES = {
    "conv": (16, 3, 48, 48),
    "attention": (16, 128, WIDTH // 4),
    "small": (4, 64),
    "pointwise": (BATCH, 4096),
    "rows": (256, 256),
}


def inputs() -> Iterator[torch.Tensor]:
    """Yield batches without end, on the device."""
    if WORKLOAD in ("load", "draw", "copy") or WORKLOAD.endswith("-loaded"):
        effort = 10 if WORKLOAD in ("load", "draw") else 0
        loader = torch.utils.data.DataLoader(Samples(SAMPLE_WIDTH, effort), batch_size=32)
        while True:
            for batch in loader:
                if WAY == "pinned-by-hand":
                    yield batch.pin_memory().to(DEVICE, non_blocking=True)
                else:
                    yield batch.to("cpu" if WORKLOAD == "draw" else DEVICE)
    if WORKLOAD == "conv-shapes":
        for number in itertools.count():
            yield torch.ones(16, 3, 40 + number * 7 % 97, 40 + number * 13 % 89, device=DEVICE)
    while True:
        yield torch.ones(SHAPES.get(WORKLOAD, (BATCH, WIDTH)), device=DEVICE)


def main() -> None:
    net = model().to("cpu" if WORKLOAD == "draw" else DEVICE)
    parameters = list(net.parameters())
    if not parameters or WORKLOAD.startswith("small"):
        with torch.inference_mode():
            for batch in inputs():
                net(batch)
    optimizer = torch.optim.SGD(parameters, lr=1e-6)
    for batch in inputs():
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
