"""How a value is called and written in tables and metrics: by its field's name and the unit that ends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from dynotune.schema.facts import Unknown
from dynotune.schema.watch import View
from dynotune.text import words


class Unit(NamedTuple):
    """How it is written, and what Prometheus calls it: so many of that are one of these."""

    write: Callable[[float], str]
    metric: str
    factor: float = 1.0


UNITS = {
    "_bytes_per_s": Unit(words.bandwidth, "bytes_per_second"),
    "_per_s": Unit(words.rate, "per_second"),
    "_s": Unit(words.duration, "seconds"),
    "_bytes": Unit(words.num_bytes, "bytes"),
    "_share": Unit(words.share, "ratio"),
    "_percent": Unit("{:.0f}%".format, "ratio", 0.01),
    "_w": Unit("{:.0f} W".format, "watts"),
    "_mhz": Unit("{:.0f} MHz".format, "hertz", 1e6),
    "_c": Unit("{:.0f} °C".format, "celsius"),
}


def unit_of(field: str) -> tuple[str, Unit | None]:
    """The field's name without its unit, and the unit; None where it is no measure."""
    ending = next((ending for ending in UNITS if field.endswith(ending)), None)
    return (field, None) if ending is None else (field.removesuffix(ending), UNITS[ending])


class Table(NamedTuple):
    """A table to show, its cells as text."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def tables(view: View) -> list[Table]:
    """All of the view's; without columns of which nothing is known."""
    gpus = [] if isinstance(view.gpus, Unknown) else view.gpus
    return [_table("Ranks", view.steps_s), _table("GPUs", gpus), _table("Processes", view.processes)]


def unknown(view: View) -> list[str]:
    """Why the values are unknown that are."""
    gpus = [msgspec.structs.asdict(gpu) for gpu in view.gpus] if isinstance(view.gpus, list) else [{"gpus": view.gpus}]
    reasons = {value.reason: unit_of(field)[0] for gpu in gpus for field, value in gpu.items() if _is_unknown(value)}
    return [f"{name.replace('_', ' ')}: {reason}" for reason, name in reasons.items()]


def _table(title: str, rows: Sequence[msgspec.Struct]) -> Table:
    fields = (
        [field for field in rows[0].__struct_fields__ if any(_is_known(row, field) for row in rows)] if rows else []
    )
    names = [unit_of(field)[0].removeprefix("num_").replace("_", " ") for field in fields]
    return Table(title, names, [[_cell(field, getattr(row, field)) for field in fields] for row in rows])


def _is_known(row: msgspec.Struct, field: str) -> bool:
    return getattr(row, field) not in (None, "", [])


def _cell(field: str, value: Any) -> str:
    if value is None or _is_unknown(value):
        return words.UNKNOWN
    if isinstance(value, list):
        return words.plain(", ".join(value))
    unit = unit_of(field)[1]
    if unit is not None:
        return unit.write(value)
    return words.plain(value) if isinstance(value, str) else f"{value:,.1f}" if isinstance(value, float) else f"{value}"


def _is_unknown(value: Any) -> bool:
    return isinstance(value, Unknown)
