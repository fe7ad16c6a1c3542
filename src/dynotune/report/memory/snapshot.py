"""A memory snapshot in the terminal: what the allocator holds, for whom, and what is wasted."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dynotune.report.trace_parts import left_out, place, prose, rows_of, title
from dynotune.schema.facts import Unknown
from dynotune.schema.memory_snapshot import DeviceMemory, History, Holder, MemoryCause, MemorySnapshot
from dynotune.text import words

__all__ = ["snapshot_report"]


def snapshot_report(snapshot: MemorySnapshot, *, top: int = 5) -> RenderableType:
    """The whole answer.

    Args:
        top: rows of each list.
    """
    parts: list[RenderableType] = [_head(snapshot), *_causes(snapshot.causes, top)]
    for device in snapshot.devices:
        parts += _device(device, top)
    if snapshot.settings:
        told = ", ".join(f"{name}={value}" for name, value in sorted(snapshot.settings.items()))
        parts.append(Text.assemble(("allocator: ", "dim"), words.plain(told)))
    if snapshot.notes:
        parts.append(Text("\n").join(Text.assemble(("note: ", "yellow"), prose(note)) for note in snapshot.notes))
    return Group(*(part if at == 0 else Padding(part, (1, 0, 0, 0)) for at, part in enumerate(parts)))


def _head(snapshot: MemorySnapshot) -> RenderableType:
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(style="dim", no_wrap=True)
    lines.add_column(overflow="fold")
    lines.add_row("snapshot", Text(words.plain(snapshot.file)))
    for device in snapshot.devices:
        lines.add_row(f"device {device.device}", _in_words(device))
    return lines


def _in_words(device: DeviceMemory) -> Text:
    told = f"{words.num_bytes(device.reserved_bytes)} reserved, {words.num_bytes(device.allocated_bytes)} allocated"
    if device.fragmentation is not None:
        told += f", {words.fine_share(device.fragmentation)} fragmented"
    return Text(told, style="bold")


def _causes(causes: Sequence[MemoryCause], top: int) -> list[RenderableType]:
    if not causes:
        return []
    rows = []
    for cause in causes[:top]:
        text = Text.assemble((words.plain(cause.id), "bold"), "  ", prose(cause.claim))
        told = [text, *([where] if (where := place(cause.where)) else [])]
        told += [prose(line, style="dim") for line in cause.evidence]
        rows.append(
            (
                "" if cause.num_bytes is None else words.num_bytes(cause.num_bytes),
                "" if cause.share is None else words.fine_share(cause.share),
                f"device {cause.device}",
                Text("\n").join(told),
            )
        )
    columns = [("", "right"), ("", "right"), ("", "left"), ("", "place")]
    rest = [left_out(len(causes), top)] if len(causes) > top else []
    return [Group(title("Wasted or churned"), rows_of(columns, rows), *rest)]


def _device(device: DeviceMemory, top: int) -> list[RenderableType]:
    facts = [
        ("in use", words.num_bytes(device.active_bytes)),
        ("asked for", "" if device.requested_bytes is None else words.num_bytes(device.requested_bytes)),
        ("free between blocks in use", words.num_bytes(device.inactive_split_bytes)),
        ("largest free block", words.num_bytes(device.largest_free_bytes)),
        ("segments", words.count(device.num_segments) + _expandable(device.expandable)),
        *_history(device.history),
    ]
    rows = [(Text(name, style="dim"), value) for name, value in facts if value]
    found: list[RenderableType] = [
        Group(title(f"Device {device.device}"), rows_of([("", "left"), ("", "place")], rows))
    ]
    found += _holders(f"Held on device {device.device}", "", device.holders, top)
    if isinstance(device.history, History) and not isinstance(device.history.peak, Unknown):
        peak = device.history.peak
        found += _holders(
            f"Held at the peak on device {device.device}", words.num_bytes(peak.requested_bytes), peak.holders, top
        )
    return found


def _expandable(expandable: bool | None) -> str:
    return "" if expandable is None else ", expandable" if expandable else ", not expandable"


def _history(history: History | Unknown) -> list[tuple[str, str]]:
    if isinstance(history, Unknown):
        return [("history", f"not known: {words.plain(history.reason)}")]
    length = "" if history.duration_s is None else f" in {words.duration(history.duration_s)}"
    peak = history.peak
    if isinstance(peak, Unknown):
        highest = f"not known: {words.plain(peak.reason)}"
    else:
        at = "" if peak.at_s is None else f" after {words.duration(peak.at_s)}"
        highest = f"{words.num_bytes(peak.requested_bytes)} asked for{at}"
    return [
        ("history", f"{words.count(history.num_events)} events{length}"),
        ("peak", highest),
        (
            "cudaMalloc, cudaFree",
            f"{words.count(history.num_segment_allocs)}, {words.count(history.num_segment_frees)}",
        ),
        ("flushes of the cache", words.count(history.num_flushes)),
        ("empty_cache", words.count(history.num_empty_caches)),
        ("out of memory", words.count(history.num_ooms)),
    ]


def _holders(name: str, detail: str, holders: Sequence[Holder], top: int) -> list[RenderableType]:
    if not holders:
        return []
    rows = [
        (
            words.num_bytes(holder.requested_bytes),
            words.count(holder.num_blocks),
            place(holder.where) or Text("place not recorded", style="dim"),
        )
        for holder in holders[:top]
    ]
    rest = [left_out(len(holders), top)] if len(holders) > top else []
    table = rows_of([("size", "right"), ("blocks", "right"), ("allocated by", "place")], rows)
    return [Group(title(name, detail), table, *rest)]
