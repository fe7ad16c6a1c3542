"""Does `dynotune tune` beat the program as written, an informed hand, other tuners, and is it near the best
there is?

    python benchmarks/tuning.py --device cuda [--plan] [--only NAME]… [--part KIND]… [--lanes N | --lane I/N]
        [--budget-s S] [--out FILE] [--tables FOLDER] [--work FOLDER] [--keep FOLDER] [--no-lock]

Of each program (lab/tuning/programs.py), in this order:

- `tune`: `dynotune tune --allow numerics`;
- `verify`: `dynotune recipe verify`: the recipe against the program as written, in fresh pairs;
- `informed`: the recipe against the program with TF32, autocast, a worker a core and pinned memory, in fresh
    pairs;
- `autotune`, `slowai`: what pytorch-autotune and slowai choose for it; `autotune-pairs`, `slowai-pairs`: the
  recipe against that, in fresh pairs;
- `table`, `table-tune`: of two programs a full factorial table, block by block, and tune's choice in a
  quarter of its time.

Whatever is in FILE and FOLDER is not done again, besides what failed. Nothing is begun that by its estimate
would end after `--budget-s`; a part that is killed is lost. Several of these may write to one FILE: `--lane
0/2` takes every other program, and `--lanes 2` begins both, each with one of two GPUs and half of the cores.
`--plan` says what is left and how long it takes, and runs nothing.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from lab.provenance import RESULTS
from lab.result_file import opened, read
from lab.tuning.parts import KINDS, Setup
from lab.tuning.programs import PROGRAMS, Program
from lab.tuning.rows import show, summary
from lab.tuning.work import TABLE_KINDS, plan, work_on, work_on_table

Taken = TypeVar("Taken", bound=Program)


def in_lanes(num: int, words: Sequence[str]) -> None:
    """This program once for each lane, on a GPU and cores of its own; the last value of an option counts."""
    cpus = sorted(os.sched_getaffinity(0))
    size = max(1, len(cpus) // num)
    running = []
    for lane in range(num):
        cores = ",".join(map(str, cpus[lane * size : (lane + 1) * size]))
        mine = [*words, "--lanes", "1", "--lane", f"{lane}/{num}", "--no-lock"]
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": str(lane)}
        running.append(
            subprocess.Popen(["taskset", "-c", cores, sys.executable, sys.argv[0], *mine], env=env)
        )
    for process in running:
        process.wait()


def options(about: str | None, kinds: Sequence[str], work: str) -> argparse.ArgumentParser:
    """What benchmarks of programs and parts are asked by. `work`: a name for the folder of what programs
    read."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--part", action="append", choices=kinds, metavar="KIND")
    parser.add_argument("--lane", default="0/1", metavar="I/N")
    parser.add_argument("--lanes", type=int, default=1, metavar="N")
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--budget-s", type=float, default=math.inf)
    parser.add_argument("--tune-s", type=float, help="budget of each tune, in place of the program's")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / work)
    parser.add_argument("--keep", type=Path, help="folder for each study, its recipe and its report")
    parser.add_argument("--no-lock", action="store_true")
    return parser


def in_this_lane(programs: Sequence[Taken], given: argparse.Namespace) -> list[Taken]:
    lane, lanes = map(int, given.lane.split("/"))
    return [program for program in programs if not given.only or program.name in given.only][lane::lanes]


def main() -> None:
    parser = options(__doc__, (*KINDS, *TABLE_KINDS), "dynotune-tuning")
    parser.add_argument("--blocks", type=int, help="of each table: runs of an arm")
    parser.add_argument("--tables", type=Path, default=RESULTS / "tuning_tables")
    given = parser.parse_args()
    if given.lanes > 1 and not given.plan:
        in_lanes(given.lanes, sys.argv[1:])
        return
    until_s = time.monotonic() + given.budget_s
    out = given.out or RESULTS / f"tuning_{given.device}.json"
    kinds = given.part or [*KINDS, *TABLE_KINDS]
    programs = in_this_lane(PROGRAMS, given)
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    setup = Setup(
        given.device, given.work.absolute(), given.keep, not given.no_lock, given.tune_s, given.blocks
    )
    if given.plan:
        plan(programs, kinds, read(out), setup, given.tables)
        return

    def left_s() -> float:
        return until_s - time.monotonic()

    for program in programs:
        if missing := program.missing():
            print(f"{program.name}: skipped, without {', '.join(missing)}", flush=True)
            continue
        work_on(program, kinds, setup, out, left_s)
        if given.device in program.table:
            work_on_table(program, kinds, setup, out, given.tables, left_s)
    with opened(out) as result:
        result["summary"] = summary(result)
    show(PROGRAMS, read(out))


if __name__ == "__main__":
    main()
