"""Units of values, by the end of a field's name: how a value is written, and what Prometheus calls it."""

from collections.abc import Callable
from typing import NamedTuple

from dynotune.text import words


class Unit(NamedTuple):
    """A unit as text, Prometheus's name of its base unit, and how many base units one of this unit is."""

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
    """Split a field's name into the name without its unit, and the unit; None if it has no unit."""
    ending = next((ending for ending in UNITS if field.endswith(ending)), None)
    return (field, None) if ending is None else (field.removesuffix(ending), UNITS[ending])
