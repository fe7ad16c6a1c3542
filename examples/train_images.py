"""Train a small residual network on a folder of JPEG files, one subfolder a class.

    python train_images.py photographs/ --epochs 5

Pillow decodes and augments, torch trains. Nothing here is tuned.
"""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photographs(Dataset):
    """(image, label) pairs: float32 of 3 × size × size, and the number of the subfolder."""

    def __init__(self, root: Path, size: int) -> None:
        self.classes = sorted(folder.name for folder in root.iterdir() if folder.is_dir())
        self.files = sorted(root.glob("*/*.jpg"))
        self.size = size
        if not self.files:
            raise SystemExit(f"no .jpg files in the subfolders of {root}")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        file = self.files[index]
        with Image.open(file) as photograph:
            image = augment(photograph.convert("RGB"), self.size)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 127.5 - 1.0
        return pixels, self.classes.index(file.parent.name)


def augment(image: Image.Image, size: int) -> Image.Image:
    """A random crop of at least a third of the picture, resized, mirrored half of the time."""
    width, height = image.size
    scale = random.uniform(0.58, 1.0)
    crop_width, crop_height = int(width * scale), int(height * scale)
    left = random.randint(0, width - crop_width)
    top = random.randint(0, height - crop_height)
    box = (left, top, left + crop_width, top + crop_height)
    image = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image


class Block(nn.Module):
    """Two 3×3 convolutions and a way around them."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.around = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.around(x))


class SmallResNet(nn.Module):
    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(
            Block(width, width, stride=2),
            Block(width, 2 * width, stride=2),
            Block(2 * width, 4 * width, stride=2),
        )
        self.head = nn.Linear(4 * width, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))


def train(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = Photographs(args.data, args.size)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True)
    model = SmallResNet(len(dataset.classes), args.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    step = 0
    for epoch in range(args.epochs):
        for images, labels in loader:
            loss = criterion(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.log_every == 0:
                print(f"epoch {epoch}  step {step}  loss {loss.item():.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with one subfolder of .jpg files a class")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--size", type=int, default=96, help="side of the training images, pixels")
    parser.add_argument("--width", type=int, default=16, help="channels of the first layer")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--threads", type=int, default=1, help="CPU cores that the network itself may use")
    parser.add_argument("--log-every", type=int, default=10)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
