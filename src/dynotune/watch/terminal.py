"""Show the view in a terminal: a line every few seconds, or a screen that is redrawn."""

import time
from itertools import accumulate
from typing import IO

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dynotune.report import layout
from dynotune.schema import redaction
from dynotune.schema.watch import View
from dynotune.text import words
from dynotune.watch import columns
from dynotune.watch.watcher import Begun

LINE_EVERY_S = 5.0
MOST_ROWS, GAP = 12, 2
COLOURS = {"input": "yellow", "stalled": "bold red", "device": "green"}


class Lines:
    """Writes a line every five seconds, and one for each alert when it begins, to a separate file."""

    def __init__(self, file: IO[str]) -> None:
        self._file, self._last_s = file, float("-inf")
        self._begun = Begun()

    def __call__(self, view: View) -> None:
        lines = []
        for alert in self._begun.of(view):
            lines += [f"ALERT {alert.id}: {alert.text}", *(f"  {line}" for line in alert.details)]
        if view.at_s - self._last_s >= LINE_EVERY_S or view.state == "ended":
            self._last_s = view.at_s
            lines.append(summary(view))
        clock = time.strftime("%H:%M:%S", time.localtime(view.clock_s))
        self._file.writelines(f"{clock}  {words.plain(redaction.redacted(line))}\n" for line in lines)
        self._file.flush()


def summary(view: View) -> str:
    """Write the view in one line."""
    if not view.steps_s:
        return view.verdict
    lead = view.steps_s[0]
    rate = [f"{words.rate(view.samples_per_s)} samples/s"] if view.samples_per_s is not None else []
    times = f"{words.duration(lead.median_s)} (p99 {words.duration(lead.p99_s)})"
    return "  ".join([f"step {view.num_steps:,}", times, *rate, view.verdict])


class Screen(Live):
    """The whole view, drawn once a second in the terminal's current width. The last view remains on the
    screen."""

    def __init__(self) -> None:
        console = Console(highlight=False, markup=False)
        super().__init__(console=console, auto_refresh=False, screen=True, vertical_overflow="crop")
        self._last = ""

    def __call__(self, view: View) -> None:
        self._last = words.plain(redaction.redacted(summary(view)))
        self.update(drawn(view, self.console.width), refresh=True)

    def stop(self) -> None:
        """Restore the terminal."""
        super().stop()
        self.console.print(Text(self._last))


def drawn(view: View, width: int) -> RenderableType:
    def line(text: str, style: str = "") -> Text:
        return Text(words.plain(redaction.redacted(text)), style=style)

    parts: list[RenderableType] = [line(" ".join(view.command), "dim")]
    parts.append(line(view.verdict, COLOURS.get(view.cause, "bold")))
    for alert in view.alerts:
        parts.append(line(f"! {alert.id}: {alert.text}", "red"))
        parts += [line(f"    {each}", "dim") for each in alert.details[:8]]
    for table in columns.tables(view):
        parts += [line(""), _fitted(table, width)]
    processes = f"{view.num_processes} processes, {words.num_bytes(view.memory_bytes)} of memory"
    parts.append(line(f"{processes}, {view.num_cpus} cores"))
    parts += [line(f"step {mark.step:,}: {mark.kind}, {mark.text}", "dim") for mark in view.marks[-3:]]
    return Group(*parts, *(line(note, "dim") for note in [*view.notes, *columns.unknown(view)][:3]))


def _fitted(table: columns.Table, width: int) -> Table:
    """Return as many of the columns as fit in the width."""
    rows = table.rows[:MOST_ROWS]
    sizes = [max(map(cell_len, cells)) + GAP for cells in zip(table.columns, *rows, strict=True)]
    num = sum(end <= width + GAP for end in accumulate(sizes))
    made = layout.table(*(f"{name}:whole" for name in table.columns[:num]), gap=GAP)
    for row in rows:
        made.add_row(*map(Text, row[:num]))
    return made
