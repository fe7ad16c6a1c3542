"""Draw shares of a step, or of a trace's window, as one bar with a legend."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from dynotune.text import words

WIDTH_OF_TWO_COLUMNS = 78
JUSTIFIED: list[Literal["left", "right"]] = ["left", "left", "right", "right"]


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a bar: its name and how it is drawn.

    Args:
        field: name of the part's field in the shares.
        glyph, ascii_glyph: the character that fills the part; distinct without colour.
        alone: name of the part on a machine without a device; "" if the name is the same.
    """

    field: str
    label: str
    glyph: str
    ascii_glyph: str
    style: str
    alone: str = ""

    def of(self, shares: object) -> float:
        share: float = getattr(shares, self.field)
        return share

    def named(self, has_device: bool) -> str:
        return self.label if has_device else self.alone or self.label

    def drawn(self, options: ConsoleOptions, columns: int = 1) -> Text:
        return Text((self.ascii_glyph if options.ascii_only else self.glyph) * columns, style=self.style)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.drawn(options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, 1)


OF_A_STEP = (
    Part("device", "device works", "█", "#", "green", "operators"),
    Part("communication", "communication, exposed", "▒", "%", "magenta", "communication"),
    Part("transfer", "transfer, exposed", "▓", "=", "yellow", "transfer"),
    Part("input", "waits for input", "i", "i", "bold red"),
    Part("host", "waits for the host", "h", "h", "bold red", "Python between operators"),
    Part("other", "other", "·", ".", "bold blue"),
)
OF_A_WINDOW = (
    Part("compute", "compute", "█", "#", "green"),
    Part("exposed_copy", "copy, exposed", "▓", "=", "yellow"),
    Part("exposed_communication", "communication, exposed", "▒", "%", "magenta"),
    Part("idle_host", "idle: host", "h", "h", "bold red"),
    Part("idle_loader", "idle: loader", "l", "l", "bold red"),
    Part("idle_sync", "idle: sync", "s", "s", "bold red"),
    Part("idle_kernel", "idle: kernel", "k", "k", "bold blue"),
    Part("idle_other", "idle: other", "·", ".", "bold blue"),
)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar that shows shares.

    Args:
        widest: largest width of the bar, in terminal columns.
        of_width: the fraction of that width that the bar takes.
    """

    parts: Sequence[Part]
    shares: object
    widest: int = 100
    of_width: float = 1.0

    def cells(self, width: int) -> list[int]:
        """Return the columns of each part, by largest remainders; they sum to `width`, or to 0 if all shares
        are 0."""
        sizes = [max(0.0, part.of(self.shares)) for part in self.parts]
        total = sum(sizes)
        if not total:
            return [0] * len(sizes)
        exact = [width * size / total for size in sizes]
        cells = [int(cell) for cell in exact]
        by_remainder = sorted(range(len(cells)), key=lambda at: cells[at] - exact[at])
        for at in by_remainder[: width - sum(cells)]:
            cells[at] += 1
        return cells

    def drawn(self, options: ConsoleOptions, width: int) -> Text:
        bar = Text(no_wrap=True, overflow="crop", end="\n")
        for part, columns in zip(self.parts, self.cells(width), strict=True):
            bar.append_text(part.drawn(options, columns))
        return bar

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.drawn(options, round(min(options.max_width, self.widest) * self.of_width))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(8, self.widest), min(options.max_width, self.widest))


@dataclass(frozen=True, slots=True)
class Legend:
    """A legend: the parts with their shares and times, in two columns if there is room.

    Args:
        time: a function that formats a share of the whole as a time.
    """

    parts: Sequence[Part]
    shares: object
    time: Callable[[float], str]
    has_device: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        num_columns = 2 if options.max_width >= WIDTH_OF_TWO_COLUMNS else 1
        legend = Table.grid(padding=(0, 2, 0, 0))
        for justify in JUSTIFIED * num_columns:
            legend.add_column(justify=justify, no_wrap=True)
        entries = [
            (part, part.named(self.has_device), words.fine_share(share), self.time(share))
            for part in self.parts
            if (share := part.of(self.shares)) > 0
        ]
        num_rows = -(-len(entries) // num_columns)
        for at in range(num_rows):
            legend.add_row(*(cell for entry in entries[at::num_rows] for cell in entry))
        yield legend
