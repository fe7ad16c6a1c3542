"""Trains on compressed shards, each worker unpacking for itself every shard that it takes a batch from.

Batches go to the workers in turn, so that with more workers each shard is unpacked more often.
"""

import os
import zlib

import loop
import numpy as np
import series
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

# Workers a core. Each shard holds as many batches as the most workers that are started.
WORKERS_A_CORE = {"cpu": {0: 1, 30: 3, 60: 8}, "cuda": {0: 1, 30: 3, 60: 5}}
MOST = 8
# CPU seconds of unpacking a batch, in seconds of a training step and cores, with one worker a core.
UNPACKING = {"cpu": 0.55, "cuda": 0.47}


class ShardedSeries(Dataset):
    """Item `i` is a whole batch, from shard `i // batches_a_shard`."""

    def __init__(self, size: series.Size, batches_a_shard: int, unpacking_s: float) -> None:
        self.size = size
        self.batches_a_shard = batches_a_shard
        raw = np.random.default_rng(0).integers(0, 64, 1 << 20, dtype=np.uint8)
        self.block = zlib.compress(raw.tobytes(), 1)
        self.blocks = max(
            1, round(unpacking_s / loop.seconds_of(lambda: zlib.decompress(self.block), "cpu", 0.2))
        )
        self.unpacked = -1
        self.shard = np.empty(0, dtype=np.float32)

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        shard = index // self.batches_a_shard
        if shard != self.unpacked:
            blocks = [np.frombuffer(zlib.decompress(self.block), dtype=np.uint8) for _ in range(self.blocks)]
            self.shard = blocks[shard % len(blocks)].astype(np.float32) / 32 - 1
            self.unpacked = shard
        size = self.size
        num = size.batch * size.length * series.CHANNELS
        windows = self.shard[:num].reshape(size.batch, size.length, series.CHANNELS)
        return torch.from_numpy(windows), torch.arange(size.batch) % series.CLASSES


def main() -> None:
    args = loop.parser().parse_args()
    size = series.SIZES[args.device]
    work_s = series.step_s(size, args.device)
    cores = len(os.sched_getaffinity(0))
    counts = WORKERS_A_CORE[args.device]
    workers = cores * counts[min(counts, key=lambda dose: abs(dose - args.dose))]
    cpu_s = UNPACKING[args.device] * work_s * (cores if args.device == "cuda" else 1)
    dataset = ShardedSeries(size, MOST * cores, cpu_s * MOST)
    loader = DataLoader(
        dataset,
        batch_size=None,
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
