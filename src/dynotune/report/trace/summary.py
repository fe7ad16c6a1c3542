"""What a trace says, in the terminal: the verdict, where a step goes, what it was lost to, then the tables."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from dynotune.report.bars import OF_A_WINDOW, Bar, Legend
from dynotune.report.layout import fields, spaced, table
from dynotune.report.trace.tables import tables
from dynotune.report.trace_parts import (
    NUM_OF_A_MACHINE,
    Per,
    left_out,
    place,
    prose,
    recorded,
    rows_of,
    title,
    window,
)
from dynotune.schema.trace_summary import Cause, DeviceTime, TraceSummary
from dynotune.text import words

# The rest is in the JSON.
NUM_EVIDENCE, LONGEST_EVIDENCE = 6, 160
NEXT = "What a remedy is worth: dynotune compare SETTING -- COMMAND; dynotune knobs lists settings."


def trace_report(summary: TraceSummary, *, top: int = 5) -> RenderableType:
    """Show the whole answer, with `top` rows of each list."""
    parts = [_head(summary), *_shares(summary), *_devices(summary, top), *_causes(summary, top)]
    return spaced([*parts, *tables(summary, top), *_notes(summary)])


def _head(summary: TraceSummary) -> RenderableType:
    files, num_more = [words.plain(file) for file in summary.files], len(summary.files) - NUM_OF_A_MACHINE
    more = [f"and {num_more} more"] if num_more > 0 else []
    rows: list[tuple[str, str | Text]] = [
        ("trace", "\n".join([*files[:NUM_OF_A_MACHINE], *more])),
        ("recorded", recorded(summary)),
        *([("window", window(summary))] if summary.window_s is not None else []),
        ("verdict", prose(summary.verdict, style="bold")),
    ]
    return fields(rows)


def _notes(summary: TraceSummary) -> list[RenderableType]:
    found: list[RenderableType] = []
    if summary.notes:
        found.append(Text("\n").join(Text.assemble(("note: ", "yellow"), words.plain(note)) for note in summary.notes))
    if summary.unknown:
        rows = [
            (Text(words.plain(name), style="dim"), Text(words.plain(why.reason), style="dim"))
            for name, why in sorted(summary.unknown.items())
        ]
        found.append(Group(title("Not known from this trace"), rows_of([("", "left"), ("", "place")], rows)))
    return found


def _shares(summary: TraceSummary) -> list[RenderableType]:
    shares, window_s, per = summary.shares, summary.window_s, Per.of(summary)
    if shares is None or window_s is None:
        return []
    what = "A step" if per.num_steps else "The window"
    detail = f"{words.duration(per.part(window_s))}, on {_shown_device(summary.devices)}"
    legend = Legend(OF_A_WINDOW, shares, lambda share: per.time(share * window_s))
    return [Group(title(what, detail), Bar(OF_A_WINDOW, shares), legend)]


def _shown_device(devices: Sequence[DeviceTime]) -> str:
    """Return the device that the shares are of: where the window is longest, the busiest."""
    if len(devices) < 2:
        return "the device"
    slowest = max(devices, key=lambda device: (device.window_s, device.busy_s))
    return f"device {slowest.device}" + (f" of rank {slowest.rank}" if slowest.rank is not None else "")


def _devices(summary: TraceSummary, top: int) -> list[RenderableType]:
    if len(summary.devices) < 2:
        return []
    limit = max(top, NUM_OF_A_MACHINE)
    by_idle = sorted(summary.devices, key=lambda device: device.idle_s / (device.window_s or 1), reverse=True)
    chosen = by_idle[:limit] if len(by_idle) > limit else summary.devices
    shares = (f"{name}:number" for name in ("busy", "compute", "copy", "comm."))
    rows = table("rank:number", "device:number", "window:number", ":wide", *shares)
    for device in chosen:
        rows.add_row(*_device(device))
    rest = [left_out(len(by_idle), limit)] if len(by_idle) > limit else []
    return [Group(title("Devices"), rows, *rest)]


def _device(device: DeviceTime) -> list[RenderableType]:
    window_s = device.window_s
    shares = [
        words.fine_share(part_s / window_s) if window_s else words.UNKNOWN
        for part_s in (device.busy_s, device.compute_s, device.copy_s, device.communication_s)
    ]
    rank = "" if device.rank is None else str(device.rank)
    return [rank, str(device.device), words.duration(window_s), Bar(OF_A_WINDOW, device.shares, widest=60), *shares]


def _causes(summary: TraceSummary, top: int) -> list[RenderableType]:
    if not summary.causes:
        return []
    per = Per.of(summary)
    causes = sorted(summary.causes, key=lambda cause: cause.lost_s, reverse=True)
    grid = table(":number", ":number", ":text")
    for cause in causes[:top]:
        grid.add_row(Text(per.time(cause.lost_s), style="bold"), words.fine_share(cause.share), _cause(cause))
    rest = [left_out(len(causes), top)] if len(causes) > top else []
    rest.append(Text(NEXT, style="dim"))
    return [Group(title("Time lost", f"{per.words}: upper bounds, each cause on its own"), grid, *rest)]


def _cause(cause: Cause) -> Text:
    lines = [Text.assemble((words.plain(cause.id), "bold"), "  ", prose(cause.claim))]
    if where := place(cause.where):
        lines.append(where)
    lines += [prose(line, style="dim", longest=LONGEST_EVIDENCE) for line in cause.evidence[:NUM_EVIDENCE]]
    return Text("\n").join(lines)
