"""Land-cover map of a satellite scene: all tiles of 12 bands pass through a segmentation net."""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

# the other cores of the node belong to the tiling service
torch.set_num_threads(1)


class Unit(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1 = nn.Conv2d(c, c, 3, padding=1)
        self.conv2 = nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return F.relu_(x + self.conv2(F.relu_(self.conv1(x))))


class LandCover(nn.Module):
    def __init__(self, bands, classes, c):
        super().__init__()
        self.stem = nn.Conv2d(bands, c, 3, stride=2, padding=1)
        self.units = nn.Sequential(*[Unit(c) for _ in range(4)])
        self.head = nn.Conv2d(c, classes, 1)

    def forward(self, x):
        x = self.head(self.units(F.relu_(self.stem(x))))
        return F.interpolate(x, scale_factor=2.0, mode="bilinear")


def load_scene(tiles, bands, side, pinned):
    """The scene as int16 [tiles, bands, side, side] in host memory."""
    part = torch.randint(0, 10000, (min(tiles, 64), bands, side, side), dtype=torch.int16)
    scene = torch.empty(tiles, bands, side, side, dtype=torch.int16, pin_memory=pinned)
    for i in range(0, tiles, len(part)):
        scene[i : i + len(part)] = part[: tiles - i]
    return scene


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--tiny", action="store_true")
    ap.add_argument("--steps", type=int, default=1700)
    args = ap.parse_args()

    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    tiles, bands, side, classes, width, batch = (16, 4, 32, 3, 8, 4) if args.tiny else (1280, 12, 256, 10, 48, 64)
    scene = load_scene(tiles, bands, side, pinned=args.fixed and cuda)
    net = LandCover(bands, classes, width).to(device, torch.bfloat16, memory_format=torch.channels_last).eval()
    mean = torch.full((1, bands, 1, 1), 3000.0, device=device, dtype=torch.bfloat16)
    scale = torch.full((1, bands, 1, 1), 1 / 2000.0, device=device, dtype=torch.bfloat16)
    cover = torch.zeros(tiles, side, side, dtype=torch.uint8, device=device)

    skip = args.steps // 3
    with torch.inference_mode():
        for step in range(args.steps):
            if step == skip:
                if cuda:
                    torch.cuda.synchronize()
                t0 = time.perf_counter()
            at = step * batch % tiles
            block = scene[at : at + batch]
            if not args.fixed and cuda:
                block = block.pin_memory()
            x = block.to(device, non_blocking=True)
            x = x.to(torch.bfloat16, memory_format=torch.channels_last).sub_(mean).mul_(scale)
            cover[at : at + batch] = net(x).argmax(1)
    if cuda:
        torch.cuda.synchronize()
    ms = (time.perf_counter() - t0) * 1e3 / (args.steps - skip)
    print("share of class 0: %.3f" % (cover == 0).float().mean().item())
    print(f"steps={args.steps} mean_step_ms={ms:.3f}")


if __name__ == "__main__":
    main()
