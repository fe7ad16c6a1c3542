"""Provide pieces of a trace's report: tables, places, and the number of steps by which times are divided."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dynotune.report.bars import Bar, Part
from dynotune.report.layout import table
from dynotune.schema.trace_summary import Place, TraceSummary
from dynotune.text import words

LONGEST_PATH = 48
FUNCTION = re.compile(r"(.*?)(?:\((\d+)\)|(?<=\.py)): (.*)", flags=re.DOTALL)
# From the beginning of a word, else a word of n letters is read n times.
IN_PROSE = re.compile(r"(?<![^\s(])[^\s(]+\.py(\(\d+\))?: ")
# Up to as many devices and ranks are listed whatever `top` says: one machine's.
NUM_OF_A_MACHINE = 8
STEP_SOURCES = {"profiler": "marked by the profiler", "repetition": "found from repetition"}
# Steps that differ by less, also from the window's part that falls to each, are called alike. A host that
# runs ahead has shorter steps: the window ends when the device has done their work.
ALIKE = 1.1


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


def on_one_scale(parts: Sequence[Part], sides: Iterable[tuple[str, object, float]]) -> Table:
    """Show bars below each other, each as long as its time; each bar has a name, shares and seconds."""
    known = list(sides)
    longest_s = max(length_s for _, _, length_s in known)
    rows = table(":whole", ":number", ":wide")
    for name, shares, length_s in known:
        bar = Bar(parts, shares, of_width=length_s / longest_s)
        rows.add_row(name, words.duration(length_s, column=True), bar)
    return rows


def prose(text: str, *, style: str = "", longest: int = 1000) -> Text:
    """Write a sentence from elsewhere, with the places in it formatted by `place`."""
    shown = IN_PROSE.sub(lambda found: _function(found[0]), text[: 4 * longest])
    return Text(words.plain(shown, longest=longest), style=style)


def place(where: Place) -> Text:
    """Write `train.py:31 step · aten::item · cudaStreamSynchronize`; empty if the place is unknown."""
    found = [(_function(where.function), "cyan")] if where.function else []
    found += [(words.plain(name, longest=200), "dim") for name in (where.operator, where.call) if name]
    return Text(" · ").join(Text(name, style=style) for name, style in found)


def short_kernel(name: str) -> Text:
    """Return a kernel's name, shortened by `short_kernel_name`, on one line."""
    return Text(words.plain(words.short_kernel_name(name)), style="dim", no_wrap=True, overflow="ellipsis")


def title(text: str, detail: str = "") -> Text:
    return Text.assemble((text, "bold"), (f", {detail}" if detail else "", "dim"))


def left_out(num: int, top: int) -> Text:
    """Write how many rows of a list are not shown."""
    return Text(f"{num - top} more: --top {num}", style="dim")


def listed(
    name: str,
    detail: str,
    columns: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[str | Text]],
    limit: int,
) -> RenderableType | None:
    """Show up to `limit` rows below a title, and how many more there are; None if there is no row."""
    if not rows:
        return None
    rest = [left_out(len(rows), limit)] if len(rows) > limit else []
    return Group(title(name, detail), rows_of(columns, rows[:limit]), *rest)


def rows_of(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str | Text]]) -> Table:
    """Build a table in the style of the other reports.

    Args:
        columns: header and alignment: "right" for numbers, which are never wrapped, "left" for text, "place"
            for text that may be wrapped anywhere. Columns that are empty in every row are left out.
    """
    texts = [[cell if isinstance(cell, Text) else Text(words.plain(cell)) for cell in row] for row in rows]
    shown = [at for at in range(len(columns)) if any(row[at].plain for row in texts)]
    found = table(*(f"{columns[at][0]}:{'figure' if columns[at][1] == 'right' else 'text'}" for at in shown))
    for row in texts:
        found.add_row(*(row[at] for at in shown))
    return found


def _function(name: str) -> str:
    """Write `file.py(31): step` as `file.py:31 step`, which editors and terminals can open."""
    match = FUNCTION.fullmatch(name)
    if match is None:
        return words.plain(name, longest=200)
    path, line, function = match.groups()
    for packages in ("site-packages/", "dist-packages/"):
        path = path.rpartition(packages)[2]
    if len(path) > LONGEST_PATH:
        path = "…/" + "/".join(path.split("/")[-3:])
    return words.plain(f"{path}:{line} {function}" if line else f"{path} {function}", longest=200)
