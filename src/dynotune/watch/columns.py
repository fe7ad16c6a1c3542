"""Labels and formats of values in tables, derived from a field's name and the unit at the name's end."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from dynotune.schema.facts import Unknown
from dynotune.schema.watch import View
from dynotune.text import words
from dynotune.text.units import unit_of


class Table(NamedTuple):
    """A table to display, with cells as text."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def tables(view: View) -> list[Table]:
    """Return all tables of the state with at least one row, without columns in which every value is
    unknown."""
    gpus = [] if isinstance(view.gpus, Unknown) else view.gpus
    parts: dict[str, Sequence[msgspec.Struct]] = {
        "Ranks": view.steps_s,
        "GPUs": gpus,
        "Processes": view.processes,
    }
    return [_table(title, rows) for title, rows in parts.items() if rows]


def unknown(view: View) -> list[str]:
    """Return a text on why some values are unknown."""
    gpus = (
        [msgspec.structs.asdict(gpu) for gpu in view.gpus]
        if isinstance(view.gpus, list)
        else [{"gpus": view.gpus}]
    )
    found = [
        (field, value.reason) for gpu in gpus for field, value in gpu.items() if isinstance(value, Unknown)
    ]
    reasons = {reason: unit_of(field)[0].replace("_", " ") for field, reason in found}
    return [f"{name}: {reason}" for reason, name in reasons.items()]


def _table(title: str, rows: Sequence[msgspec.Struct]) -> Table:
    fields = rows[0].__struct_fields__
    shown = [field for field in fields if any(getattr(row, field) not in (None, "", []) for row in rows)]
    names = [unit_of(field)[0].removeprefix("num_").replace("_", " ") for field in shown]
    return Table(title, names, [[_cell(field, getattr(row, field)) for field in shown] for row in rows])


def _cell(field: str, value: Any) -> str:
    if value is None or isinstance(value, Unknown):
        return words.UNKNOWN
    if unit := unit_of(field)[1]:
        return unit.write(value)
    if isinstance(value, list | str):
        return words.plain(value if isinstance(value, str) else ", ".join(value))
    return f"{value:,.1f}" if isinstance(value, float) else f"{value}"
