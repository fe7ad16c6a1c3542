"""Ratios with their intervals in the terminal: figures, and a picture of each where there is room."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from dynotune.report import layout
from dynotune.report.blocks import Interval, Tone
from dynotune.text import words

WIDTH_OF_PICTURES = 100
"""From this width on there is room for a picture of each interval."""
PICTURE = 24
LARGEST = 4.0
"""Beyond this ratio an interval is cut: the others would have no room."""


def chosen(rows: Sequence[Interval], room: int) -> list[Interval]:
    """Choose as many rows as there is room for: those that come first, then some of each group."""
    if len(rows) <= room:
        return list(rows)
    kept = [row for row in rows if row.first]
    groups = list(dict.fromkeys(row.group for row in rows))
    for depth in range(len(rows)):
        for group in groups:
            of_group = [row for row in rows if row.group == group and not row.first]
            if depth < len(of_group) and len(kept) < room:
                kept.append(of_group[depth])
    return [row for row in rows if row in kept]


@dataclass(frozen=True, slots=True)
class DrawnForest:
    """Rows of group, name, ratio and interval; in a wide terminal with a picture."""

    rows: Sequence[Interval]
    styles: Mapping[Tone, str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self.rows:
            return
        pictured = options.max_width >= WIDTH_OF_PICTURES and not options.ascii_only
        widest = max(len(row.group) for row in self.rows)
        # Names give way to figures.
        ratio, ends = (max(len(row.figures[at]) for row in self.rows) for at in (0, 1))
        room = options.max_width - (widest + ratio + ends + 8) - (PICTURE + 2 if pictured else 0)
        grid = layout.table()
        grid.add_column(no_wrap=True, min_width=widest)
        name_ratio = 1 if pictured else None
        grid.add_column(overflow="ellipsis", no_wrap=True, ratio=name_ratio, max_width=max(8, room))
        grid.add_column(justify="right", no_wrap=True, min_width=ratio)
        grid.add_column(no_wrap=True, min_width=ends)
        if pictured:
            grid.add_column(no_wrap=True, width=PICTURE)
        scale = Scale.of(self.rows)
        for row in self.rows:
            style = self.styles[row.tone]
            cells = [Text(row.group, style=style), Text(words.plain(row.name)), Text(row.figures[0])]
            cells.append(Text(row.figures[1], style="dim"))
            grid.add_row(*cells, *([scale.picture(row, style)] if pictured else []))
        yield grid


@dataclass(frozen=True, slots=True)
class Scale:
    """A logarithmic scale with a fixed number of columns that includes 1."""

    low: float
    high: float

    @classmethod
    def of(cls, rows: Sequence[Interval]) -> Scale:
        ends = [end for row in rows if row.ratio is not None for end in (row.ratio, *(row.ci or ()))]
        low, high = min([0.95, *ends]), max([1.05, *ends])
        return cls(max(low, 1 / LARGEST), min(high, LARGEST))

    def column(self, ratio: float) -> int:
        clipped = min(max(ratio, self.low), self.high)
        return round((PICTURE - 1) * math.log(clipped / self.low) / math.log(self.high / self.low))

    def picture(self, row: Interval, style: str) -> Text:
        """Draw `│` at 1, the interval as a line, the estimate as a point; `‹` and `›` if the interval goes
        on."""
        assert row.ratio is not None
        cells = [" "] * PICTURE
        ends = row.ci or (row.ratio, row.ratio)
        low, high = map(self.column, ends)
        cells[low : high + 1] = "─" * (high + 1 - low)
        if ends[0] < self.low:
            cells[0] = "‹"
        if ends[1] > self.high:
            cells[-1] = "›"
        cells[self.column(1.0)] = "│"
        cells[self.column(row.ratio)] = "●"
        return Text("".join(cells), style=style)
