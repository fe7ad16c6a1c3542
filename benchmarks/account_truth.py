"""Whether the rows of an account agree with timers that a program has by hand, and with `-X importtime`.

    python -m benchmarks.account_truth [--turns N] [--device cpu|cuda] [--out FILE]

The program below times its own parts with `perf_counter` and writes them to a file. It runs under
`dynotune run --account` as `python -X importtime program.py`, so that the three measurements are of one and
the same run, whatever else the machine does. Of `-X importtime`, the imports count that the program itself
makes. Of several runs the sums are compared.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from dynotune.schema import document
from dynotune.schema.account import Activity, RunAccount
from lab.provenance import RESULTS
from lab.result_file import opened

PROGRAM = r"""
import contextlib, json, sys, time
took = {}
@contextlib.contextmanager
def timed(name):
    begin_s = time.perf_counter()
    yield
    took[name] = took.get(name, 0.0) + time.perf_counter() - begin_s
import torch
import transformers
device, folder = sys.argv[1:]
def busy(seconds):
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        sum(range(1000))
class Data(torch.utils.data.Dataset):
    def __init__(self):
        busy(1.5)
    def __len__(self):
        return 192
    def __getitem__(self, index):
        busy(0.001)
        return torch.full((256,), float(index)), index % 10
def prepare():
    busy(1.0)
def validate(model, loader):
    with torch.no_grad():
        for batch, _ in loader:
            model(batch.to(device)).sum().item()
torch.save(0, folder + "/small.pt")  # what these calls import is not theirs
torch.load(folder + "/small.pt")
with timed("own"):
    prepare()
with timed("data_set"):
    data = Data()
layers = [torch.nn.Linear(256, 256) for _ in range(12)]
model = torch.nn.Sequential(*layers, torch.nn.Linear(256, 10)).to(device)
large = [torch.randn(1024, 1024) for _ in range(24)]
with timed("saving"):
    torch.save(large, folder + "/large.pt")
loaded = []  # freeing them is no part of reading
with timed("weights"):
    for _ in range(3):
        loaded.append(torch.load(folder + "/large.pt"))
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
loader = torch.utils.data.DataLoader(data, batch_size=32)
def epoch():
    batches = iter(loader)
    while True:
        with timed("loader"):
            pair = next(batches, None)
        if pair is None:
            break
        with timed("optimizer"):
            optimizer.zero_grad()
        with timed("forward"):
            output = model(pair[0].to(device))
            loss = torch.nn.functional.cross_entropy(output, pair[1].to(device))
        with timed("backward"):
            loss.backward()
        with timed("optimizer"):
            optimizer.step()
        if "first" not in took:
            took["first"] = 0.0
            for name in ("loader", "forward", "backward", "optimizer"):
                took[name] = 0.0
for _ in range(3):
    epoch()
    with timed("validation"):
        validate(model, loader)
    with timed("saving"):
        torch.save(large, folder + "/large.pt")
del took["first"]
json.dump(took, open(folder + "/took.json", "w"))
"""
LINE = re.compile(r"import time: +(\d+) \| +(\d+) \| ( *)(\S+)")
ROWS: dict[str, tuple[Activity, ...]] = {
    "data_set": ("data_set",),
    "weights": ("weights",),
    "validation": ("validation",),
    "saving": ("saving",),
    "loader": ("loader", "epoch_start"),
    "forward": ("forward",),
    "backward": ("backward",),
    "optimizer": ("optimizer",),
}
"""Rows of each timer. The first step has rows of its own, so the timers leave it out."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    out = given.out or RESULTS / f"account_truth_{given.device}.json"
    for _ in range(given.turns):
        turn = one_turn(given.device)
        with opened(out) as result:
            result["command"] = f"python -m benchmarks.account_truth --device {given.device}"
            result.setdefault("turns", []).append(turn)
            turns = result["turns"]
            result["summary"] = summary(turns)
            show(result["summary"])


def one_turn(device: str) -> dict[str, Any]:
    """Run the program; return what its own timers, `-X importtime` and the account say, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM)
        words = [sys.executable, "-X", "importtime", str(program), device, folder]
        ours = [sys.executable, "-m", "dynotune", "run", "--account", "--run-dir", folder, "--", *words]
        done = subprocess.run(ours, capture_output=True, text=True)
        try:
            hand = json.loads((Path(folder) / "took.json").read_text())
        except FileNotFoundError:
            raise SystemExit(done.stderr[-3000:]) from None
        (kept,) = Path(folder).glob("*/account.json")
        account = document.read(kept, RunAccount)
    by_activity: Counter[str] = Counter()
    for row in account.rows:
        by_activity[row.activity] += row.took_s  # type: ignore[assignment]
    details = [each for row in account.rows if row.activity == "own" for each in row.details]
    rows = {name: sum(by_activity[each] for each in activities) for name, activities in ROWS.items()}
    hand["imports"] = import_time_s(done.stderr)
    rows["own"] = sum(each.took_s for each in details if each.name.endswith((": prepare", ": busy")))
    rows["imports"] = by_activity["imports"] + by_activity["library_load"]
    return {
        "wall_s": account.wall_s,
        "sum_s": sum(row.took_s for row in account.rows),
        "unexplained_s": account.part_s("unexplained"),
        "by_hand_s": hand,
        "rows_s": rows,
    }


def import_time_s(text: str) -> float:
    """Return the seconds of the outermost imports after the interpreter's own start, by `-X importtime`."""
    found, begun = 0.0, False
    for _, whole_us, indent, name in LINE.findall(text):
        if not indent and begun:
            found += float(whole_us) * 1e-6
        begun = begun or (not indent and name == "site")
    return found


def summary(turns: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the seconds of each timer over all turns, those of its rows, and their relative difference."""
    found = {}
    for name in turns[0]["by_hand_s"]:
        hand, rows = (sum(turn[key][name] for turn in turns) for key in ("by_hand_s", "rows_s"))
        found[name] = {"by_hand_s": hand, "rows_s": rows, "difference": rows / hand - 1}
    return found


def show(rows: dict[str, dict[str, float]]) -> None:
    print("| part | by hand, s | rows, s | difference |")
    print("| --- | ---: | ---: | ---: |")
    for name, row in rows.items():
        print(f"| {name} | {row['by_hand_s']:.2f} | {row['rows_s']:.2f} | {row['difference']:+.1%} |")


if __name__ == "__main__":
    main()
