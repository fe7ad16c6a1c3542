"""Classifies batches from a DataLoader with a small convolutional network."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 16
CHANNELS = 48


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


def stage(channels_in, channels_out):
    return nn.Sequential(nn.Conv2d(channels_in, channels_out, 3, padding=1), nn.ReLU(inplace=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0, help="there is none to give")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)
    batches = DataLoader(Samples((8, 32, 32)), batch_size=BATCH, num_workers=1, persistent_workers=True)
    body = [stage(8, CHANNELS), *[stage(CHANNELS, CHANNELS) for _ in range(3)]]
    model = (
        nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 100))
        .to(device)
        .eval()
    )
    num_right = torch.zeros((), dtype=torch.int64)

    with torch.inference_mode():
        for step, (x, labels) in zip(range(args.steps), batches, strict=False):
            if step == args.steps // 3:
                start = now(device)
            num_right += (model(x).argmax(dim=1) == labels).sum()
    print(f"RATE {(args.steps - args.steps // 3) / (now(device) - start):.3f}")


if __name__ == "__main__":
    main()
