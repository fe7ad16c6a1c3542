"""Of tunes of real programs in which every candidate does nothing, how many end in a recipe?

    python benchmarks/real_nothing.py [--device cuda] [--tunes 20] [--settings 8] [--only NAME]… [--lane I/N]
        [--tune-s 120] [--budget-s S] [--out FILE] [--work FOLDER] [--no-lock] [--rounding]

The candidates are environment variables that nothing reads; all others are left out. With --rounding they are
values of `matmul.fp32_precision`, and the programs run in autocast to bfloat16, where that setting rounds
nothing. Programs take turns, each tune has a seed of its own. A tune in FILE is not made again; nothing is
begun that would end after `--budget-s`. At most one recipe in 20 may hold any of them.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lab.provenance import RESULTS
from lab.result_file import opened, read
from lab.tuning.idle import IN_BF16, kept, rounding_words, summary, tunes_of, words_of
from lab.tuning.parts import Setup, is_done, tuned
from lab.tuning.programs import PROGRAMS, folder_of

USUAL = ("mlp", "starved", "gpt", "vit")
SECONDS = {"cuda": 120.0, "cpu": 120.0}
OVERTIME_S = 20.0


def show(result: dict[str, Any]) -> None:
    print("\n| tune | recipe | what became of them | trials |\n| --- | --- | --- | --- |")
    for name, row in sorted(result["tunes"].items()):
        if not is_done(row):
            print(f"| {name} | failed | {row['failed'].strip().splitlines()[-1][:80]} | |")
            continue
        fates = ", ".join(f"{num} {kind}" for kind, num in row["fates"].items())
        print(f"| {name} | {' '.join(row['recipe']) or 'none'} | {fates} | {row['num_trials']} |")
    found = result["summary"]
    print(f"{found['with_a_recipe']} of {found['tunes']} tunes ended in a recipe; {found['trials']} runs")


def parser_of(description: str | None, programs: Sequence[str]) -> argparse.ArgumentParser:
    """What a benchmark of many tunes is asked with; `programs` are those it takes by itself."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--tunes", type=int, default=20, help="at most")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help=f"programs, in place of {', '.join(programs)}"
    )
    parser.add_argument("--lane", default="0/1", metavar="I/N")
    parser.add_argument("--tune-s", type=float)
    parser.add_argument("--budget-s", type=float, default=math.inf)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "dynotune-tuning")
    parser.add_argument("--no-lock", action="store_true")
    return parser


def main() -> None:
    parser = parser_of(__doc__, USUAL)
    parser.add_argument("--settings", type=int, default=8)
    parser.add_argument("--rounding", action="store_true")
    given = parser.parse_args()
    until_s = time.monotonic() + given.budget_s
    name = "real_nothing_rounding" if given.rounding else "real_nothing"
    out = given.out or RESULTS / f"{name}_{given.device}.json"
    setup = Setup(given.device, given.work.absolute(), lock=not given.no_lock)
    budget_s = given.tune_s or SECONDS[given.device]
    lane, lanes = map(int, given.lane.split("/"))
    programs = [one for one in PROGRAMS if one.name in (given.only or USUAL) and not one.missing()]
    if given.rounding:
        programs = [replace(one, env={**one.env, **IN_BF16}) for one in programs]
    for name, (program, seed) in list(tunes_of(programs, given.tunes).items())[lane::lanes]:
        if is_done(read(out).get("tunes", {}).get(name)):
            continue
        if time.monotonic() + budget_s + OVERTIME_S > until_s:
            break
        words = rounding_words(budget_s, seed) if given.rounding else words_of(given.settings, budget_s, seed)
        folder = folder_of(program, setup.work)
        row = kept(tuned(words, program, folder, setup, budget_s + 3 * OVERTIME_S, name))
        with opened(out) as result:
            tunes = result.setdefault("tunes", {})
            tunes[name] = {**row, "seed": seed, "began": datetime.now(UTC).isoformat(timespec="seconds")}
            result["num_settings"], result["summary"] = given.settings, summary(tunes)
        print(f"{name}: {row.get('verdict') or row['failed'][-300:]}", flush=True)
    result = read(out)
    if "tunes" in result:
        show(result)


if __name__ == "__main__":
    main()
