"""Train on a folder of JPEG files, decoded by Pillow in the loader's workers; nothing here is tuned.

python train_pictures.py [--size 600x800] [--quality 90] [--workers 8] [--seconds 6] [--device cuda]

Files are made once, in the folder that PICTURES names. It ends with a line of JSON: images/s after the first
seconds.
"""

import argparse
import io
import json
import os
import random
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

NUM_FILES, CROP = 256, 224


def photograph(height, width, seed):
    """Return a picture with structure at all scales and the noise of a sensor."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    picture = np.zeros((height, width, 3), dtype=np.float32)
    for scale in (4, 16, 64, 256):
        small = rng.normal(0, 1, (max(2, height // scale), max(2, width // scale), 3))
        for channel in range(3):
            plane = Image.fromarray(small[..., channel].astype(np.float32))
            picture[..., channel] += (
                np.asarray(plane.resize((width, height), Image.Resampling.BICUBIC)) * scale**0.45
            )
    picture = 128 + picture * 40 / picture.std() + rng.normal(0, 9, picture.shape)
    return np.clip(picture, 0, 255).astype(np.uint8)


def files(size, quality):
    """Return the paths of the files; they are made where they are missing."""
    from PIL import Image

    height, width = map(int, size.split("x"))
    folder = Path(os.environ.get("PICTURES", "/tmp/pictures")) / f"{size}-{quality}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{at:04}.jpg" for at in range(NUM_FILES)]
    base = None
    for at, path in enumerate(paths):
        if not path.is_file():
            if base is None or at % 32 == 0:
                base = photograph(height, width, at)
            out = io.BytesIO()
            Image.fromarray(np.roll(base, at * 7, axis=1)).save(out, "JPEG", quality=quality)
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_bytes(out.getvalue())
            partial.replace(path)
    return paths


class Pictures(Dataset):
    """A random part of each picture, at the size of the network, as torchvision's RandomResizedCrop."""

    def __init__(self, paths, repeat):
        self.paths = paths * repeat

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        from PIL import Image

        image = Image.open(self.paths[index]).convert("RGB")
        side = int(min(image.size) * random.uniform(0.5, 1.0))
        left, top = random.randint(0, image.width - side), random.randint(0, image.height - side)
        image = image.resize(
            (CROP, CROP), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side)
        )
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255)
        return (pixels - 0.45) / 0.22, index % 1000


def network(device):
    """Return a ResNet-50 on a GPU, and on a CPU something small."""
    if device == "cuda":
        from torchvision.models import resnet50

        return resnet50()
    layers = [
        torch.nn.Conv2d(3, 8, 7, stride=4),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
    ]
    return torch.nn.Sequential(*layers, torch.nn.Linear(8, 1000))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="600x800")
    parser.add_argument("--quality", type=int, default=90)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    torch.manual_seed(0)
    batch_size = 128 if given.device == "cuda" else 16
    paths = files(given.size, given.quality)
    samples = Pictures(paths, 400 if given.device == "cuda" else 20)
    loader = DataLoader(samples, batch_size, shuffle=True, num_workers=given.workers, drop_last=True)
    model = network(given.device).to(given.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    begin, end, num = None, None, 0
    started = time.monotonic()
    while end is None:
        for at, batch in enumerate(loader):
            images, labels = (each.to(given.device) for each in batch)
            with torch.autocast(given.device, torch.bfloat16, enabled=given.device == "cuda"):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.monotonic()
            if begin is None:
                # Batches made ahead of the first steps are used up.
                if at > 2 * given.workers + 4 or now - started > 20:
                    begin = now
                continue
            num += batch_size
            if now - begin > given.seconds:
                loss.item()
                end = time.monotonic()
                break
    bytes_each = sum(path.stat().st_size for path in paths) / len(paths)
    print(json.dumps({"images_per_s": num / (end - begin), "kilobytes": round(bytes_each / 1000)}))


if __name__ == "__main__":
    main()
