"""Does `dynotune tune` beat the program as written, an informed hand, other tuners, and is it near the best there is?

    python benchmarks/tuning.py --device cuda [--plan] [--only NAME]… [--part KIND]… [--lanes N | --lane I/N]
        [--budget-s S] [--out FILE] [--tables FOLDER] [--work FOLDER] [--keep FOLDER] [--no-lock]

Of each program (tuning_programs.py), in this order:

- `tune`: `dynotune tune --allow numerics`;
- `verify`: `dynotune recipe verify`: the recipe against the program as written, in fresh pairs;
- `informed`: the recipe against the program with TF32, autocast, a worker a core and pinned memory, in fresh pairs;
- `autotune`, `slowai`: what pytorch-autotune and slowai choose for it; `autotune-pairs`, `slowai-pairs`: the recipe
  against that, in fresh pairs;
- `table`, `table-tune`: of two programs a full factorial table, block by block, and tune's choice in a quarter of its
  time.

Whatever is in FILE and FOLDER is not done again, besides what failed. Nothing is begun that by its estimate would end
after `--budget-s`; a part that is killed is lost. Several of these may write to one FILE: `--lane 0/2` takes every
other program, and `--lanes 2` begins both, each with one of two GPUs and half of the cores. `--plan` says what is left
and how long it takes, and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from hardware import RESULTS, describe
from kept import opened, read
from tuning_parts import KINDS, PEERS, Row, Setup, do, estimate_s, is_done, least_s, needs_no_run, run_s
from tuning_programs import PROGRAMS, Program
from tuning_tables import QUARTER, against_best, block_s, blocks_of, empty, num_blocks, record, took_s, tune_within

from dynotune.schema.errors import DynotuneError

TABLE_KINDS = ("table", "table-tune")
Taken = TypeVar("Taken", bound=Program)


# What is left


def kinds_of(program: Program, device: str) -> list[str]:
    return [*KINDS, *(TABLE_KINDS if device in program.table else ())]


def left(program: Program, rows: dict[str, Row], kind: str) -> bool:
    """Whether a part is to be done and can be: what it needs is there, and it is not."""
    if is_done(rows.get(kind)):
        return False
    needed = {"verify": "tune", "informed": "tune"}.get(kind, "")
    needs = [needed] if needed else []
    if kind.endswith("-pairs"):
        needs = ["tune", kind.removesuffix("-pairs")]
    return all(is_done(rows.get(one)) for one in needs)


def plan(
    programs: Sequence[Program], kinds: Sequence[str], result: dict[str, Any], setup: Setup, tables: Path
) -> float:
    """Print what is left of each program, with minutes; their sum, in seconds."""
    total_s = 0.0
    for program in programs:
        if missing := program.missing():
            print(f"{program.name:14} skipped, without {', '.join(missing)}")
            continue
        rows = result.get("programs", {}).get(program.name, {})
        cells = []
        for kind in kinds_of(program, setup.device):
            if kind not in kinds:
                continue
            part_s = planned_s(kind, program, rows, result.get("tables", {}).get(program.name, {}), setup, tables)
            total_s += part_s
            cells.append(f"{kind} {part_s / 60:.1f}" if part_s else f"{kind} done")
        print(f"{program.name:14} {', '.join(cells)}")
    print(f"left: {total_s / 60:.0f} minutes of one lane")
    return total_s


def planned_s(kind: str, program: Program, rows: dict[str, Row], found: Row, setup: Setup, tables: Path) -> float:
    if kind in TABLE_KINDS:
        table = table_of(program, setup.device, tables)
        whole_s = blocks_of(setup) * block_s(program, table, setup.device)
        if kind == "table-tune":
            return 0.0 if is_done(found or None) else QUARTER * max(whole_s, took_s(table))
        return (blocks_of(setup) - num_blocks(table)) * block_s(program, table, setup.device)
    if is_done(rows.get(kind)) or (kind.removesuffix("-pairs") in program.cannot):
        return 0.0
    return estimate_s(kind, program, rows, setup)


def table_of(program: Program, device: str, tables: Path) -> Row:
    file = table_file(program, device, tables)
    return dict(json.loads(file.read_text())) if file.is_file() else empty(program.table[device])


def table_file(program: Program, device: str, tables: Path) -> Path:
    return tables / f"{program.name}_{device}.json"


# Doing it


def work_on(program: Program, kinds: Sequence[str], setup: Setup, out: Path, left_s: Callable[[], float]) -> None:
    """All parts of one program that are left and fit into the time."""
    for kind in KINDS:
        rows = read(out).get("programs", {}).get(program.name, {})
        if kind not in kinds or not left(program, rows, kind):
            continue
        row = needs_no_run(kind, program, rows)
        if row is None:
            if least_s(kind, program, rows, setup) > left_s():
                print(f"{program.name}: {kind} is for another time", flush=True)
                continue
            began = datetime.now(UTC).isoformat(timespec="seconds")
            row = {"gpu": _card(), **do(kind, program, rows, setup, left_s()), "began": began}
        with opened(out) as result:
            result.setdefault("programs", {}).setdefault(program.name, {})[kind] = row
        print(f"{program.name}: {kind} {told(kind, row)}", flush=True)


def work_on_table(
    program: Program, kinds: Sequence[str], setup: Setup, out: Path, tables: Path, left_s: Callable[[], float]
) -> None:
    file, blocks = table_file(program, setup.device, tables), blocks_of(setup)
    if "table" in kinds:
        try:
            record(program, setup, file, blocks=blocks, left_s=left_s, say=lambda text: print(text, flush=True))
        except DynotuneError as error:
            print(f"{program.name}: its table is not gone on with: {error.message}", flush=True)
    table = table_of(program, setup.device, tables)
    whole = num_blocks(table) >= blocks
    if "table-tune" not in kinds or not whole or is_done(read(out).get("tables", {}).get(program.name)):
        return
    if QUARTER * took_s(table) + run_s(program, {}, setup.device) > left_s():
        print(f"{program.name}: table-tune is for another time", flush=True)
        return
    row = {"gpu": _card(), **tune_within(program, setup, table)}
    if "failed" not in row:
        row |= against_best(table, row["recipe"])
    with opened(out) as result:
        result.setdefault("tables", {})[program.name] = row
    print(f"{program.name}: table-tune {told('table-tune', row)}", flush=True)


def _card() -> object:
    """Of this lane: not every row has to come from one machine."""
    return describe()["hardware"]["gpu.name"]  # type: ignore[index]


def told(kind: str, row: Row) -> str:
    """A part in a few words."""
    for key in ("failed", "cannot", "no_answer"):
        if row.get(key):
            return f"{key}: {str(row[key]).strip()[-300:]}"
    if kind == "tune":
        return f"{ratio(row['stated'], row['ci'])}  {' '.join(row['recipe']) or 'no recipe'}  ({row['wall_s']} s)"
    if kind in PEERS:
        claimed = "" if row.get("claimed") is None else f", claims {row['claimed']:.2f}×"
        return f"chooses {row['chosen'] or 'nothing'}{claimed}  ({row['took_s']} s)"
    if kind == "table-tune":
        reached = "no measured arm of the table" if row["share"] is None else f"{row['share']:.1%} of the best"
        return f"{reached} in {row['wall_s'] / row['table_s']:.0%} of the table's time"
    if "as" in row:
        return f"is {row['as']}"
    outcome = f"{row['outcome']}, " if "outcome" in row else ""
    return f"{outcome}{row.get('verdict', '')} {ratio(row.get('speedup'), row.get('ci'))}".strip()


# The table


def ratio(speedup: float | None, ci: Sequence[float] | None) -> str:
    if speedup is None:
        return "-"
    return f"{speedup:.2f}×" + (f" [{ci[0]:.2f}, {ci[1]:.2f}]" if ci else "")


def cell(kind: str, rows: dict[str, Row]) -> str:
    """The recipe's speed over what this part compares it with; `~` where it was not decided."""
    row = rows.get(kind)
    if row is None:
        return ""
    if "cannot" in row or "failed" in row:
        return "cannot" if row.get("cannot") else "failed"
    if "as" in row:
        if row["as"] != "written":
            return cell(row["as"], rows)
        return cell("verify", rows) + "ᵂ"
    if row.get("outcome") == "nothing to verify":
        return "1.00×"
    mark = {"undecided": "~", "same": "="}.get(row.get("verdict") or "", "")
    return mark + ratio(row.get("speedup"), row.get("ci"))


def summary(result: dict[str, Any]) -> Row:
    """Counts, and geometric means of what was measured."""
    rows = result.get("programs", {}).values()
    verified = [row["verify"]["outcome"] for row in rows if is_done(row.get("verify"))]
    verified = [outcome for outcome in verified if outcome in _OUTCOMES]
    found: Row = {"verified": len(verified), **{outcome: verified.count(outcome) for outcome in _OUTCOMES}}
    for kind in ("verify", "informed", "autotune-pairs", "slowai-pairs"):
        ratios = [value for row in rows if (value := _value(kind, row)) is not None]
        verdicts = [row[kind].get("verdict") for row in rows if is_done(row.get(kind))]
        found[kind] = {
            "num": len(ratios),
            "mean": math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None,
            "faster": verdicts.count("faster"),
            "slower": verdicts.count("slower"),
        }
    return found


_OUTCOMES = ("met", "not-met", "undecided")


def _value(kind: str, rows: Row) -> float | None:
    row = rows.get(kind, {})
    if row.get("outcome") == "nothing to verify":
        return 1.0
    if "as" in row:
        return _value("verify" if row["as"] == "written" else row["as"], rows)
    return row.get("speedup")


def show(programs: Sequence[Program], result: dict[str, Any]) -> None:
    print("\n| program | recipe | × as written | × informed | × autotune | × slowai | verify |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for program in programs:
        rows = result.get("programs", {}).get(program.name)
        if not rows:
            continue
        tune = rows.get("tune", {})
        recipe = " ".join(tune.get("recipe", [])) or ("none" if is_done(tune or None) else "")
        cells = [cell(kind, rows) for kind in ("verify", "informed", "autotune-pairs", "slowai-pairs")]
        verify = rows.get("verify", {})
        outcome = verify.get("outcome", "") if is_done(verify) else ""
        print(f"| {program.name} | {recipe} | {' | '.join(cells)} | {outcome} |")
    print("~ undecided, = same, ᵂ chose the program as written")
    for name, row in result.get("tables", {}).items():
        chose = " ".join(row.get("recipe", [])) or "-"
        print(f"table of {name}: {told('table-tune', row)}; chose {chose}, best {row.get('best')}")
    found = summary(result)
    print(f"recipe verify: met {found['met']} of {found['verified']}")


def in_lanes(num: int, words: Sequence[str]) -> None:
    """This program once for each lane, on a GPU and cores of its own; the last value of an option counts."""
    cpus = sorted(os.sched_getaffinity(0))
    size = max(1, len(cpus) // num)
    running = []
    for lane in range(num):
        cores = ",".join(map(str, cpus[lane * size : (lane + 1) * size]))
        mine = [*words, "--lanes", "1", "--lane", f"{lane}/{num}", "--no-lock"]
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": str(lane)}
        running.append(subprocess.Popen(["taskset", "-c", cores, sys.executable, sys.argv[0], *mine], env=env))
    for process in running:
        process.wait()


def options(about: str | None, kinds: Sequence[str], work: str) -> argparse.ArgumentParser:
    """What benchmarks of programs and parts are asked by. `work`: a name for the folder of what programs read."""
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
    setup = Setup(given.device, given.work.absolute(), given.keep, not given.no_lock, given.tune_s, given.blocks)
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
