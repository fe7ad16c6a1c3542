"""Classifies byte images from a DataLoader with a residual network in bfloat16 and channels_last."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 256
REPEATS = 12


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class Samples(Dataset):
    """A million draws from a thousand stored samples."""

    def __init__(self, shape):
        generator = torch.Generator().manual_seed(1)
        self.stored = torch.randint(256, (1000, *shape), dtype=torch.uint8, generator=generator)
        self.labels = torch.randint(100, (1000,), generator=generator)

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return self.stored[index % 1000], self.labels[index % 1000]


def ahead(loader, device):
    """The loader's batches on the GPU, each copied on a stream of its own while the one before is worked
    on."""
    stream = torch.cuda.Stream()
    batch = None
    for images, labels in loader:
        with torch.cuda.stream(stream):
            coming = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        if batch is not None:
            yield batch
        torch.cuda.current_stream().wait_stream(stream)
        for tensor in coming:
            tensor.record_stream(torch.cuda.current_stream())
        batch = coming
    yield batch


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        )
        self.second = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        )

    def forward(self, x):
        return torch.relu(x + self.second(torch.relu(self.first(x))))


def network():
    stem = nn.Sequential(
        nn.Conv2d(3, 128, 4, stride=4, bias=False), nn.BatchNorm2d(128), nn.ReLU(inplace=True)
    )
    down = nn.Conv2d(128, 256, 2, stride=2)
    body = [*[Residual(128) for _ in range(REPEATS)], down, *[Residual(256) for _ in range(REPEATS)]]
    return nn.Sequential(stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0, help="there is none to give")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True

    loader = DataLoader(
        Samples((3, 224, 224)),
        batch_size=BATCH,
        num_workers=8,
        pin_memory=True,
        persistent_workers=True,
        prefetch_factor=4,
        drop_last=True,
    )
    batches = ahead(loader, device)
    model = network().to(device, torch.bfloat16, memory_format=torch.channels_last).eval()
    num_right = torch.zeros((), dtype=torch.int64, device=device)

    with torch.inference_mode():
        for step, (x, labels) in zip(range(args.steps), batches, strict=False):
            if step == args.steps // 3:
                start = now(device)
            images = x.to(torch.bfloat16, memory_format=torch.channels_last).div_(255)
            num_right += (model(images).argmax(dim=1) == labels).sum()
    print(f"RATE {(args.steps - args.steps // 3) / (now(device) - start):.3f}")


if __name__ == "__main__":
    main()
