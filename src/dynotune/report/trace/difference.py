"""Lay out two traces of one program: what changed, part by part and cause by cause."""

from __future__ import annotations

from collections.abc import Iterable

from dynotune.report.blocks import (
    Answer,
    Bar,
    BarRow,
    Bars,
    Cell,
    Column,
    Fields,
    Lines,
    Marked,
    Phrase,
    Piece,
    Report,
    Section,
    Span,
    Table,
    Tone,
    wary,
)
from dynotune.report.parts import OF_A_WINDOW
from dynotune.report.places import place, prose
from dynotune.report.steps import segments
from dynotune.report.trace.window import Per, listed, numbers, recorded, window
from dynotune.schema.trace_summary import TraceDifference, TraceSummary
from dynotune.text import words

NOT_NAMED = "–"
CHANGE = numbers("before", "after", "change")


def layout(difference: TraceDifference, *, top: int = 5) -> Report:
    """Lay out the whole difference, with `top` rows per list in the terminal."""
    verdict = prose(difference.verdict)
    return Report(
        kicker="dynotune trace --compare",
        answer=Answer(large=_large(difference), line=verdict, sentence=verdict),
        head=[Fields(_head(difference))],
        sections=[
            *_parts(difference),
            *_causes(difference, top),
            *_classes(difference, top),
            *wary(_notes(difference), "note"),
        ],
        footer="dynotune trace --json FILE writes all that is shown here.",
    )


def _large(difference: TraceDifference) -> str:
    before_s, after_s = difference.before_s, difference.after_s
    if not before_s or not after_s:
        return "Difference"
    return words.change(after_s - before_s)


def _head(difference: TraceDifference) -> list[tuple[str, Lines]]:
    rows = []
    for name, summary in (("before", difference.before), ("after", difference.after)):
        said = f"{recorded(summary)}; {window(summary)}"
        rows.append((name, Lines((", ".join(summary.files), said))))
    return rows


def _parts(difference: TraceDifference) -> list[Piece]:
    """Lay out both windows, or both steps, as bars on one scale, and part by part."""
    before, after = difference.before.shares, difference.after.shares
    whole_before_s, whole_after_s = difference.before_s, difference.after_s
    if before is None or after is None or not whole_before_s or not whole_after_s:
        return []
    longest_s = max(whole_before_s, whole_after_s)
    bars = [
        BarRow(
            name,
            words.duration(whole_s, column=True),
            Bar(segments(OF_A_WINDOW, shares), whole_s / longest_s),
        )
        for name, shares, whole_s in (("before", before, whole_before_s), ("after", after, whole_after_s))
    ]
    rows: list[list[Cell]] = []
    for part in OF_A_WINDOW:
        before_s, after_s = part.of(before) * whole_before_s, part.of(after) * whole_after_s
        if before_s or after_s:
            rows.append([Marked(part, part.label), *_change(before_s, after_s)])
    rows.append(["  together", *_change(whole_before_s, whole_after_s)])
    what = "A step" if difference.per == "step" else "The window"
    table = Table("", [Column("  part", "whole"), *CHANGE], rows, cards=False)
    drawing = Bars(f"{what} before and after, by part", bars)
    picture = Section(what, [drawing], aside="on the slowest device; both bars have the same scale")
    return [picture, Section("Part by part", [table], in_nav=False)]


def _change(before_s: float, after_s: float) -> tuple[Phrase, Phrase, Phrase]:
    change_s = after_s - before_s
    tone: Tone = "" if abs(change_s) < 0.01 * max(before_s, after_s) else "good" if change_s < 0 else "bad"
    return (
        words.duration(before_s, column=True),
        words.duration(after_s, column=True),
        Span(words.change(change_s, column=True), tone),
    )


def _causes(difference: TraceDifference, top: int) -> list[Piece]:
    rows: list[list[Cell]] = []
    for each in difference.changes:
        before, after, change = _change(each.before_s, each.after_s)
        lines: list[Phrase] = [Span(each.id, "strong")]
        if where := place(each.where):
            lines.append(where)
        # A cause that a trace does not name was too small to list there: its cost is not known to be 0.
        sides = [before if each.before_s else NOT_NAMED, after if each.after_s else NOT_NAMED]
        rows.append([*sides, change, Lines(tuple(lines))])
    detail = f"{_per(difference).words}; {NOT_NAMED} is a cause that the trace does not show"
    return listed("Time lost", detail, [*CHANGE, Column("cause")], rows, top)


def _per(difference: TraceDifference, num_steps: int | None = 1) -> Per:
    return Per(num_steps if difference.per == "step" else None)


def _classes(difference: TraceDifference, top: int) -> list[Piece]:
    """Show kernels by class, averaged over ranks."""
    before, after = (
        {
            name: _per(difference, summary.num_steps).part(total_s / len(summary.kernels))
            for name, total_s in _class_times(summary).items()
        }
        for summary in (difference.before, difference.after)
    )
    if not before or not after:
        return []
    both = {name: (before.get(name, 0.0), after.get(name, 0.0)) for name in before.keys() | after.keys()}
    names = sorted(both, key=lambda name: (-abs(both[name][1] - both[name][0]), -sum(both[name]), name))
    rows = [(name, *_change(*both[name])) for name in names]
    return listed("Kernels by class", _per(difference).words, [Column("class"), *CHANGE], rows, 2 * top)


def _class_times(summary: TraceSummary) -> dict[str, float]:
    times: dict[str, float] = {}
    for each in (each for kernels in summary.kernels for each in kernels.classes):
        times[each.name] = times.get(each.name, 0.0) + each.total_s
    return times


def _notes(difference: TraceDifference) -> list[str]:
    told = []
    sides = (difference.before, difference.after)
    names = [sorted(device.name or "unnamed GPU" for device in summary.devices) for summary in sides]
    if names[0] != names[1]:
        told.append(f"Recorded on different devices: {_list(names[0])} before, {_list(names[1])} after.")
    for which, summary in (("before", difference.before), ("after", difference.after)):
        told += [f"{which}: {note}" for note in summary.notes]
    return told


def _list(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names)) or "no GPU"
