"""Detect when a program without steps is ready, by a line of its output."""

import contextlib
import re
import time
from pathlib import Path
from re import _parser as parser  # type: ignore[attr-defined]

from dynotune.launch.process import STDERR, STDOUT
from dynotune.schema import untrusted
from dynotune.schema.errors import UsageError

_REPEATS = (parser.MAX_REPEAT, parser.MIN_REPEAT)
POLL_S = 0.002
"""Longest delay (s) of detecting a line. Each check reads the ends of two files."""
AT_EXIT_S = 0.05
"""Longest time (s) from writing a buffered line to the end of the process that wrote it."""
LONGEST_LINE_BYTES = 1 << 16
CHUNK_BYTES = 1 << 20


def pattern(text: str) -> re.Pattern[str]:
    """Return the compiled pattern of `--ready-pattern TEXT`.

    Raises UsageError: the text is not a regular expression, any line would match, or a line may take forever.
    """
    try:
        wanted = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(
            f"--ready-pattern {text} is no regular expression: {error}.",
            hint="For example --ready-pattern 'Server started'.",
        ) from error
    if wanted.search(""):
        raise UsageError(
            f"--ready-pattern {text!r} matches an empty line.", hint="Write more of the line to wait for."
        )
    if _repeats_repeats(parser.parse(text)):
        raise UsageError(
            f"--ready-pattern {text!r} repeats what repeats, so one line may take it hours.",
            hint="Write a part of the line that occurs once: 'Server started', not '(\\w+ ?)+started'.",
        )
    return wanted


def _repeats_repeats(parts: object, *, inside: bool = False) -> bool:
    """Tell whether a repeat without limit stands inside another: a match tries all ways to share the text."""
    if isinstance(parts, tuple) and len(parts) == 2 and parts[0] in _REPEATS and isinstance(parts[1], tuple):
        _, most, body = parts[1]
        endless = most == parser.MAXREPEAT
        return (inside and endless) or _repeats_repeats(body, inside=inside or endless)
    if isinstance(parts, tuple | list | parser.SubPattern):
        return any(_repeats_repeats(part, inside=inside) for part in parts)
    return False


class ReadyOn:
    """Search a run's output for the first matching line, at each call.

    `ready_s`: time.perf_counter when the line was found, late by the time since the previous call.
    """

    def __init__(self, wanted: re.Pattern[str], folder: Path) -> None:
        self._wanted = wanted
        self._files = {folder / STDOUT: 0, folder / STDERR: 0}
        self._begun = dict.fromkeys(self._files, b"")
        self.ready_s: float | None = None

    def __call__(self, *, ended: bool = False) -> bool:
        """Tell whether the program is ready. `ended`: the output has ended, so a last line without line end
        counts."""
        for path in self._files:
            if self.ready_s is None and self._has_match(path, ended):
                self.ready_s = time.perf_counter()
        return self.ready_s is not None

    def _has_match(self, path: Path, ended: bool) -> bool:
        for chunk in self._new(path):
            *lines, self._begun[path] = re.split(rb"[\r\n]", self._begun[path] + chunk)
            if any(self._matches(line) for line in lines):
                return True
            self._begun[path] = self._begun[path][-LONGEST_LINE_BYTES:]
        return ended and self._matches(self._begun[path])

    def _matches(self, line: bytes) -> bool:
        return self._wanted.search(line[:LONGEST_LINE_BYTES].decode(errors="replace")) is not None

    def _new(self, path: Path) -> list[bytes]:
        chunks = []
        # The file may not exist yet.
        with contextlib.suppress(OSError), untrusted.opened(path, link=False) as file:
            file.seek(self._files[path])
            while chunk := file.read(CHUNK_BYTES):
                chunks.append(chunk)
                self._files[path] += len(chunk)
        return chunks
