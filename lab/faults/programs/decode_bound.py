"""Trains on sequences of JPEG images that workers decode; the twin reads the same pixels from .npy files."""

import io
import tempfile
from pathlib import Path

import loop
import numpy as np
import series
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

WORKERS = {"cpu": 1, "cuda": 8}
FILES = 16
LEAST_SIDE = 32


def photograph(side: int) -> Image.Image:
    """A smooth image with some noise, which JPEG holds as it does a photograph."""
    y, x = np.mgrid[0:side, 0:side] / side
    smooth = np.stack([np.sin(9 * x + 5 * y), np.cos(7 * y), x * y], axis=-1) * 80 + 128
    noise = np.random.default_rng(0).normal(0, 8, smooth.shape)
    return Image.fromarray((smooth + noise).clip(0, 255).astype(np.uint8))


def decode_s(side: int) -> float:
    stream = io.BytesIO()
    photograph(side).save(stream, "jpeg", quality=90)
    return loop.seconds_of(
        lambda: np.asarray(Image.open(io.BytesIO(stream.getvalue())).convert("RGB")), "cpu", 0.2
    )


class Photographs(Dataset):
    """An item is an image, cut to the first `length` × CHANNELS values of its middle row."""

    def __init__(self, folder: Path, size: series.Size, decoded: bool) -> None:
        self.paths = sorted(folder.glob("*.npy" if decoded else "*.jpg"))
        self.size = size
        self.decoded = decoded

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path = self.paths[index % len(self.paths)]
        pixels = np.load(path, mmap_mode="r") if self.decoded else np.asarray(Image.open(path).convert("RGB"))
        values = np.resize(pixels[len(pixels) // 2], (self.size.length, series.CHANNELS))
        return torch.from_numpy(values.astype(np.float32) / 128 - 1), index % series.CLASSES


def main() -> None:
    args = loop.parser().parse_args()
    size = series.SIZES[args.device]
    work_s = series.step_s(size, args.device)
    workers = WORKERS[args.device]
    image_s = loop.period_s(args.dose or 30, work_s) * workers / size.batch
    side = max(LEAST_SIDE, round(256 * (image_s / decode_s(256)) ** 0.5))
    with tempfile.TemporaryDirectory() as folder:
        image = photograph(side)
        for number in range(FILES):
            image.save(Path(folder) / f"{number:03}.jpg", quality=90)
            np.save(Path(folder) / f"{number:03}.npy", np.asarray(image))
        loader = DataLoader(
            Photographs(Path(folder), size, decoded=not args.dose),
            size.batch,
            num_workers=workers,
            pin_memory=args.device == "cuda",
            persistent_workers=True,
        )
        net = series.Net(size).to(args.device)
        optimizer = series.sgd(net, args.device)
        for _, (windows, classes) in zip(loop.steps(args.steps, args.device), loader, strict=False):
            series.train_step(net, optimizer, windows, classes, args.device)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
