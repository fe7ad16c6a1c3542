"""Draw pictures, decoded by Pillow and resized, through a SampleCache or as they are; ends with a line of
JSON.

python cached_pictures.py [--size 375x500] [--quality 95] [--workers 2] [--epochs 3] [--folder FOLDER]

It tells the samples/s of each epoch; workers stay, and have started before the first one is timed.
"""

import argparse
import json
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from train_pictures import files

from dynotune.runtime.data import SampleCache

SHORT_SIDE = 256


class Resized(Dataset):
    """Pictures with a short side of 256, as uint8 [height, width, 3]; the part that is not random."""

    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        from PIL import Image

        image = Image.open(self.paths[index]).convert("RGB")
        scale = SHORT_SIDE / min(image.size)
        size = round(image.width * scale), round(image.height * scale)
        return np.array(image.resize(size, Image.Resampling.BILINEAR)), index % 1000


class Augmented(Dataset):
    """A random crop of each, as the network takes it."""

    def __init__(self, pictures):
        self.pictures = pictures

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        picture, label = self.pictures[index]
        top, left = (int(torch.randint(side - 223, ())) for side in picture.shape[:2])
        crop = torch.from_numpy(picture[top : top + 224, left : left + 224])
        return (crop.permute(2, 0, 1).float().div(255) - 0.45) / 0.22, label


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="375x500")
    parser.add_argument("--quality", type=int, default=95)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--folder")
    given = parser.parse_args()
    pictures = Resized(files(given.size, given.quality) * 4)
    if given.folder:
        pictures = SampleCache(pictures, given.folder, max_bytes=1 << 30, key=f"short side {SHORT_SIDE}")
    # An epoch's batches are drawn by workers that wait for it: the first batch of each is not timed.
    loader = DataLoader(
        Augmented(pictures), 32, shuffle=True, num_workers=given.workers, persistent_workers=True
    )
    epochs = []
    for _ in range(given.epochs):
        batches = iter(loader)
        num, begin = 0, None
        for images, _ in batches:
            if begin is None:
                begin = time.perf_counter()
            else:
                num += len(images)
        epochs.append(num / (time.perf_counter() - begin))
    print(json.dumps({"samples_per_s": epochs}))


if __name__ == "__main__":
    main()
