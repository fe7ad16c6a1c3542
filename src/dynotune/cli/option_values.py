"""Convert the values of options to numbers with a unit, and refuse values that an option does not take."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import typer

from dynotune.schema.errors import UsageError
from dynotune.text import time_spans

LONGEST_NAME = 100
_UNITS_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def seconds_of(param: typer.CallbackParam, value: str | None) -> float | None:
    """Convert the value of an option that is a length of time; used as the option's callback."""
    return None if value is None else time_spans.seconds(value, param.opts[0])


def num_lanes(value: object) -> int:
    """Convert the value of `--lanes`: a number from 1, or `auto`, which becomes 0."""
    text = str(value)
    if text != "auto" and not (text.isdecimal() and int(text)):
        raise UsageError(
            f"--lanes {text} is not a number of lanes.", hint="For example --lanes 2, or --lanes auto."
        )
    return 0 if text == "auto" else int(text)


def one_of(*names: str) -> Callable[[typer.CallbackParam, Any], Any]:
    """Build a callback for an option that takes one of `names`; the callback raises UsageError for any other
    word."""

    def check(param: typer.CallbackParam, value: Any) -> Any:
        if value is not None and value not in names:
            known = " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
            raise UsageError(
                f"{param.opts[0]} {value} does not exist.", hint=f"{param.opts[0]} takes {known}."
            )
        return value

    return check


def number(least: float, most: float = math.inf) -> dict[str, Any]:
    """Build the callback of an option that takes a number; its error names the range, which the help
    omits."""

    def check(value: Any) -> Any:
        if value is not None and not least <= value <= most:
            upto = "or more" if most == math.inf or most >= 10**12 > value else f"to {most:,.0f}"
            raise typer.BadParameter(f"it takes {least:g} {upto}, not {value}.")
        return value

    return {"metavar": "N", "callback": check}


def study_name_of(name: str) -> str:
    if name and not (name.isprintable() and len(name) <= LONGEST_NAME):
        raise UsageError(
            f"--study {ascii(name)[:50]} is no name.", hint=f"At most {LONGEST_NAME} printable characters."
        )
    return name


def num_bytes(text: str | None, option: str) -> int | None:
    """Convert `500M`, `2G`, `1.5GiB` (powers of 1024) or `2GB` (of 1000) to bytes; UsageError if `text` is no
    size."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?", text.strip().lower())
    if match is None or float(match[1]) == 0:
        raise UsageError(f"{option} {text} is not a size.", hint=f"For example {option} 500M or {option} 8G.")
    power = _UNITS_BYTES[match[2]]
    if match[3] == "b":
        power = 1000 ** ((power.bit_length() - 1) // 10)
    return int(float(match[1]) * power)
