"""Lay out where the time of a step or sample goes: as bars on one scale, and as a table."""

from __future__ import annotations

from collections.abc import Sequence

from dynotune.report.blocks import Bar, BarRow, Bars, Cell, Column, LegendEntry, Marked, Segment, Table
from dynotune.report.breakdown import Breakdown
from dynotune.report.parts import OF_A_STEP, Part
from dynotune.text import words

NOTHING = "–"


def segments(parts: Sequence[Part], shares: object) -> tuple[Segment, ...]:
    return tuple(Segment(part, part.of(shares)) for part in parts)


def stacked(sides: Sequence[Breakdown]) -> Bars:
    """Lay out breakdowns as bars; where all are timed, each is as long as its time."""
    wholes_s = [side.whole_s for side in sides if side.whole_s is not None]
    is_timed = len(wholes_s) == len(sides) and max(wholes_s, default=0.0) > 0
    longest_s = max(wholes_s) if is_timed else 1.0
    rows = [
        BarRow(
            side.name if len(sides) > 1 or side.name == "before" else "",
            words.duration(side.whole_s, column=True) if is_timed else "",
            Bar(segments(OF_A_STEP, side.shares), (side.whole_s or 1.0) / longest_s if is_timed else 1.0),
        )
        for side in sides
    ]
    has_device = any(side.has_device for side in sides)
    legend = [
        LegendEntry(part, part.named(has_device), _figures(part, sides))
        for part in OF_A_STEP
        if any(part.of(side.shares) > 0 for side in sides)
    ]
    named = " and ".join(side.name for side in sides)
    return Bars(f"Where a {sides[0].of_what} goes, {named}", rows, legend)


def _figures(part: Part, sides: Sequence[Breakdown]) -> list[str]:
    """Return the part's share and time; of several sides, its shares."""
    if len(sides) > 1:
        return [" → ".join(words.fine_share(part.of(side.shares)) for side in sides)]
    share, whole_s = part.of(sides[0].shares), sides[0].whole_s
    time = [words.duration(share * whole_s, column=True)] if whole_s is not None else []
    return [words.fine_share(share), *time]


def parts_table(sides: Sequence[Breakdown]) -> Table:
    """Lay out time and share of each part, for each breakdown under its name."""
    of_what = sides[0].of_what if sides else "step"
    names = [name for side in sides for name in (side.name.capitalize(), f"{side.name.capitalize()}, share")]
    header = [Column(f"Part of a {of_what}"), *(Column(name, "number") for name in names)]
    has_device = any(side.has_device for side in sides)
    rows: list[list[Cell]] = []
    for part in OF_A_STEP:
        shares = [part.of(side.shares) for side in sides]
        if any(share > 0 for share in shares):
            cells = [cell for side, share in zip(sides, shares, strict=True) for cell in _cells(side, share)]
            rows.append([Marked(part, part.named(has_device)), *cells])
    if rows:
        rows.append([f"A {of_what}", *(cell for side in sides for cell in (_time(side, 1.0), "100%"))])
    return Table("Time and share of each part", header, rows, folded=True)


def _cells(side: Breakdown, share: float) -> list[str]:
    return [_time(side, share) if share else NOTHING, words.fine_share(share)]


def _time(side: Breakdown, share: float) -> str:
    return NOTHING if side.whole_s is None else words.duration(share * side.whole_s, column=True)
