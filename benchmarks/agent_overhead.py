"""What the agent costs a step: blocks of the same loop with its covers on and off, in one process.

    python benchmarks/agent_overhead.py [--device cuda] [--processes 3] [--pairs 100] [--tree NAME=FOLDER]
        [--live]
    python benchmarks/agent_overhead.py --ranks 2 --kind train --device cuda

Two processes of one program differ by more than what is to be seen here, so the covers are taken off and put
back within one: hooks of optimizers, `__next__` of loaders, the call of the root's class. The step has been
found by then and the window is open: what is paid is what a measured run pays. Blocks come in pairs of random
order; the answer is the median ratio over all pairs of all processes, with the order statistics around it
that hold it in 95% of cases.

With `--tree` twice, the agents of two source trees are measured in turn, on the same program with the same
number of layers. Their difference is the median of all differences between a ratio of one and a ratio of the
other (Hodges and Lehmann), with the interval that belongs to the Mann-Whitney test.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom, norm

import dynotune
from lab.provenance import RESULTS, describe

HERE = Path(dynotune.__file__).parents[1]
PROGRAM = Path(__file__).parent / "programs" / "small_step.py"
RANKS = PROGRAM.with_name("ranks.py")
TARGETS_OF_RANKS = {"train": {5e-3: 0.01}}
# What a step is to take, and what the agent may add to it.
TARGETS = {"train": {0.3e-3: 0.03, 2e-3: 0.01}, "infer": {0.3e-3: 0.03, 2e-3: 0.01}, "loader": {2e-3: 0.01}}
ENDLESS = 10**9
MOST_ADDED = 0.002
"""What a second tree's agent may add to what the first one's costs: share of a step."""
# Run by the tree whose agent wrote the records: their format may differ between trees.
COUNT_STEPS = """
import importlib, pathlib, sys
for name in ("dynotune.launch.record", "dynotune.launch.records", "dynotune.launch.records.record"):
    try:
        Records = importlib.import_module(name).Records
    except (ImportError, AttributeError):
        continue
    print(max((len(record.steps) for record in Records(pathlib.Path(sys.argv[1])).update()), default=0))
    break
"""

Row = dict[str, Any]
Pairs = list[dict[str, float]]


def layers_of(kind: str, device: str, step_s: float, ranks: int) -> int:
    """How many layers make a step last about so long without the agent."""
    few, many = seconds_of_layers(kind, device, ranks)
    return max(1, round(2 + 40 * (step_s - few) / (many - few)))


@functools.cache
def seconds_of_layers(kind: str, device: str, ranks: int) -> tuple[float, float]:
    """A step of 2 layers, and one of 42."""
    env = dict(os.environ)
    few, many = (float(run_program(kind, device, num, pairs=0, env=env, ranks=ranks)) for num in (2, 42))
    return few, many


def run_program(
    kind: str, device: str, num_layers: int, *, pairs: int, env: dict[str, str], ranks: int
) -> str:
    words = [sys.executable, *([str(RANKS), str(ranks)] if ranks > 1 else []), str(PROGRAM)]
    words += ["--kind", kind, "--device", device, "--layers", str(num_layers)]
    done = subprocess.run(
        [*words, "--pairs", str(pairs)], env=env, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def measure(
    tree: Path, kind: str, device: str, num_layers: int, pairs: int, *, live: bool, ranks: int
) -> Pairs:
    """Pairs of blocks of one process: seconds a step with and without the covers of that tree's agent.

    Args:
        live: no window is open; the agent looks for a task that never comes.

    Raises:
        SystemExit: the agent counted no steps: there is nothing to compare.
    """
    with tempfile.TemporaryDirectory() as folder:
        give_plan(tree, Path(folder), live=live)
        bootstrap = tree / "dynotune" / "agent" / "bootstrap"
        env = {**os.environ, "DYNOTUNE_RUN": folder, "PYTHONPATH": before_ours(bootstrap)}
        lines = run_program(kind, device, num_layers, pairs=pairs, env=env, ranks=ranks).splitlines()
        values = [json.loads(line) for line in lines]
        if num_steps(tree, folder) < 300 + 30 * len(values):
            raise SystemExit(f"{kind}: the agent of {tree} did not count the steps")
        return values


def give_plan(tree: Path, folder: Path, *, live: bool) -> None:
    """Write what that tree's agent is to do: time a window that does not end, or wait for tasks if it knows
    them."""
    plan: dict[str, Any] = {"settings": [], "seed": 0}
    if not (tree / "dynotune" / "agent" / "tasks" / "queue.py").is_file():
        plan |= {"schema": "dynotune.plan/1", "warmup_steps": 50, "window_steps": ENDLESS}
    elif live:
        plan |= {"schema": "dynotune.plan/2", "live": True}
        (folder / "tasks.page").write_bytes(
            struct.pack("<8sHHII", b"DYNOTASK", 1, 0, 0, 0).ljust(4096, b"\0")
        )
    else:
        window = {"type": "time-window", "at_step": 50, "num_steps": ENDLESS}
        plan |= {"schema": "dynotune.plan/2", "tasks": [window]}
    (folder / "plan.json").write_text(json.dumps(plan))


def num_steps(tree: Path, folder: str) -> int:
    """Steps that the agent recorded, of the process that made the most."""
    env = {**os.environ, "PYTHONPATH": before_ours(tree)}
    words = [sys.executable, "-c", COUNT_STEPS, folder]
    return int(subprocess.run(words, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout or 0)


def before_ours(folder: Path) -> str:
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def interval(ratios: list[float]) -> tuple[float, float]:
    """Order statistics that hold the median in at least 95%."""
    outer = int(binom.ppf(0.025, len(ratios), 0.5))
    ordered = sorted(ratios)
    return ordered[max(0, outer - 1)], ordered[-max(1, outer)]


def log_ratios(pairs: Pairs) -> list[float]:
    return [math.log(pair["on"] / pair["off"]) for pair in pairs]


def cost(tree: str, kind: str, num_layers: int, bound: float, runs: Sequence[Pairs]) -> Row:
    """What that tree's agent costs."""
    pairs = [pair for run in runs for pair in run]
    ratios = log_ratios(pairs)
    low, high = interval(ratios)
    off_s = statistics.median(pair["off"] for pair in pairs)
    overhead = math.expm1(statistics.median(ratios))
    return {
        "tree": tree,
        "kind": kind,
        "num_layers": num_layers,
        "step_ms": 1e3 * off_s,
        "overhead": overhead,
        "ci": [math.expm1(low), math.expm1(high)],
        "overhead_us": 1e6 * off_s * overhead,
        "bound": bound,
        "processes": [math.expm1(statistics.median(log_ratios(run))) for run in runs],
        "num_pairs": len(pairs),
    }


def difference(first: Sequence[Pairs], second: Sequence[Pairs]) -> tuple[float, list[float]]:
    """What the second agent adds to the first one's cost, as a share of a step, with its 95% interval."""
    before, after = (
        np.array([ratio for run in runs for ratio in log_ratios(run)]) for runs in (first, second)
    )
    added = np.sort(np.subtract.outer(after, before), axis=None)
    sizes = len(before), len(after)
    spread = math.sqrt(sizes[0] * sizes[1] * (sum(sizes) + 1) / 12)
    outer = max(1, math.floor(len(added) / 2 - norm.ppf(0.975) * spread))
    return float(np.median(added)), [float(added[outer - 1]), float(added[-outer])]


def show(row: Row) -> None:
    print(
        f"{row['tree']:>8s}  {row['kind']:7s} {row['step_ms']:6.3f} ms a step: {row['overhead']:+.2%} "
        f"[{row['ci'][0]:+.2%}, {row['ci'][1]:+.2%}], {row['overhead_us']:.1f} µs  bound {row['bound']:.0%}",
        flush=True,
    )


def show_differences(first: str, rows: Sequence[Row]) -> None:
    """The summary, in points: hundredths of a step."""
    print(
        f"{'kind':8s}{'ms a step':>10s}{'agent of':>10s}{first:>9s}{'itself':>9s}{'added':>9s}  95% "
        "interval, points"
    )
    for row in rows:
        low, high = (100 * end for end in row["ci"])
        is_sure = high <= 100 * MOST_ADDED or low > 100 * MOST_ADDED
        kept = ("kept" if row["added"] <= MOST_ADDED else "NOT KEPT") + ("" if is_sure else ", not surely")
        print(
            f"{row['kind']:8s}{row['step_ms']:10.3f}{row['tree']:>10s}{row['first']:+9.2%}{row['overhead']:+9.2%}"
            f"{100 * row['added']:+9.2f}  [{low:+.2f}, {high:+.2f}]  <= {100 * MOST_ADDED:+.1f} {kept}"
        )


def named(text: str) -> tuple[str, Path]:
    """`--tree NAME=FOLDER`."""
    name, equals, folder = text.partition("=")
    tree = Path(folder).resolve()
    if not name or not equals or not (tree / "dynotune" / "agent").is_dir():
        raise argparse.ArgumentTypeError(
            f"{text} is not NAME=FOLDER, a folder that holds the package dynotune"
        )
    return name, tree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=1, help="More than one exchange gradients, a GPU each.")
    parser.add_argument("--pairs", type=int, default=100, help="Pairs of blocks in each process.")
    parser.add_argument(
        "--kind", choices=list(TARGETS), action="append", help="Measure this alone; repeat for more."
    )
    parser.add_argument(
        "--tree",
        type=named,
        action="append",
        metavar="NAME=FOLDER",
        help=(
            "Folder that holds the package dynotune; repeat to compare others with the first. This one, "
            "without."
        ),
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="While the agent waits for tasks, in place of an open window, if it can.",
    )
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    trees: dict[str, Path] = dict(args.tree or [("this", HERE)])
    name_of_result = "agent_overhead" + ("_trees" if len(trees) > 1 else "") + ("_live" if args.live else "")
    name_of_result += f"_{args.ranks}_ranks" if args.ranks > 1 else ""
    out = args.out or RESULTS / f"{name_of_result}_{args.device}.json"
    first, *others = trees
    result: dict[str, Any] = {**describe(), "rows": []}
    differences: list[Row] = []
    result["ranks"] = args.ranks
    for kind, targets in (TARGETS if args.ranks == 1 else TARGETS_OF_RANKS).items():
        if args.kind and kind not in args.kind:
            continue
        for step_s, bound in targets.items():
            num_layers = layers_of(kind, args.device, step_s, args.ranks)
            runs: dict[str, list[Pairs]] = {name: [] for name in trees}
            for number in range(args.processes):
                for name in list(trees) if number % 2 == 0 else list(trees)[::-1]:
                    how = {"live": args.live, "ranks": args.ranks}
                    runs[name].append(measure(trees[name], kind, args.device, num_layers, args.pairs, **how))
            rows = {name: cost(name, kind, num_layers, bound, runs[name]) for name in trees}
            for row in rows.values():
                show(row)
            result["rows"].extend(rows.values())
            for name in others:
                added, ci = difference(runs[first], runs[name])
                of_both = {"first": rows[first]["overhead"], "added": added, "ci": ci}
                differences.append({**rows[name], **of_both})
                fields = ("tree", "kind", "num_layers", "added", "ci")
                result.setdefault("differences", []).append(
                    {field: differences[-1][field] for field in fields}
                )
            out.write_text(json.dumps(result, indent=1) + "\n")
    if differences:
        show_differences(first, differences)


if __name__ == "__main__":
    main()
