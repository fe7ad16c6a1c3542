"""A training loop whose critical part is known by construction.

    python parts.py --critical host|device|loader|transfer|function --step-ms 20 [--device cuda] [--sync]

Every part does some work: a third of the critical one's, so that it takes a share of a step and hides behind
the critical one where the two can overlap. On the CPU host and device are one thread.
"""

import argparse
import time

import torch
from torch.utils.data import DataLoader, Dataset

LESS = 0.3
ROWS, WORKERS = 8, 2


class Slow(Dataset):
    """Samples that each take a worker so long that a batch is ready every `batch_s`."""

    def __init__(self, batch_s, num_workers):
        self.sample_s = batch_s * max(1, num_workers) / ROWS

    def __len__(self):
        return 10**7

    def __getitem__(self, index):
        time.sleep(self.sample_s)
        return torch.full((256,), float(index % 5))


def busy(seconds):
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        pass


def prepared(batch, seconds):
    busy(seconds)
    return batch * 2


def repeats(work, seconds, device):
    """How often `work` runs in so many seconds."""

    def timed(num):
        if device == "cuda":
            torch.cuda.synchronize()
        begin_s = time.perf_counter()
        for _ in range(num):
            work()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin_s

    timed(20)
    return max(1, round(seconds / (timed(40) / 40)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--critical", default="host")
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sync", action="store_true", help="read the loss in each step")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    step_s = given.step_ms / 1000
    takes_s = dict.fromkeys(("host", "device", "loader", "transfer", "function"), LESS * step_s)
    takes_s[given.critical] = step_s
    if given.critical not in ("host", "function"):
        takes_s["function"] = 0.0
    elif given.critical == "function":
        takes_s["host"] = 0.0
    else:
        takes_s["function"] = 0.0
    if given.critical != "transfer":
        takes_s["transfer"] = 0.0
    model = torch.nn.Linear(256, 8).to(given.device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-5)
    width = 2048 if given.device == "cuda" else 128
    left = torch.randn(width, width, device=given.device)
    products = repeats(lambda: left @ left, takes_s["device"], given.device) if given.device == "cuda" else 0
    pinned = copies = None
    if given.device == "cuda" and takes_s["transfer"]:
        pinned = torch.empty(32 << 20, dtype=torch.uint8, pin_memory=True)
        on_device = torch.empty_like(pinned, device="cuda")
        copies = repeats(lambda: on_device.copy_(pinned, non_blocking=True), takes_s["transfer"], "cuda")
    data = Slow(takes_s["loader"], WORKERS)
    for drawn in DataLoader(data, ROWS, num_workers=WORKERS, pin_memory=given.device == "cuda"):
        busy(takes_s["host"])
        made = prepared(drawn, takes_s["function"]) if takes_s["function"] else drawn
        batch = made.to(given.device, non_blocking=True)
        for _ in range(copies or 0):
            on_device.copy_(pinned, non_blocking=True)
        for _ in range(products):
            left @ left
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if given.sync:
            loss.item()


if __name__ == "__main__":
    main()
