"""Say what was recorded, and divide totals by the number of steps; lay out lists of a trace."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dynotune.report.blocks import Cell, Column, Phrase, Piece, Section, Span, Table
from dynotune.schema.trace_summary import TraceSummary
from dynotune.text import words

NUM_OF_A_MACHINE = 8
"""Up to as many devices and ranks are listed whatever `top` says: one machine's."""
STEP_SOURCES = {"profiler": "marked by the profiler", "repetition": "found from repetition"}
ALIKE = 1.1
"""Steps that differ by less, also from the window's part that falls to each, are called alike. A host that
runs ahead has shorter steps: the window ends when the device has done their work."""


@dataclass(frozen=True, slots=True)
class Per:
    """The number by which the window's totals are divided before they are shown.

    Args:
        num_steps: None if the number of steps is not known; then totals are shown undivided.
    """

    num_steps: int | None

    @classmethod
    def of(cls, summary: TraceSummary) -> Per:
        return cls(summary.num_steps or None)

    @property
    def words(self) -> str:
        return "a step" if self.num_steps else "in the window"

    def part(self, total: float) -> float:
        return total / (self.num_steps or 1)

    def time(self, total_s: float | None) -> str:
        return words.duration(None if total_s is None else self.part(total_s), column=True)

    def count(self, total: float) -> str:
        return words.count(self.part(total))

    def num_bytes(self, total: float | None) -> str:
        return words.UNKNOWN if total is None else words.num_bytes(self.part(total))


def recorded(summary: TraceSummary) -> str:
    """Name the profiler that recorded the trace, and the devices."""
    devices = summary.devices
    ranks = {device.rank for device in devices if device.rank is not None}
    by_name = Counter(device.name for device in devices)
    told = []
    for name, num in by_name.items():
        if name:
            told.append(f"{num} × {name}" if num > 1 else name)
        else:
            told.append(f"{num} GPUs of unknown name" if num > 1 else "a GPU of unknown name")
    told = told or ["no GPU"]
    if len(ranks) > 1:
        told.insert(0, f"{len(ranks)} ranks")
    elif ranks:
        told.insert(0, f"rank {ranks.pop()}")
    return words.plain(", ".join([f"by {summary.recorder}", *told]))


def window(summary: TraceSummary) -> str:
    if summary.window_s is None:
        return "nothing in it has a duration"
    whole = words.duration(summary.window_s)
    if not summary.num_steps:
        return f"{whole}, steps not known"
    told = [STEP_SOURCES[summary.step_source]] if summary.step_source else []
    mean_s = summary.window_s / summary.num_steps
    if summary.step_s:
        shortest_s, longest_s = min(summary.step_s), max(summary.step_s)
        if max(longest_s, mean_s) > ALIKE * min(shortest_s, mean_s):
            on_host = words.duration(shortest_s)
            if longest_s > shortest_s:
                median_s = statistics.median(summary.step_s)
                on_host += f" to {words.duration(longest_s)}, median {words.duration(median_s)}"
            told.append(f"on the host {on_host}")
    steps = "1 step" if summary.num_steps == 1 else f"{summary.num_steps:,} steps of {words.duration(mean_s)}"
    return f"{whole}, {steps}" + (f" ({'; '.join(told)})" if told else "")


def short_kernel(name: str) -> Phrase:
    """Return a kernel's name, shortened by `short_kernel_name`."""
    return Span(words.short_kernel_name(name), "dim")


def listed(
    name: str, detail: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], limit: int
) -> list[Piece]:
    """Lay out rows below a title, `limit` of them in the terminal; [] if there is no row."""
    if not rows:
        return []
    table = Table("", columns, rows, most=limit, all_by=f"--top {len(rows)}")
    return [Section(name, [table], aside=detail)]


def numbers(*names: str) -> list[Column]:
    return [Column(name, "number") for name in names]
