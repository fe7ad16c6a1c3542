"""Waits for a line of a command's output, where no step can be seen."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import NamedTuple

from dynotune import probe
from dynotune.launch.launcher import Exit, Launched
from dynotune.launch.run_folder import STDERR, STDOUT
from dynotune.schema.errors import UsageError
from dynotune.schema.run import EndedBy

POLL_S = 0.002
"""How late a line may be seen. Looking asks two files for their size."""
MOST_OF_LINE = 1 << 16
GRACE_S = 3.0


class Waited(NamedTuple):
    """How it ended. `ready_s`: when the line was seen, on CLOCK_MONOTONIC; None when it never came."""

    ended_by: EndedBy
    exit: Exit
    ready_s: float | None
    at_exit: bool = False


def expression(text: str) -> re.Pattern[str]:
    """`--ready-on REGEX`.

    Raises:
        UsageError: it is no regular expression, or any line would do.
    """
    try:
        found = re.compile(text)
    except re.error as error:
        raise UsageError(
            f"--ready-on {text!r} is no regular expression: {error}.",
            hint=r"For example --ready-on 'listening on \d+'.",
        ) from error
    if found.search(""):
        raise UsageError(f"--ready-on {text!r} matches an empty line.", hint="Say more of the line to wait for.")
    return found


class Lines:
    """Follows what a captured run prints."""

    def __init__(self, folder: Path, wanted: re.Pattern[str]) -> None:
        self._files = [(folder / name) for name in (STDOUT, STDERR)]
        self._wanted = wanted
        self._read = [0, 0]
        self._rest = [b"", b""]

    def look(self, *, last: bool = False) -> bool:
        """Whether a line that was wanted has come. `last`: nothing more comes, so a line without an end counts."""
        # Both are read on, whatever the first one holds.
        of_stdout, of_stderr = self._look(0, last), self._look(1, last)
        return of_stdout or of_stderr

    def _look(self, number: int, last: bool) -> bool:
        try:
            if self._files[number].stat().st_size > self._read[number]:
                with self._files[number].open("rb") as file:
                    file.seek(self._read[number])
                    new = file.read()
                self._read[number] += len(new)
                self._rest[number] += new
        except OSError:
            return False
        # Progress bars end their lines with a carriage return.
        *lines, rest = re.split(rb"[\r\n]", self._rest[number])
        self._rest[number] = rest[-MOST_OF_LINE:]
        if last:
            lines.append(self._rest[number])
        return any(self._wanted.search(line.decode(errors="replace")) for line in lines)


def watch(launched: Launched, sampler: probe.Sampler, folder: Path, wanted: re.Pattern[str], limit_s: float) -> Waited:
    """Until the line, `limit_s` or the command's own end; then everything of it is ended."""
    lines = Lines(folder, wanted)
    deadline_s = time.monotonic() + limit_s
    while True:
        exit_ = launched.wait(POLL_S)
        if lines.look(last=exit_ is not None):
            ready_s = time.perf_counter()
            if exit_ is not None:
                return Waited("command", exit_, ready_s, at_exit=True)
            sampler.sample()
            return Waited("window", launched.end(GRACE_S), ready_s)
        if exit_ is not None:
            return Waited("command", exit_, None)
        if time.monotonic() > deadline_s:
            return Waited("timeout", launched.end(GRACE_S), None)
