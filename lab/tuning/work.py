"""What is left to do of each program that `benchmarks/tuning.py` tunes, how long it takes, and doing it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from dynotune.schema.errors import DynotuneError
from lab.provenance import describe
from lab.result_file import opened, read
from lab.tuning.parts import PEERS, Row, Setup, do, estimate_s, is_done, least_s, needs_no_run, run_s
from lab.tuning.programs import Program
from lab.tuning.rows import told
from lab.tuning.tables import (
    QUARTER,
    against_best,
    block_s,
    blocks_of,
    empty,
    num_blocks,
    record,
    took_s,
    tune_within,
)

Taken = TypeVar("Taken", bound=Program)
TABLE_KINDS = ("table", "table-tune")
OF_A_RECIPE = ("verify", "informed", *(f"{tool}-pairs" for tool in PEERS))
"""Parts that compare the recipe of a tune with something."""


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
    programs: Sequence[Taken],
    kinds: Sequence[str],
    result: dict[str, Any],
    setup: Setup,
    tables: Path = Path(),
    rows_of: Callable[[dict[str, Any], Taken], dict[str, Row]] | None = None,
) -> float:
    """Print what is left of each program, with minutes; their sum, in seconds.

    Args:
        tables: folder of the tables, of programs that have any.
        rows_of: where a result keeps the parts of a program; None: where `rows_in` does.
    """
    total_s = 0.0
    for program in programs:
        if missing := program.missing():
            print(f"{program.name:14} skipped, without {', '.join(missing)}")
            continue
        rows = (rows_of or rows_in)(result, program)
        cells = []
        for kind in kinds:
            if kind in TABLE_KINDS and setup.device not in program.table:
                continue
            part_s = planned_s(
                kind, program, rows, result.get("tables", {}).get(program.name, {}), setup, tables
            )
            total_s += part_s
            cells.append(f"{kind} {part_s / 60:.1f}" if part_s else f"{kind} done")
        print(f"{program.name:14} {', '.join(cells)}")
    print(f"left: {total_s / 60:.0f} minutes of one lane")
    return total_s


def planned_s(
    kind: str, program: Program, rows: dict[str, Row], found: Row, setup: Setup, tables: Path
) -> float:
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


def rows_in(result: dict[str, Any], program: Program) -> dict[str, Row]:
    """A program's parts in a result, which what is put into them stays in."""
    rows: dict[str, Row] = result.setdefault("programs", {}).setdefault(program.name, {})
    return rows


def work_on(
    program: Taken,
    kinds: Sequence[str],
    setup: Setup,
    out: Path,
    left_s: Callable[[], float],
    rows_of: Callable[[dict[str, Any], Taken], dict[str, Row]] | None = None,
) -> None:
    """All parts of one program that are left and fit into the time, in the given order.

    Args:
        rows_of: where a result keeps the parts of a program; None: where `rows_in` does.
    """
    rows_of = rows_of or rows_in
    for kind in kinds:
        rows = rows_of(read(out), program)
        if kind in TABLE_KINDS or not left(program, rows, kind):
            continue
        row = needs_no_run(kind, program, rows)
        if row is None:
            if least_s(kind, program, rows, setup) > left_s():
                print(f"{program.name}: {kind} is for another time", flush=True)
                continue
            began = datetime.now(UTC).isoformat(timespec="seconds")
            row = {"gpu": _card(), **do(kind, program, rows, setup, left_s()), "began": began}
        with opened(out) as result:
            kept = rows_of(result, program)
            kept[kind] = row
            if kind == "tune":
                # They are of the recipe of an earlier tune.
                for other in [other for other in kept if other in OF_A_RECIPE]:
                    del kept[other]
        print(f"{program.name}: {kind} {told(kind, row)}", flush=True)


def work_on_table(
    program: Program, kinds: Sequence[str], setup: Setup, out: Path, tables: Path, left_s: Callable[[], float]
) -> None:
    file, blocks = table_file(program, setup.device, tables), blocks_of(setup)
    if "table" in kinds:
        try:
            record(
                program, setup, file, blocks=blocks, left_s=left_s, say=lambda text: print(text, flush=True)
            )
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
