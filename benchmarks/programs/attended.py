"""A training whose every step can be compared with that of another run, and which tells what is left in it.

    python attended.py --steps N [--workers N] [--samples N] [--layers N] [--side FILE]

It prints losses in full and a digest of the weights, and exits with code 7. Started by torchrun, its ranks
exchange gradients over gloo. The side file, one for each rank, takes what two runs need not share: when each
step ended, and what differs between the interpreter after its first steps and at its end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from lab.interpreter_state import interpreter_state

BATCH = 16
WARM_UP, SAID_EVERY = 40, 25
EXIT_CODE = 7


class Samples(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, num: int) -> None:
        self._num = num

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.0005)
        generator = torch.Generator().manual_seed(number)
        return torch.randn(64, generator=generator), number % 10


def state() -> dict[str, Any]:
    threads = (thread / "comm" for thread in Path("/proc/self/task").iterdir())
    return {**interpreter_state(), "threads": sorted(path.read_text().strip() for path in threads)}


def say(*words: object) -> None:
    """Print a line by one call, so that lines of two ranks do not mix."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--samples", type=int, default=6400, help="samples of an epoch")
    parser.add_argument("--layers", type=int, default=0, help="further layers, which make steps longer")
    parser.add_argument("--side", type=Path)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    hidden = [torch.nn.Linear(64, 64) for _ in range(chosen.layers)]
    model: torch.nn.Module = torch.nn.Sequential(
        *hidden, torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
    )
    rank = int(os.environ.get("RANK", "0"))
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    ends_s: list[float] = []
    before: dict[str, Any] = {}
    generator = torch.Generator().manual_seed(1 + rank)
    while len(ends_s) < chosen.steps:
        loader = DataLoader(
            Samples(chosen.samples),
            batch_size=BATCH,
            num_workers=chosen.workers,
            shuffle=True,
            generator=generator,
        )
        for inputs, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ends_s.append(time.perf_counter())
            if len(ends_s) == WARM_UP:
                before = state()
                say("warm", rank)
            if len(ends_s) % SAID_EVERY == 0:
                say(rank, len(ends_s), loss.item().hex())
            if len(ends_s) == chosen.steps:
                after = state()
                break
    weights = b"".join(weight.detach().numpy().tobytes() for weight in model.parameters())
    say(rank, "weights", hashlib.sha256(weights).hexdigest())
    if chosen.side is not None:
        differ = {
            name: [before.get(name), after.get(name)]
            for name in before.keys() | after.keys()
            if before.get(name) != after.get(name)
        }
        side = {"ends_s": ends_s, "differ": differ}
        chosen.side.with_name(f"{chosen.side.name}.{rank}").write_text(json.dumps(side))
    if "RANK" in os.environ:
        torch.distributed.destroy_process_group()
        return  # torchrun would print how a rank failed
    sys.exit(EXIT_CODE)


if __name__ == "__main__":
    main()
