"""What `run --account` costs a program beside `run`: processor time of its main thread, and of the sampling.

    python -m benchmarks.account_cost [--pairs N] [--steps N] [--out FILE]

Programs make short steps under `dynotune run`, in turns with and without an account. The main thread's own
processor time for a step is compared, which other programs on the machine change little, and the processor
time of all other threads, which is the sampling's and nothing else's in these programs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lab.provenance import RESULTS
from lab.result_file import opened

PROGRAM = r"""
import sys, time, torch
size, num, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
layers = [layer for _ in range(4) for layer in (torch.nn.Linear(size, size), torch.nn.ReLU())]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.randn(8, size)
def step():
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    if kind == "python":
        sum(number * number for number in range(20_000))
for _ in range(num // 4):
    step()
begun_s, main_s, all_s = time.perf_counter(), time.thread_time(), time.process_time()
for _ in range(num):
    step()
main_s, all_s = time.thread_time() - main_s, time.process_time() - all_s
print("TOOK", main_s / num, (all_s - main_s) / (time.perf_counter() - begun_s), (all_s - main_s) / all_s)
"""
KINDS = {"torch, 64 wide": ("64", "torch"), "torch, 512 wide": ("512", "torch"), "Python": ("64", "python")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--out", type=Path, default=RESULTS / "account_cost_cpu.json")
    given = parser.parse_args()
    for name, (size, kind) in KINDS.items():
        for pair in range(given.pairs):
            words = [size, str(given.steps), kind]
            order = (False, True) if pair % 2 else (True, False)
            took = {account: one_run(words, account=account) for account in order}
            with opened(given.out) as result:
                result["command"] = f"python -m benchmarks.account_cost --steps {given.steps}"
                rows = result.setdefault("programs", {}).setdefault(name, {"pairs": []})
                rows["pairs"].append({"without": took[False], "with": took[True]})
                _summarise(rows)
    show(given.out)


def one_run(words: list[str], *, account: bool) -> dict[str, float]:
    """Return processor seconds of the main thread for a step, and what other threads use of a core."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM)
        ours = [sys.executable, "-m", "dynotune", "run", *["--account"] * account, "--run-dir", folder]
        done = subprocess.run(
            [*ours, "--", sys.executable, str(program), *words], capture_output=True, text=True
        )
    lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("TOOK")]
    if not lines:
        raise SystemExit(done.stderr[-2000:])
    step_s, of_a_core, of_all = map(float, lines[0])
    return {"step_s": step_s, "others_of_a_core": of_a_core, "others_of_all": of_all}


def _summarise(rows: dict[str, Any]) -> None:
    ratios = [pair["with"]["step_s"] / pair["without"]["step_s"] for pair in rows["pairs"]]
    rows["step_s"] = statistics.median(pair["without"]["step_s"] for pair in rows["pairs"])
    rows["main_thread"] = statistics.median(ratios) - 1
    rows["main_thread_range"] = [min(ratios) - 1, max(ratios) - 1]
    rows["sampling"] = statistics.median(
        pair["with"]["others_of_all"] - pair["without"]["others_of_all"] for pair in rows["pairs"]
    )


def show(out: Path) -> None:
    print("| program | a step, ms | main thread | of all pairs | sampling |")
    print("| --- | ---: | ---: | --- | ---: |")
    for name, rows in json.loads(out.read_text())["programs"].items():
        low, high = rows["main_thread_range"]
        cells = [f"{1000 * rows['step_s']:.2f}", f"{rows['main_thread']:+.1%}", f"{low:+.1%} to {high:+.1%}"]
        print(f"| {name} | {' | '.join(cells)} | {rows['sampling']:.2%} |")


if __name__ == "__main__":
    main()
