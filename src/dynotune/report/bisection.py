"""Lay out a bisection: the first bad step, its size, what it changed, and the comparisons on the way."""

from __future__ import annotations

from collections.abc import Iterator

from dynotune.report.blocks import (
    Answer,
    Cell,
    Column,
    CommandLine,
    Fields,
    Listing,
    Note,
    On,
    Piece,
    Report,
    Section,
    Span,
    Table,
    Tone,
    wary,
)
from dynotune.schema.bisection import Bisection, BisectionPoint, BisectionStep, Ending, Side
from dynotune.text import words

_SIDES: dict[Side, Tone] = {"good": "good", "bad": "bad", "skipped": "dim"}
_ANSWERS: dict[Ending | None, tuple[str, Tone]] = {
    "found": ("First bad", "bad"),
    "range": ("First bad, among", "wary"),
    "unsure": ("Perhaps", "wary"),
    "not-reproducible": ("Not reproducible here", "note"),
    None: ("Not finished", "wary"),
}
_COLUMNS = ("point", "against", "speed-up", "interval", "pairs", "side")
_MOST_CHANGED = 40


def layout(bisection: Bisection) -> Report:
    ends = (bisection.good, Span(" good, ", "dim"), bisection.bad, Span(" bad", "dim"))
    command = words.command(bisection.run.command)
    return Report(
        kicker="dynotune bisect",
        answer=_answer(bisection),
        command=words.shell(bisection.run.command),
        head=[Fields([("command", command)], on=On.LONG), Fields([("ends", ends)])],
        use=_use(bisection),
        sections=[
            *([Note(bisection.reason)] if bisection.reason else []),
            *([_changed(bisection)] if bisection.changed else []),
            *([_way(bisection)] if bisection.shown is not None else []),
            *_notes(bisection),
            *wary(bisection.warnings),
        ],
        footer=f"Bisection {bisection.id}. All that is shown here is in its bisection.json.",
    )


def _answer(bisection: Bisection) -> Answer:
    label, tone = _ANSWERS[bisection.ending]
    if bisection.first_bad is None:
        return Answer(large=label, line=Span(label, tone), tone=tone)
    point = _name(bisection.points[bisection.first_bad])
    size = "" if bisection.confirmed is None else _size(bisection.confirmed)
    return Answer(
        large=label,
        rest=point,
        line=(Span(f"{label}: ", tone), Span(point, "strong"), f": {size}" if size else ""),
        sentence=f"{size[:1].upper()}{size[1:]}." if size else "",
        tone=tone,
    )


def _size(step: BisectionStep) -> str:
    if step.speedup is None:
        return ""
    more = f"it takes {100 * (1 / step.speedup - 1):.1f}% more than the point before it"
    return f"{more}, {words.with_interval(step.speedup, step.ci)}"


def _changed(bisection: Bisection) -> Piece:
    lines = list(map(words.plain, bisection.changed[:_MOST_CHANGED]))
    if len(bisection.changed) > _MOST_CHANGED:
        lines.append(f"… and {len(bisection.changed) - _MOST_CHANGED} more lines")
    return Section("What changed", [Listing("", lines)])


def _way(bisection: Bisection) -> Piece:
    steps = [bisection.shown, *bisection.steps]
    if bisection.confirmed != bisection.shown:
        steps.append(bisection.confirmed)
    columns = [Column(name, "number" if name in ("speed-up", "pairs") else "whole") for name in _COLUMNS]
    rows = [_row(bisection, step) for step in steps if step is not None]
    return Section("Comparisons", [Table("", columns, rows, cards=False)])


def _row(bisection: Bisection, step: BisectionStep) -> list[Cell]:
    sure = "" if step.is_sure or step.side == "skipped" else ", not sure"
    return [
        _short(bisection.points[step.candidate]),
        _short(bisection.points[step.baseline]),
        words.times(step.speedup, digits=3) if step.speedup is not None else "",
        words.interval(step.ci) if step.ci is not None else "",
        str(step.num_pairs or ""),
        Span(f"{step.side}{sure}", _SIDES[step.side]),
    ]


def _notes(bisection: Bisection) -> Iterator[Piece]:
    for step in bisection.steps:
        if step.side == "skipped":
            name = _short(bisection.points[step.candidate])
            yield Note(f"{name}: {step.reason}", label="skipped")
    if bisection.not_switched:
        yield Note(
            f"Differences that cannot be reproduced on this machine: {'; '.join(bisection.not_switched)}"
        )
    if bisection.ending in ("found", "unsure", "range"):
        yield Note(
            f"A point is bad if it runs below {words.times(bisection.against, digits=3)} of the good "
            f"end's speed, half of the difference. At most {bisection.error:.0%} of such searches end at a "
            "wrong step, if one step made the difference.",
            tone="dim",
        )


def _use(bisection: Bisection) -> list[CommandLine]:
    if not bisection.next_command:
        return []
    more = ["dynotune", "bisect", *bisection.next_command, "--", *words.shell(bisection.run.command)]
    return [CommandLine("This commit is a merge. Search in the commits that it brought in", more)]


def _name(point: BisectionPoint) -> str:
    # The title of a version or a difference holds its name.
    return f"{_short(point)} {point.title}" if point.name not in point.title else point.title


def _short(point: BisectionPoint) -> str:
    return point.name[:12] if len(point.name) == 40 else point.name
