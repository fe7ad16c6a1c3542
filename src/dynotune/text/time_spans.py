"""Read lengths of time as people write them."""

import re

from dynotune.schema.errors import UsageError

_UNITS_S = {"ms": 1e-3, "s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str, option: str) -> float:
    """Convert `40ms`, `90s`, `15m`, `15min` or `1.5h` to seconds.

    Raises UsageError if the text is not a length of time, or has no unit.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)?", text.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(
            f"{option} {text} is not a length of time.", hint=f"For example {option} 90s or {option} 15m."
        )
    if match[2] is None:
        raise UsageError(
            f"{option} {text} has no unit.",
            hint=f"Say {option} {match[1]}s for seconds or {option} {match[1]}m for minutes.",
        )
    return float(match[1]) * _UNITS_S[match[2]]
