"""Does `dynotune tune` beat the program as written, an informed hand, other tuners, and is it near the best
there is?

    python benchmarks/tuning.py --device cuda [--plan] [--only NAME]… [--part KIND]… [--lanes N | --lane I/N]
        [--until-s S] [--out FILE] [--tables FOLDER] [--work FOLDER] [--keep FOLDER] [--no-lock]

Of each program (lab/tuning/programs.py), in this order:

- `tune`: `dynotune tune`;
- `verify`: `dynotune recipe verify`: the recipe against the program as written, in fresh pairs;
- `informed`: the recipe against the program with TF32, autocast, a worker a core and pinned memory, in fresh
    pairs;
- `autotune`, `slowai`: what pytorch-autotune and slowai choose for it; `autotune-pairs`, `slowai-pairs`: the
  recipe against that, in fresh pairs;
- `table`, `table-tune`: of two programs a full factorial table, block by block, and tune's choice in a
  quarter of its time.

Whatever is in FILE and FOLDER is not done again, besides what failed. Nothing is begun that by its estimate
would end after `--until-s`; a part that is killed is lost. Several of these may write to one FILE: `--lane
0/2` takes every other program, and `--lanes 2` begins both, each with one of two GPUs and half of the cores.
`--plan` says what is left and how long it takes, and runs nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lab.provenance import RESULTS
from lab.result_file import opened, read
from lab.tuning.asked import in_lanes, in_this_lane, left_of, options
from lab.tuning.parts import KINDS, Setup
from lab.tuning.programs import PROGRAMS
from lab.tuning.rows import show, summary
from lab.tuning.work import TABLE_KINDS, plan, work_on, work_on_table


def main() -> None:
    parser = options(__doc__, (*KINDS, *TABLE_KINDS), "dynotune-tuning")
    parser.add_argument("--blocks", type=int, help="of each table: runs of an arm")
    parser.add_argument("--tables", type=Path, default=RESULTS / "tuning_tables")
    given = parser.parse_args()
    if given.lanes > 1 and not given.plan:
        in_lanes(given.lanes, sys.argv[:1], sys.argv[1:])
        return
    left_s = left_of(given.until_s)
    out = given.out or RESULTS / f"tuning_{given.device}.json"
    kinds = [kind for kind in (*KINDS, *TABLE_KINDS) if kind in (given.part or (*KINDS, *TABLE_KINDS))]
    programs = in_this_lane(PROGRAMS, given)
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    setup = Setup(
        given.device,
        given.work.absolute(),
        given.keep,
        not given.no_lock,
        given.tune_s,
        given.blocks,
        given.pairs_s,
    )
    if given.plan:
        plan(programs, kinds, read(out), setup, given.tables)
        return

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
