"""What `dynotune tune` finds in three minutes, of programs that nobody of this project wrote, as they are
published.

    python benchmarks/public.py --sources FOLDER --device cuda [--plan] [--only NAME]… [--part KIND]…
        [--lanes N | --lane I/N] [--budget-s S] [--tune-s S] [--out FILE] [--work FOLDER] [--keep FOLDER]
        [--no-lock]

FOLDER holds these repositories, each by its name:

    cd FOLDER
    git clone https://github.com/karpathy/nanoGPT
    git clone https://github.com/pytorch/examples
    git clone https://github.com/huggingface/pytorch-image-models
    git clone https://github.com/huggingface/transformers        # the release that is installed
    git clone https://github.com/Lightning-AI/pytorch-lightning

They need, besides torch and torchvision: transformers, accelerate, datasets and evaluate; lightning and
jsonargparse[signatures]; ultralytics. What is missing is said and left out. Nothing is downloaded while they
run: what they read is made up (public_programs.py), and weights are random.

Of each program, in this order, as `tuning.py` does them:

- `tune`: `dynotune tune --allow numerics --budget 180s`, and when it said what;
- `verify`: `dynotune recipe verify`: the recipe against the program as published, in fresh pairs;
- `informed`: the recipe against an informed hand, in fresh pairs; where nothing was proved, the program as
  published against it.

What is done is in FILE and is not done again, besides what failed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from public_programs import Public, public
from tuning import in_lanes, in_this_lane, options

from lab.provenance import RESULTS
from lab.result_file import opened, read
from lab.tuning.parts import Row, Setup, is_done
from lab.tuning.rows import cell, ratio
from lab.tuning.work import plan, work_on

KINDS = ("tune", "verify", "informed")


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def line_of(program: Public, rows: dict[str, Row]) -> list[str]:
    """A row of the table."""
    tune = rows.get("tune")
    if tune is None or not is_done(tune):
        return [program.name, *[""] * 3, "failed" if tune else "", ""]
    at_s = tune["moments_s"]
    found = ratio(tune["stated"], tune["ci"]) if tune["recipe"] else f"nothing: {tune['verdict']}"
    # Without a recipe, the hand is compared with the program as published.
    return [
        program.name,
        seconds(at_s.get("diagnosis")),
        seconds(at_s.get("in_process")),
        seconds(at_s.get("recipe")),
        found,
        cell("informed", rows),
    ]


def show(programs: Sequence[Public], result: dict[str, Any]) -> None:
    heads = ("program", "s to diagnosis", "s to first answer", "s to recipe", "speed-up", "against the hand")
    print(f"\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for program in programs:
        if rows := result.get("programs", {}).get(program.name):
            print(f"| {' | '.join(line_of(program, rows))} |")
    print("~ undecided, = same, ᵂ the hand leaves the program as published")


def main() -> None:
    parser = options(__doc__, KINDS, "dynotune-public")
    parser.add_argument("--sources", type=Path, required=True, metavar="FOLDER")
    given = parser.parse_args()
    if given.lanes > 1 and not given.plan:
        in_lanes(given.lanes, sys.argv[1:])
        show(public(given.sources, given.device), read(given.out or _file(given.device)))
        return
    until_s = time.monotonic() + given.budget_s
    out, kinds = given.out or _file(given.device), given.part or KINDS
    programs = in_this_lane(public(given.sources, given.device), given)
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    setup = Setup(given.device, given.work.absolute(), given.keep, not given.no_lock, given.tune_s)
    if given.plan:
        plan(programs, kinds, read(out), setup, given.work)
        return
    for program in programs:
        if missing := program.missing():
            print(f"{program.name}: left out, without {', '.join(missing)}", flush=True)
            with opened(out) as result:
                result.setdefault("left_out", {})[program.name] = missing
            continue
        work_on(program, kinds, setup, out, lambda: until_s - time.monotonic())
    if given.lane == "0/1":
        show(programs, read(out))


def _file(device: str) -> Path:
    return RESULTS / f"public_{device}.json"


if __name__ == "__main__":
    main()
