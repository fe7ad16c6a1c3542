"""What a trace says, in the terminal: the verdict, where a step goes, what it was lost to, then the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dynotune.report.trace.tables import tables
from dynotune.report.trace_parts import (
    NUM_OF_A_MACHINE,
    PARTS,
    Bar,
    Glyph,
    Per,
    left_out,
    of_device,
    place,
    prose,
    recorded,
    rows_of,
    title,
    window,
)
from dynotune.schema.facts import Unknown
from dynotune.schema.trace_summary import Cause, DeviceTime, Shares, TraceSummary
from dynotune.text import words

# The rest is in the JSON.
NUM_EVIDENCE, LONGEST_EVIDENCE = 6, 160
WIDTH_OF_TWO_COLUMNS = 78
NEXT = "What a remedy is worth: dynotune compare SETTING -- COMMAND; dynotune knobs lists settings."
JUSTIFIED: list[Literal["left", "right"]] = ["left", "left", "right", "right"]


def trace_report(summary: TraceSummary, *, top: int = 5) -> RenderableType:
    """The whole answer.

    Args:
        top: rows of each list.
    """
    parts: list[RenderableType] = [_head(summary), *_shares(summary), *_devices(summary, top), *_causes(summary, top)]
    parts += tables(summary, top)
    parts += _notes(summary)
    return Group(*(part if at == 0 else Padding(part, (1, 0, 0, 0)) for at, part in enumerate(parts)))


def _head(summary: TraceSummary) -> RenderableType:
    """What was read, and the verdict."""
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(style="dim", no_wrap=True)
    lines.add_column(overflow="fold")
    files = [words.plain(file) for file in summary.files]
    lines.add_row("trace", Text("\n".join([*files[:NUM_OF_A_MACHINE], *_more(len(files) - NUM_OF_A_MACHINE)])))
    lines.add_row("recorded", Text(recorded(summary)))
    if summary.window_s is not None:
        lines.add_row("window", Text(window(summary)))
    lines.add_row("verdict", prose(summary.verdict, style="bold"))
    return lines


def _notes(summary: TraceSummary) -> list[RenderableType]:
    """What is partial, and what this trace cannot tell."""
    found: list[RenderableType] = []
    if summary.notes:
        found.append(Text("\n").join(Text.assemble(("note: ", "yellow"), words.plain(note)) for note in summary.notes))
    if summary.unknown:
        rows = [(Text(words.plain(name), style="dim"), _reason(why)) for name, why in sorted(summary.unknown.items())]
        found.append(Group(title("Not known from this trace"), rows_of([("", "left"), ("", "place")], rows)))
    return found


def _reason(unknown: Unknown) -> Text:
    return Text(words.plain(unknown.reason), style="dim")


def _more(num: int) -> list[str]:
    return [f"and {num} more"] if num > 0 else []


def _shares(summary: TraceSummary) -> list[RenderableType]:
    if summary.shares is None or summary.window_s is None:
        return []
    per = Per.of(summary)
    what = "A step" if per.num_steps else "The window"
    detail = f"{words.duration(per.part(summary.window_s))}, on {_shown_device(summary.devices)}"
    return [Group(title(what, detail), Bar(summary.shares), _Legend(summary.shares, summary.window_s, per))]


def _shown_device(devices: Sequence[DeviceTime]) -> str:
    """Which one the shares are of: where the window is longest, the busiest."""
    if len(devices) < 2:
        return "the device"
    slowest = max(devices, key=lambda device: (device.window_s, device.busy_s))
    return f"device {slowest.device}" + (f" of rank {slowest.rank}" if slowest.rank is not None else "")


@dataclass(frozen=True, slots=True)
class _Legend:
    """The parts with their shares and times, in two columns where there is room."""

    shares: Shares
    window_s: float
    per: Per

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        num_columns = 2 if options.max_width >= WIDTH_OF_TWO_COLUMNS else 1
        legend = Table.grid(padding=(0, 2, 0, 0))
        for justify in JUSTIFIED * num_columns:
            legend.add_column(justify=justify, no_wrap=True)
        entries = [
            (Glyph(part), part.label, words.fine_share(share), self.per.time(share * self.window_s))
            for part in PARTS
            if (share := part.of(self.shares)) > 0
        ]
        num_rows = -(-len(entries) // num_columns)
        for at in range(num_rows):
            legend.add_row(*(cell for entry in entries[at::num_rows] for cell in entry))
        yield legend


def _devices(summary: TraceSummary, top: int) -> list[RenderableType]:
    if len(summary.devices) < 2:
        return []
    limit = max(top, NUM_OF_A_MACHINE)
    by_idle = sorted(summary.devices, key=lambda device: device.idle_s / (device.window_s or 1), reverse=True)
    chosen = by_idle[:limit] if len(by_idle) > limit else summary.devices
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("device", justify="right", no_wrap=True)
    table.add_column("window", justify="right", no_wrap=True)
    table.add_column("", ratio=1)
    for header in ("busy", "compute", "copy", "comm."):
        table.add_column(header, justify="right", no_wrap=True)
    for device in chosen:
        table.add_row(*_device(device))
    rest = [left_out(len(by_idle), limit)] if len(by_idle) > limit else []
    return [Group(title("Devices"), table, *rest)]


def _device(device: DeviceTime) -> list[RenderableType]:
    window_s = device.window_s
    shares = [
        words.fine_share(part_s / window_s) if window_s else words.UNKNOWN
        for part_s in (device.busy_s, device.compute_s, device.copy_s, device.communication_s)
    ]
    rank = "" if device.rank is None else str(device.rank)
    return [rank, str(device.device), words.duration(window_s), Bar(of_device(device), widest=60), *shares]


def _causes(summary: TraceSummary, top: int) -> list[RenderableType]:
    if not summary.causes:
        return []
    per = Per.of(summary)
    causes = sorted(summary.causes, key=lambda cause: cause.lost_s, reverse=True)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
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
