"""Whether a program computes the same, by the losses that it prints: those of two arms against each other,
and against what the program differs from itself."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from lab.tuning.parts import Row

NUMBER = r"\s*(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|nan|inf)"
TOLERANCE = 0.05
"""Of the losses' relative difference, where a program repeats its own."""
LEAST = 2
"""Losses that two runs have to have in common."""


def printed(text: str, before: str) -> list[float]:
    """The numbers that stand after a regular expression, in order."""
    lines = text.replace("\r", "\n")
    return [float(number) for number in re.findall(f"(?:{before}){NUMBER}", lines, re.MULTILINE)]


def of_run(folder: Path, before: str) -> list[float]:
    """The losses that one run printed, to its output or beside it."""
    texts = [
        file.read_text(errors="replace") for name in ("stdout", "stderr") if (file := folder / name).is_file()
    ]
    return max((printed(text, before) for text in texts), key=len, default=[])


def difference(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Median relative difference of the later half of the losses that both have; None where these are few.

    A loss that is no number differs by infinity.
    """
    both = list(zip(one, other, strict=False))
    if len(both) < LEAST:
        return None
    later = both[len(both) // 2 :]
    found = [abs(a - b) / max(abs(a), 1e-12) for a, b in later]
    return statistics.median(value if value == value else float("inf") for value in found)


def compared(comparison: Row, records: Path, before: str) -> Row:
    """What the pairs of a comparison printed.

    Returns:
        losses: num, the fewest that two runs have in common; difference, between the arms; own, between runs
        of the baseline; ok. Nothing where no losses are known.
    """
    arms = [
        (of_run(records / pair["baseline_run"], before), of_run(records / pair["candidate_run"], before))
        for pair in comparison["pairs"]
    ]
    between = [found for one, other in arms if (found := difference(one, other)) is not None]
    own = [
        found
        for (one, _), (other, _) in itertools.pairwise(arms)
        if (found := difference(one, other)) is not None
    ]
    if not between:
        return {}
    apart, noise = statistics.median(between), statistics.median(own) if own else 0.0
    return {
        "losses": {
            "num": min(min(len(one), len(other)) for one, other in arms),
            "difference": apart,
            "own": noise,
            "ok": apart <= max(TOLERANCE, 2.0 * noise),
        }
    }
