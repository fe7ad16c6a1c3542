"""When a program that makes no steps is ready: a line of its output says so."""

import contextlib
import re
import time
from pathlib import Path

from dynotune.launch.process import STDERR, STDOUT
from dynotune.schema.errors import UsageError

POLL_S = 0.002
"""How late a line may be seen. Looking reads the ends of two files."""
AT_EXIT_S = 0.05
"""From a line that was held back in a buffer to the end of the process that wrote it out."""
LONGEST_LINE_BYTES = 1 << 16
CHUNK_BYTES = 1 << 20


def pattern(text: str) -> re.Pattern[str]:
    """Return the pattern of `--ready-pattern TEXT`.

    Raises UsageError: it is no regular expression, or any line would do.
    """
    try:
        wanted = re.compile(text)
    except re.error as error:
        raise UsageError(
            f"--ready-pattern {text} is no regular expression: {error}.",
            hint="For example --ready-pattern 'Server started'.",
        ) from error
    if wanted.search(""):
        raise UsageError(f"--ready-pattern {text!r} matches an empty line.", hint="Say more of the line to wait for.")
    return wanted


class ReadyOn:
    """Search for the first line that matches in what a run has printed, each time it is asked.

    `ready_s`: when it was seen, as of time.perf_counter; late by as long as nobody asked.
    """

    def __init__(self, wanted: re.Pattern[str], folder: Path) -> None:
        self._wanted = wanted
        self._files = {folder / STDOUT: 0, folder / STDERR: 0}
        self._begun = dict.fromkeys(self._files, b"")
        self.ready_s: float | None = None

    def __call__(self, *, ended: bool = False) -> bool:
        """Tell whether it is ready. `ended`: no more will come, so that a last line without an end is one too."""
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
        # It may not be there yet.
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(self._files[path])
            while chunk := file.read(CHUNK_BYTES):
                chunks.append(chunk)
                self._files[path] += len(chunk)
        return chunks
