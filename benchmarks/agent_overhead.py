"""What the agent costs a step: the same loop with and without it, in fresh processes, paired and interleaved.

    python benchmarks/agent_overhead.py [--device cuda] [--pairs 20]

Each process times its own steps over a long stretch, the device synchronised at both ends. With the agent, its search
is over by then and the window is open: what is paid is what a measured run pays.
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
from scipy.stats import t

import dynotune
from dynotune.launch.record import Records
from dynotune.measure import schedule

AGENT = Path(dynotune.__file__).parent / "agent"
PROGRAM = Path(__file__).parent / "programs" / "small_step.py"
# What a step is to take, and what the agent may add to it.
TARGETS = {"train": {0.3e-3: 0.03, 2e-3: 0.01}, "infer": {0.3e-3: 0.03, 2e-3: 0.01}, "loader": {2e-3: 0.01}}


def measure(kind: str, device: str, layers: int, steps: int, *, agent: bool) -> tuple[float, int]:
    """Seconds a step, and the steps that the agent counted (0 without it)."""
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ)
        if agent:
            plan = {"settings": [], "warmup_steps": 100, "window_steps": steps, "seed": 0}
            (Path(folder) / "plan.json").write_text(json.dumps(plan))
            env["DYNOTUNE_RUN"] = folder
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(AGENT / "bootstrap"), env.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, str(PROGRAM), "--kind", kind, "--device", device, "--layers", str(layers),
             "--steps", str(steps)],
            env=env, capture_output=True, text=True, check=True,
        )  # fmt: skip
        counted = max((len(record.steps) for record in Records(Path(folder)).update()), default=0)
        return float(done.stdout), counted


def layers_for(kind: str, device: str, target_s: float) -> int:
    """Layers that make a step take about `target_s`."""
    few, many = 1, 21
    few_s, many_s = (measure(kind, device, layers, 1000, agent=False)[0] for layers in (few, many))
    return max(1, round(few + (target_s - few_s) * (many - few) / (many_s - few_s)))


def compare(kind: str, device: str, layers: int, steps: int, pairs: int) -> dict[str, object]:
    ratios, base = [], []
    for first in schedule.orders(pairs, seed=7):
        order = [True, False] if first == "candidate" else [False, True]
        values = {agent: measure(kind, device, layers, steps, agent=agent) for agent in order}
        assert values[True][1] >= steps, "the agent did not find the steps"
        ratios.append(math.log(values[True][0] / values[False][0]))
        base.append(values[False][0])
    half = float(t.ppf(0.975, pairs - 1)) * statistics.stdev(ratios) / math.sqrt(pairs)
    low, high = statistics.fmean(ratios) - half, statistics.fmean(ratios) + half
    return {
        "kind": kind,
        "device": device,
        "step_ms": statistics.median(base) * 1e3,
        "overhead": math.expm1(statistics.fmean(ratios)),
        "ci": [math.expm1(low), math.expm1(high)],
        "num_pairs": pairs,
        "steps_a_run": steps,
        "values_s": base,
        "log_ratios": ratios,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0, help="Length of the timed stretch of each process.")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    out = args.out or RESULTS / f"agent_overhead_{args.device}.json"
    rows = []
    for kind, targets in TARGETS.items():
        for target_s, bound in targets.items():
            layers = layers_for(kind, args.device, target_s)
            steps = max(500, int(args.seconds / target_s))
            row = compare(kind, args.device, layers, steps, args.pairs)
            rows.append({**row, "bound": bound, "layers": layers})
            print(
                f"{kind:7s} {row['step_ms']:6.3f} ms a step: {row['overhead']:+.2%} "
                f"[{row['ci'][0]:+.2%}, {row['ci'][1]:+.2%}]  bound {bound:.0%}",
                flush=True,
            )
            out.write_text(json.dumps({**describe(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
