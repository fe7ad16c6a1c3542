"""What the agent costs a step: blocks of the same loop with its covers on and off, in one process.

    python benchmarks/agent_overhead.py [--device cuda] [--processes 3] [--pairs 100]

Two processes of one program differ by more than what is to be seen here, so the covers are taken off and put back
within one: hooks of optimizers, `__next__` of loaders, the call of the root's class. The step has been found by then
and the window is open: what is paid is what a measured run pays. Blocks come in pairs of random order; the answer is
the median ratio over all pairs of all processes, with the order statistics around it that hold it in 95% of cases.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from hardware import RESULTS, describe
from scipy.stats import binom

import dynotune
from dynotune.launch.records.record import Records

AGENT = Path(dynotune.__file__).parent / "agent"
PROGRAM = Path(__file__).parent / "programs" / "small_step.py"
# What a step is to take, and what the agent may add to it.
TARGETS = {"train": {0.3e-3: 0.03, 2e-3: 0.01}, "infer": {0.3e-3: 0.03, 2e-3: 0.01}, "loader": {2e-3: 0.01}}


def layers_of(kind: str, device: str, step_s: float) -> int:
    """How many layers make a step last about so long without the agent."""
    few, many = (float(run_program(kind, device, num_layers, pairs=0, env=dict(os.environ))) for num_layers in (2, 42))
    return max(1, round(2 + 40 * (step_s - few) / (many - few)))


def run_program(kind: str, device: str, num_layers: int, *, pairs: int, env: dict[str, str]) -> str:
    words = [sys.executable, str(PROGRAM), "--kind", kind, "--device", device, "--layers", str(num_layers)]
    done = subprocess.run([*words, "--pairs", str(pairs)], env=env, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def measure(kind: str, device: str, num_layers: int, pairs: int) -> list[dict[str, float]]:
    """Pairs of blocks of one process: seconds a step with and without the covers.

    Raises:
        SystemExit: the agent counted no steps: there is nothing to compare.
    """
    with tempfile.TemporaryDirectory() as folder:
        plan = {"settings": [], "warmup_steps": 50, "window_steps": 10**9, "seed": 0}
        (Path(folder) / "plan.json").write_text(json.dumps(plan))
        path = os.pathsep.join(filter(None, [str(AGENT / "bootstrap"), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "DYNOTUNE_RUN": folder, "PYTHONPATH": path}
        lines = run_program(kind, device, num_layers, pairs=pairs, env=env).splitlines()
        values = [json.loads(line) for line in lines]
        if max((len(record.steps) for record in Records(Path(folder)).update()), default=0) < 300 + 30 * len(values):
            raise SystemExit(f"{kind}: the agent did not count the steps")
        return values


def interval(ratios: list[float]) -> tuple[float, float]:
    """Order statistics that hold the median in at least 95%."""
    outer = int(binom.ppf(0.025, len(ratios), 0.5))
    ordered = sorted(ratios)
    return ordered[max(0, outer - 1)], ordered[-max(1, outer)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=100, help="Pairs of blocks in each process.")
    parser.add_argument("--kind", choices=list(TARGETS), action="append", help="Measure this alone; repeat for more.")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    out = args.out or RESULTS / f"agent_overhead_{args.device}.json"
    rows = []
    for kind, targets in TARGETS.items():
        if args.kind and kind not in args.kind:
            continue
        for step_s, bound in targets.items():
            num_layers = layers_of(kind, args.device, step_s)
            runs = [measure(kind, args.device, num_layers, args.pairs) for _ in range(args.processes)]
            pairs = [pair for run in runs for pair in run]
            ratios = [math.log(pair["on"] / pair["off"]) for pair in pairs]
            low, high = interval(ratios)
            off_s = statistics.median(pair["off"] for pair in pairs)
            row = {
                "kind": kind,
                "num_layers": num_layers,
                "step_ms": 1e3 * off_s,
                "overhead": math.expm1(statistics.median(ratios)),
                "ci": [math.expm1(low), math.expm1(high)],
                "overhead_us": 1e6 * off_s * math.expm1(statistics.median(ratios)),
                "bound": bound,
                "processes": [
                    math.expm1(statistics.median(math.log(pair["on"] / pair["off"]) for pair in run)) for run in runs
                ],
                "num_pairs": len(pairs),
            }
            rows.append(row)
            print(
                f"{kind:7s} {row['step_ms']:6.3f} ms a step: {row['overhead']:+.2%} "
                f"[{row['ci'][0]:+.2%}, {row['ci'][1]:+.2%}], {row['overhead_us']:.1f} µs  bound {bound:.0%}",
                flush=True,
            )
            out.write_text(json.dumps({**describe(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
