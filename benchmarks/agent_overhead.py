"""What the agent costs a step: the same loop with and without it, in two processes that take turns.

    python benchmarks/agent_overhead.py [--device cuda] [--couples 9] [--blocks 40]

The two processes of a couple run short blocks of steps in ABBA order on the same cores, one while the other waits, so
that both meet the same machine. A couple gives one ratio, its median. Two processes of one program differ by luck, some
by a lot, so the answer is the median over couples, with the order statistics around it that hold it in 95% of cases.
With the agent the search for the step is over and the window open: what is paid is what a measured run pays.
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
from types import TracebackType

from hardware import RESULTS, describe
from scipy.stats import binom

import dynotune
from dynotune.launch.record import Records
from dynotune.measure import schedule

AGENT = Path(dynotune.__file__).parent / "agent"
PROGRAM = Path(__file__).parent / "programs" / "small_step.py"
# What a step is to take, and what the agent may add to it.
TARGETS = {"train": {0.3e-3: 0.03, 2e-3: 0.01}, "infer": {0.3e-3: 0.03, 2e-3: 0.01}, "loader": {2e-3: 0.01}}
SEARCH_STEPS = 400
CORES = sorted(os.sched_getaffinity(0))[-2:]


class Loop:
    """The program, waiting for its next block."""

    def __init__(self, kind: str, device: str, layers: int, *, agent: bool) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._agent = agent
        env = dict(os.environ)
        if agent:
            plan = {"settings": [], "warmup_steps": SEARCH_STEPS // 2, "window_steps": 10**9, "seed": 0}
            (Path(self._folder.name) / "plan.json").write_text(json.dumps(plan))
            env["DYNOTUNE_RUN"] = self._folder.name
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(AGENT / "bootstrap"), env.get("PYTHONPATH")]))
        words = [sys.executable, str(PROGRAM), "--kind", kind, "--device", device, "--layers", str(layers)]
        self._child = subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        os.sched_setaffinity(self._child.pid, CORES)
        self._num_steps = 0
        self.run(SEARCH_STEPS)

    def run(self, steps: int) -> float:
        """Seconds a step of a block."""
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(f"{steps}\n")
        self._child.stdin.flush()
        self._num_steps += steps
        return float(self._child.stdout.readline()) / steps

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._child.communicate()
        records = Records(Path(self._folder.name)).update()
        counted = max((len(record.steps) for record in records), default=0)
        self._folder.cleanup()
        if error is None and self._agent and counted != self._num_steps:
            raise SystemExit(f"the agent counted {counted} of {self._num_steps} steps: nothing to compare")


def layers_for(kind: str, device: str, target_s: float) -> int:
    """Layers that make a step take about `target_s`."""
    few, many = 1, 21
    with Loop(kind, device, few, agent=False) as one, Loop(kind, device, many, agent=False) as other:
        few_s, many_s = min(one.run(200) for _ in range(5)), min(other.run(200) for _ in range(5))
    return max(1, round(few + (target_s - few_s) * (many - few) / (many_s - few_s)))


def couple(kind: str, device: str, layers: int, steps: int, blocks: int, seed: int) -> tuple[float, float]:
    """Median log ratio of neighbouring blocks, with over without the agent; and seconds a step without."""
    ratios, plain = [], []
    with Loop(kind, device, layers, agent=False) as without, Loop(kind, device, layers, agent=True) as with_agent:
        for first in schedule.orders(12, seed) * (blocks // 12 + 1):
            order = (with_agent, without) if first == "candidate" else (without, with_agent)
            values = {loop: loop.run(steps) for loop in order}
            ratios.append(math.log(values[with_agent] / values[without]))
            plain.append(values[without])
    return statistics.median(ratios), statistics.median(plain)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--couples", type=int, default=9)
    parser.add_argument("--blocks", type=int, default=40, help="Blocks of each process of a couple.")
    parser.add_argument("--block-s", type=float, default=0.1, help="Length of a block.")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    out = args.out or RESULTS / f"agent_overhead_{args.device}.json"
    rows = []
    for kind, targets in TARGETS.items():
        for target_s, bound in targets.items():
            layers = layers_for(kind, args.device, target_s)
            steps = max(20, round(args.block_s / target_s))
            found = [couple(kind, args.device, layers, steps, args.blocks, seed) for seed in range(args.couples)]
            ratios = [ratio for ratio, _ in found]
            ratios.sort()
            # The most extreme pair of order statistics that still covers the median in 95%.
            outer = int(binom.ppf(0.025, len(ratios), 0.5))
            low, high = ratios[max(0, outer - 1)], ratios[-max(1, outer)]
            row = {
                "kind": kind,
                "layers": layers,
                "step_ms": 1e3 * statistics.median(step_s for _, step_s in found),
                "overhead": math.expm1(statistics.median(ratios)),
                "ci": [math.expm1(low), math.expm1(high)],
                "bound": bound,
                "couples": [math.expm1(ratio) for ratio in ratios],
                "blocks_a_couple": args.blocks,
                "steps_a_block": steps,
            }
            rows.append(row)
            print(
                f"{kind:7s} {row['step_ms']:6.3f} ms a step: {row['overhead']:+.2%} "
                f"[{row['ci'][0]:+.2%}, {row['ci'][1]:+.2%}]  bound {bound:.0%}",
                flush=True,
            )
            out.write_text(json.dumps({**describe(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
