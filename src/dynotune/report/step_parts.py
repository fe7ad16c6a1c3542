"""The parts of a step: what they are called, how they are drawn, and a bar of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from dynotune.schema.observation import Shares
from dynotune.text import words

WIDTH_OF_TWO_COLUMNS = 78
JUSTIFIED: list[Literal["left", "right"]] = ["left", "left", "right", "right"]


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a step; `alone`: what it is called where there is no device."""

    field: str
    label: str
    alone: str
    glyph: str
    ascii_glyph: str
    style: str

    def of(self, shares: Shares) -> float:
        """Its share of a step."""
        share: float = getattr(shares, self.field)
        return share

    def named(self, has_device: bool) -> str:
        """What it is called."""
        return self.label if has_device else self.alone


PARTS = (
    Part("device", "device works", "operators", "█", "#", "green"),
    Part("communication", "communication, exposed", "communication", "▒", "%", "magenta"),
    Part("transfer", "transfer, exposed", "transfer", "▓", "=", "yellow"),
    Part("input", "waits for input", "waits for input", "i", "i", "bold red"),
    Part("host", "waits for the host", "Python between operators", "h", "h", "bold red"),
    Part("other", "other", "other", "·", ".", "bold blue"),
)


@dataclass(frozen=True, slots=True)
class Bar:
    """A step as one bar; each part that is not nothing has a column at least where there is room."""

    shares: Shares
    widest: int = 100

    def cells(self, width: int) -> list[int]:
        """Columns of each of `PARTS`, by largest remainders; they sum to `width`."""
        exact = [width * max(0.0, part.of(self.shares)) for part in PARTS]
        cells = [int(cell) for cell in exact]
        by_remainder = sorted(range(len(PARTS)), key=lambda at: cells[at] - exact[at])
        for at in by_remainder[: max(0, width - sum(cells))]:
            cells[at] += 1
        return cells

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        bar = Text(no_wrap=True, overflow="crop", end="\n")
        for part, cells in zip(PARTS, self.cells(min(options.max_width, self.widest)), strict=True):
            bar.append(glyph(part, options) * cells, style=part.style)
        yield bar

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(8, self.widest), min(options.max_width, self.widest))


@dataclass(frozen=True, slots=True)
class Legend:
    """The parts with their shares and times, in two columns where there is room."""

    shares: Shares
    step_s: float
    has_device: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        num_columns = 2 if options.max_width >= WIDTH_OF_TWO_COLUMNS else 1
        legend = Table.grid(padding=(0, 2, 0, 0))
        for justify in JUSTIFIED * num_columns:
            legend.add_column(justify=justify, no_wrap=True)
        entries = [
            (
                Text(glyph(part, options), style=part.style),
                part.named(self.has_device),
                words.fine_share(share),
                words.duration(share * self.step_s, column=True),
            )
            for part in PARTS
            if (share := part.of(self.shares)) > 0
        ]
        num_rows = -(-len(entries) // num_columns)
        for at in range(num_rows):
            legend.add_row(*(cell for entry in entries[at::num_rows] for cell in entry))
        yield legend


def glyph(part: Part, options: ConsoleOptions) -> str:
    """What a part is drawn with on this console."""
    return part.ascii_glyph if options.ascii_only else part.glyph
