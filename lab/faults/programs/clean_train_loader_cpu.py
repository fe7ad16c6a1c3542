"""Trains a small network on batches from a DataLoader."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 256
WIDTH = 512


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class Samples(Dataset):
    """A million draws from a thousand stored samples."""

    def __init__(self, shape):
        generator = torch.Generator().manual_seed(1)
        self.stored = torch.randn(1000, *shape, generator=generator)
        self.labels = torch.randint(100, (1000,), generator=generator)

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return self.stored[index % 1000], self.labels[index % 1000]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0, help="there is none to give")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)
    batches = DataLoader(
        Samples((WIDTH,)), batch_size=BATCH, num_workers=1, persistent_workers=True, prefetch_factor=4
    )
    layers = [layer for _ in range(5) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 100)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    for step, (x, labels) in zip(range(args.steps), batches, strict=False):
        if step == args.steps // 3:
            start = now(device)
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"RATE {(args.steps - args.steps // 3) / (now(device) - start):.3f}")


if __name__ == "__main__":
    main()
