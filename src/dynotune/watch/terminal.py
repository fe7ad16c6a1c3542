"""Show a live state in a terminal: a line every few seconds, or a screen that is redrawn."""

import time
from typing import IO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from dynotune.report import Fitted, On, Report, layout_of
from dynotune.schema import document, redaction
from dynotune.schema.watch import View
from dynotune.text import words
from dynotune.watch.watcher import Begun

LINE_EVERY_S = 5.0
TALL = 40
"""From this number of lines on, a screen has room for tables."""


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
    """A report that is redrawn as a whole, as high as the terminal. Its last line remains on the screen."""

    def __init__(self) -> None:
        console = Console(highlight=False, markup=False)  # it pads lines, over what they had before
        super().__init__(console=console, auto_refresh=False, screen=True, vertical_overflow="crop")
        self._last: RenderableType = ""

    def __call__(self, view: View) -> None:
        """Draw the state of a run."""
        known = document.without_secrets(view)
        self.draw(layout_of(known), last=summary(known))

    def draw(self, report: Report, *, last: str) -> None:
        """Draw a report. `last`: what remains when the screen is left."""
        self._last = Text(words.plain(redaction.redacted(last)))
        self.update(fitted(report, self.console.height), refresh=True)

    def stop(self) -> None:
        """Restore the terminal."""
        super().stop()
        self.console.print(self._last)


def fitted(report: Report, height: int) -> Fitted:
    """Fit a report into the lines of a terminal."""
    return Fitted(report, height, On.SCREEN if height < TALL else On.LONG)
