"""What `dynotune tune` finds in three minutes, in programs that nobody of this project wrote, as they are
published; how far that is from an informed hand; and what others find in the same time.

    python -m benchmarks.field fetch --sources FOLDER [--mirror FOLDER] [--only NAME]…
    python -m benchmarks.field prepare --sources FOLDER --device cuda [--work FOLDER] [--only NAME]…
    python -m benchmarks.field run --sources FOLDER --device cuda [--plan] [--only NAME]… [--part KIND]…
        [--lanes N | --lane I/N] [--until-s S] [--tune-s S] [--pairs-s S] [--out FILE] [--work FOLDER]
        [--keep FOLDER] [--no-lock]
    python -m benchmarks.field show --device cuda [--out FILE]
    python -m benchmarks.field page

`fetch` puts the files that programs need, at the revisions of lab/field/sources.py, into FOLDER: from GitHub,
or from git directories OWNER+NAME/repo of `--mirror`. All are 17 MB, and nothing of them is committed.
`prepare` makes what programs read and prints the command of each; `run` does that itself where it is not
done. Nothing is downloaded while programs run: what they read is made up (lab/field/reads.py), and weights
are random.

Of each program `run` does these parts, each for a bounded time:

- `tune`: `dynotune tune --budget 180s`, with no other option, and when it knew what;
- `verify`: `dynotune recipe verify`: the recipe against the program as published, in fresh pairs;
- `hand`: the informed hand against the program as published, in fresh pairs;
- `informed`: the recipe against the informed hand, in fresh pairs, if `--part` names it;
- `train-doctor`, `traceml`, `aitune`, `slowai`, `autotune`: what these find in as much time, if `--part`
  names them, or why they cannot take the program; `train-doctor-pairs`: the recipe against what train-doctor
  chose, in fresh pairs.

What is done is in FILE and is not done again, besides what failed; a part that is killed is lost, and no
other. With `--until-s` nothing is begun that may end later. `--lanes 2` begins two, each
with one GPU and half of the cores; `--lane 0/2` is one of them. `page` prints docs/reference/field.md, of the
results that are kept.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.field.page import page
from lab.field.programs import published
from lab.field.published import DEVICES, Published
from lab.field.rows import row_of, show
from lab.field.sources import SOURCES, export
from lab.provenance import RESULTS
from lab.result_file import opened, read
from lab.tuning.asked import end_whole, in_lanes, in_this_lane, left_of, options
from lab.tuning.parts import GRACE_S, PEERS, Setup
from lab.tuning.programs import folder_of
from lab.tuning.work import plan, work_on

USUAL = ("tune", "verify", "hand")
KINDS = (*USUAL, "informed", *PEERS, "train-doctor-pairs")
PAIRS_S = 180.0
"""Most seconds of a comparison: a program is to take six minutes of a GPU, with its hand and verification."""


def main() -> None:
    parser = options(__doc__, KINDS, "dynotune-field")
    parser.add_argument("what", choices=("fetch", "prepare", "run", "show", "page"))
    parser.add_argument("--sources", type=Path, default=Path("field_sources"), metavar="FOLDER")
    parser.add_argument("--mirror", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    end_whole()
    known = published(given.sources, given.device)
    if unknown := set(given.only) - {program.name for program in known}:
        parser.error(f"no program of this device is named {', '.join(sorted(unknown))}")
    programs = in_this_lane(known, given)
    out = given.out or RESULTS / f"field_{given.device}.json"
    work = given.work.absolute() / given.device
    if given.what == "fetch":
        fetch(programs, given.sources, given.mirror, bool(given.only))
    elif given.what == "prepare":
        prepare(programs, work)
    elif given.what == "run" and given.lanes > 1 and not given.plan:
        in_lanes(given.lanes, ["-m", "benchmarks.field"], sys.argv[1:])
        show(read(out))
    elif given.what == "run":
        run(programs, given, out, work)
    elif given.what == "page":
        files = [RESULTS / f"field_{device}.json" for device in DEVICES]
        print(page(files, RESULTS / "field_power.json"), end="")
    else:
        show(read(out))


def fetch(programs: Sequence[Published], sources: Path, mirror: Path | None, only: bool) -> None:
    """Of all repositories, or of those of the programs."""
    wanted = {program.repository for program in programs if program.repository} if only else set(SOURCES)
    for repository in sorted(wanted):
        reason = export(SOURCES[repository], sources, mirror)
        print(f"{repository}: {reason or SOURCES[repository].folder(sources)}", flush=True)


def prepare(programs: Sequence[Published], work: Path) -> None:
    for program in programs:
        if missing := program.missing():
            print(f"# {program.name}: left out, without {', '.join(missing)}", flush=True)
            continue
        folder = folder_of(program, work)
        env = [f"{name}={shlex.quote(value)}" for name, value in changed(program).items()]
        words = shlex.join(program.command(program.device))
        print(f"# {program.name}\ncd {shlex.quote(str(folder))} && env {' '.join(env)} {words}", flush=True)


def changed(program: Published) -> dict[str, str]:
    """What a program's environment has beside ours."""
    return {name: value for name, value in program.environment().items() if os.environ.get(name) != value}


def run(programs: Sequence[Published], given: argparse.Namespace, out: Path, work: Path) -> None:
    # A part may take so much longer than its estimate before it is ended.
    left_s = left_of(given.until_s - GRACE_S)
    kinds = [kind for kind in KINDS if kind in (given.part or USUAL)]
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    setup = Setup(
        given.device, work, given.keep, not given.no_lock, given.tune_s, pairs_s=given.pairs_s or PAIRS_S
    )
    if given.plan:
        plan(programs, kinds, read(out), setup, rows_of=row_of)
        return
    for program in programs:
        with opened(out) as result:
            row_of(result, program)["left_out"] = program.missing()
        if missing := program.missing():
            print(f"{program.name}: left out, without {', '.join(missing)}", flush=True)
            continue
        work_on(program, kinds, setup, out, left_s, row_of)
    if given.lane == "0/1":
        show(read(out))


if __name__ == "__main__":
    main()
