"""Show the progress of a running comparison in the terminal: a line per pair, and what runs now."""

from __future__ import annotations

from time import monotonic

from rich.console import Console
from rich.status import Status
from rich.text import Text

from dynotune.report import loudness
from dynotune.schema import redaction
from dynotune.schema.comparison import ArmName, Drawn, Pair, Voided
from dynotune.schema.run import Objective
from dynotune.text import words

LOG_EVERY_S = 60.0


class Progress:
    """Show the progress of a running comparison on the given console.

    On a terminal the line of the run in progress is redrawn in place; elsewhere it is written once a minute.
    As a context manager: on exit, also after an error, the line in progress is erased.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        # FORCE_COLOR, as in a log or a notebook, makes no terminal of what cannot be drawn over.
        # What is redrawn in place, a screen reader reads again and again.
        is_drawn_over = console.is_terminal and (not console.stderr or console.file.isatty())
        self._is_log = loudness.is_plain() or not is_drawn_over
        self._what = ""
        self._began_s = monotonic()
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

    def running(self, what: str) -> None:
        """Show what is in progress, in place of the previous text; in a log once a minute."""
        self._what = redaction.redacted(what)
        if self._is_log and monotonic() - self._told_s >= LOG_EVERY_S:
            self._told_s = monotonic()
            self._console.print(self, soft_wrap=self._is_log)
        elif not self._is_log and self._status is None:
            self._status = self._console.status(self, spinner_style="dim")
            self._status.start()

    def __rich__(self) -> Text:
        """Return the line in progress: what runs now, and for how long all has run.

        A terminal draws the line anew each time.
        """
        minutes, seconds = divmod(int(monotonic() - self._began_s), 60)
        line = f"{self._what} · {minutes}:{seconds:02}"
        # A line that breaks would leave its second half behind.
        return Text(line, style="dim", no_wrap=not self._is_log, overflow="ellipsis")

    def running_arm(self, arm: ArmName, *, pair: int, max_pairs: int, so_far: str = "") -> None:
        """Show that one run of a pair is in progress. `pair` counts from 1."""
        self.running(f"pair {pair} of at most {max_pairs}: {arm}" + (f"; {so_far}" if so_far else ""))

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
