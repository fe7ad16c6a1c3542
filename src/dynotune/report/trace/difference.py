"""Show two traces of one program in the terminal: what changed, part by part and cause by cause."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text

from dynotune.report.bars import OF_A_WINDOW
from dynotune.report.layout import fields, spaced, table
from dynotune.report.trace_parts import Per, listed, on_one_scale, place, prose, recorded, title, window
from dynotune.schema.trace_summary import TraceDifference, TraceSummary
from dynotune.text import words

NOT_NAMED = "–"
CHANGE = [("before", "right"), ("after", "right"), ("change", "right")]


def difference_report(difference: TraceDifference, *, top: int = 5) -> RenderableType:
    """Show the whole difference, with `top` rows per list."""
    parts: list[RenderableType] = [_head(difference), *_parts(difference)]
    parts += filter(None, [_causes(difference, top), _classes(difference, top)])
    return spaced([*parts, *_notes(difference)])


def _head(difference: TraceDifference) -> RenderableType:
    rows: list[tuple[str, str | Text]] = []
    for name, summary in (("before", difference.before), ("after", difference.after)):
        files = ", ".join(words.plain(file) for file in summary.files)
        rows.append((name, f"{files}\n{recorded(summary)}; {window(summary)}"))
    return fields([*rows, ("verdict", prose(difference.verdict, style="bold"))])


def _parts(difference: TraceDifference) -> list[RenderableType]:
    """Show both windows, or both steps, as bars on one scale, and part by part."""
    before, after = difference.before.shares, difference.after.shares
    whole_before_s, whole_after_s = difference.before_s, difference.after_s
    if before is None or after is None or not whole_before_s or not whole_after_s:
        return []
    bars = on_one_scale(OF_A_WINDOW, [("before", before, whole_before_s), ("after", after, whole_after_s)])
    rows = table(":whole", "part:whole", *(f"{header}:number" for header, _ in CHANGE))
    for part in OF_A_WINDOW:
        before_s, after_s = part.of(before) * whole_before_s, part.of(after) * whole_after_s
        if before_s or after_s:
            rows.add_row(part, part.label, *_change(before_s, after_s))
    rows.add_row("", "together", *_change(whole_before_s, whole_after_s))
    what = "A step" if difference.per == "step" else "The window"
    return [Group(title(what, "on the slowest device, both on one scale"), bars), rows]


def _change(before_s: float, after_s: float) -> tuple[str, str, Text]:
    change_s = after_s - before_s
    style = "" if abs(change_s) < 0.01 * max(before_s, after_s) else "green" if change_s < 0 else "red"
    return (
        words.duration(before_s, column=True),
        words.duration(after_s, column=True),
        Text(words.change(change_s, column=True), style=style),
    )


def _causes(difference: TraceDifference, top: int) -> RenderableType | None:
    rows = []
    for each in difference.changes:
        before, after, change = _change(each.before_s, each.after_s)
        cause = Text(words.plain(each.id), style="bold")
        if where := place(each.where):
            cause = Text("\n").join([cause, where])
        # A cause that a trace does not name may have cost little there: that is not 0.
        rows.append(
            (before if each.before_s else NOT_NAMED, after if each.after_s else NOT_NAMED, change, cause)
        )
    detail = f"{_per(difference).words}; {NOT_NAMED} is a cause that the trace does not show"
    return listed("Time lost", detail, [*CHANGE, ("cause", "place")], rows, top)


def _per(difference: TraceDifference, num_steps: int | None = 1) -> Per:
    return Per(num_steps if difference.per == "step" else None)


def _classes(difference: TraceDifference, top: int) -> RenderableType | None:
    """Show kernels by class, averaged over ranks."""
    before, after = (
        {
            name: _per(difference, summary.num_steps).part(total_s / len(summary.kernels))
            for name, total_s in _class_times(summary).items()
        }
        for summary in (difference.before, difference.after)
    )
    if not before or not after:
        return None
    both = {name: (before.get(name, 0.0), after.get(name, 0.0)) for name in before.keys() | after.keys()}
    names = sorted(both, key=lambda name: (-abs(both[name][1] - both[name][0]), -sum(both[name]), name))
    rows = [(name, *_change(*both[name])) for name in names]
    return listed("Kernels by class", _per(difference).words, [("class", "left"), *CHANGE], rows, 2 * top)


def _class_times(summary: TraceSummary) -> dict[str, float]:
    times: dict[str, float] = {}
    for each in (each for kernels in summary.kernels for each in kernels.classes):
        times[each.name] = times.get(each.name, 0.0) + each.total_s
    return times


def _notes(difference: TraceDifference) -> list[RenderableType]:
    told = []
    sides = (difference.before, difference.after)
    names = [sorted(device.name or "unnamed GPU" for device in summary.devices) for summary in sides]
    if names[0] != names[1]:
        told.append(f"Recorded on different devices: {_list(names[0])} before, {_list(names[1])} after.")
    for which, summary in (("before", difference.before), ("after", difference.after)):
        told += [f"{which}: {note}" for note in summary.notes]
    return (
        [Text("\n").join(Text.assemble(("note: ", "yellow"), words.plain(note)) for note in told)]
        if told
        else []
    )


def _list(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names)) or "no GPU"
