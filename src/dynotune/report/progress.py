"""Show the progress of a running comparison in the terminal: a line per pair, and what runs now."""

from __future__ import annotations

import math
from pathlib import Path
from time import monotonic

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.status import Status
from rich.text import Text

from dynotune.report import loudness, terminal_tiles
from dynotune.report.doing import Doing
from dynotune.schema import redaction
from dynotune.schema.comparison import ArmName, Drawn, Pair, Voided
from dynotune.schema.run import Objective
from dynotune.text import words

LOG_EVERY_S = 60.0
BAR, NARROW_BAR, NARROW = 12, 8, 60
"""Columns of the bar, and below how many columns of the terminal it is the narrow one."""
ROOM_OF_CTRL_C = 3
PULSE_S = 4.0
"""Seconds in which the mark of a bar without an end goes to and fro once."""


class Progress:
    """Show the progress of a running comparison on the given console.

    On a terminal the line of the run in progress is redrawn in place; elsewhere it is written once a minute.
    As a context manager: on exit, also after an error, the line in progress is erased.

    Attributes:
        folder: of the document that is measured, once there is one.
    """

    folder: Path | None = None

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        # FORCE_COLOR, as set for logs and notebooks, does not make lines redrawable. A screen reader reads
        # lines that are redrawn in place again and again.
        is_drawn_over = console.is_terminal and (not console.stderr or console.file.isatty())
        self._is_log = loudness.is_plain() or not is_drawn_over
        self.what = ""
        self._began_s = monotonic()
        self._ends_s: float | None = None
        self._told_s = self._began_s

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()

    def say(self, text: str) -> None:
        """Write a line that stays on the screen."""
        self._console.print(Text(redaction.redacted(text), style="dim"), soft_wrap=self._is_log)

    def warn(self, text: str) -> None:
        """Write a warning that stays on the screen."""
        line = Text.assemble(("warning: ", "yellow"), redaction.redacted(text))
        self._console.print(line, soft_wrap=self._is_log)

    def begun(self, folder: Path) -> None:
        """Learn the folder of the document that is measured."""
        self.folder = folder

    @property
    def doing(self) -> Doing:
        """Return what is in progress, for a live page."""
        return Doing(self.what, self.spent_s, self.left_s)

    @property
    def spent_s(self) -> float:
        return monotonic() - self._began_s

    @property
    def left_s(self) -> float | None:
        """Return the seconds until all is done; None if they are not known, or were more than was thought."""
        left_s = None if self._ends_s is None else self._ends_s - monotonic()
        return None if left_s is None or left_s <= 0 else left_s

    def running(self, what: str, *, left_s: float | None = None) -> None:
        """Show what is in progress, in place of the previous text; in a log once a minute.

        Args:
            left_s: seconds until all is done, as far as is known; None leaves what was known before.
        """
        self.what = redaction.redacted(what)
        if left_s is not None and math.isfinite(left_s):
            self._ends_s = monotonic() + left_s
        if self._is_log and monotonic() - self._told_s >= LOG_EVERY_S:
            self._told_s = monotonic()
            self._console.print(self, soft_wrap=self._is_log)
        elif not self._is_log and self._status is None:
            self._status = self._console.status(self, spinner_style="dim")
            self._status.start()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the line in progress. A terminal draws the line anew each time."""
        yield self._line(options.max_width, options.ascii_only)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, self._line(options.max_width, options.ascii_only).cell_len + ROOM_OF_CTRL_C)

    def _line(self, width: int, ascii_only: bool) -> Text:
        """Return how far all is, what runs now, how long all has taken, and how long all will take.

        The line is narrower than the terminal: one that breaks would leave its second half behind, also when
        the terminal adds `^C` to it. What runs now gives way.
        """
        left_s = self.left_s
        whole = "" if left_s is None else f" of about {words.clock(self.spent_s + left_s)}"
        time = f" · {words.clock(self.spent_s)}{whole}"
        if self._is_log:
            return Text(f"{self.what}{time}", style="dim")
        bar = self._bar(NARROW_BAR if width < NARROW else BAR, ascii_only)
        room = width - bar.cell_len - 1 - cell_len(time) - ROOM_OF_CTRL_C
        what = Text(self.what)
        what.truncate(max(1, room), overflow="ellipsis")
        line = Text.assemble(bar, " ", (what.plain, "dim"), (time, "dim"), no_wrap=True, overflow="ellipsis")
        line.truncate(max(1, width - ROOM_OF_CTRL_C), overflow="ellipsis")
        return line

    def _bar(self, width: int, ascii_only: bool) -> Text:
        left_s = self.left_s
        if left_s is not None:
            share = self.spent_s / (self.spent_s + left_s)
            return terminal_tiles.bar(share, width, style="cyan", ascii_only=ascii_only)
        return terminal_tiles.pulse(self.spent_s / PULSE_S, width, ascii_only=ascii_only)

    def running_arm(
        self, arm: ArmName, *, pair: int, max_pairs: int, so_far: str = "", left_s: float | None = None
    ) -> None:
        """Show that one run of a pair is in progress. `pair` counts from 1; `left_s` as of `running`."""
        known = f"; {so_far}" if so_far else ""
        self.running(f"pair {pair} of at most {max_pairs}: {arm}{known}", left_s=left_s)

    def finished(
        self,
        pair: Pair,
        *,
        number: int,
        max_pairs: int,
        unit: str = "sample",
        objective: Objective = "throughput",
        what: Drawn = "pair",
    ) -> None:
        """Show that a pair, or a block, is complete. Its ratio is a single observation, not yet an answer."""
        self.clear()
        self._console.print(
            Text.assemble(
                (f"{what} {number:>2}/{max_pairs}  ", "dim"),
                f"baseline {words.value(pair.baseline_s, objective, unit)}, ",
                f"candidate {words.value(pair.candidate_s, objective, unit)}  ",
                (words.single(pair.baseline_s / pair.candidate_s), "bold"),
            ),
            soft_wrap=self._is_log,
        )

    def voided(self, voided: Voided) -> None:
        """Show that a pair does not count, and why."""
        from dynotune.report.comparison import void
        from dynotune.report.terminal import text_of

        self.clear()
        line = Text.assemble((f"pair {voided.pair:>2} void: ", "yellow"), text_of(void(voided)))
        self._console.print(line, soft_wrap=self._is_log)

    def clear(self) -> None:
        """Erase the line in progress, before something else is printed."""
        if self._status is not None:
            self._status.stop()
            self._status = None
