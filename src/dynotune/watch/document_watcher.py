"""Follow a study or a comparison by its document, which the process that measures writes after each run."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

from dynotune import launch
from dynotune.report import Doing, live_document
from dynotune.schema import document
from dynotune.schema.comparison import Comparison
from dynotune.schema.errors import CannotRunHere, DynotuneError
from dynotune.schema.study import Study

FILES: dict[str, type[Study] | type[Comparison]] = {"study.json": Study, "comparison.json": Comparison}


ASK_S = 3.0
"""Seconds after which it is looked again whether a process uses the folder."""


class DocumentWatcher:
    """Reads the document in a folder whenever it changed. It takes no lock and writes nothing.

    Args:
        doing: says what the measuring process does now; by default only the time since now is known.

    Raises CannotRunHere: the folder has no such document.
    """

    def __init__(self, folder: Path, doing: Callable[[], Doing] | None = None) -> None:
        file = self.file_of(folder)
        if file is None:
            raise CannotRunHere(
                f"{folder} is not the folder of a study or a comparison.",
                hint="`dynotune tune` and `dynotune compare` make one in ~/.local/state/dynotune/runs.",
            )
        self.file, self.folder = file, folder
        self._doing = doing or self._by_the_clock
        self._began_s = _begun_s(folder)
        self._asked_s, self._is_used = -math.inf, True
        self._lock = threading.Lock()
        self._stamp: tuple[int, int] | None = None
        self._document: Study | Comparison | None = None

    @staticmethod
    def file_of(folder: Path) -> Path | None:
        """Return the document of a study's or a comparison's folder; None if it has none."""
        return next((folder / name for name in FILES if (folder / name).is_file()), None)

    def doing(self) -> Doing:
        return self._doing()

    def _by_the_clock(self) -> Doing:
        """Return what the folder shows: since when it is there, and whether a process uses it."""
        if time.monotonic() - self._asked_s >= ASK_S:
            self._asked_s, self._is_used = time.monotonic(), bool(launch.in_use([self.folder]))
        return Doing(spent_s=max(0.0, time.time() - self._began_s), has_ended=not self._is_used)

    def document(self) -> Study | Comparison:
        """Return the newest document; the one before while the file cannot be read.

        Raises DynotuneError: it was never readable.
        """
        with self._lock:
            try:
                found = self.file.stat()
                stamp = found.st_mtime_ns, found.st_size
                if stamp != self._stamp:
                    self._document = document.read(self.file, FILES[self.file.name])
                    self._stamp = stamp
            except (OSError, DynotuneError):
                if self._document is None:
                    raise
            assert self._document is not None
            return self._document

    @property
    def version(self) -> str:
        """Return a text that changes with the document."""
        return "-".join(map(str, self._stamp or ()))

    @property
    def is_over(self) -> bool:
        """Tell whether the document has its answer, or nothing measures any more."""
        return live_document.is_over(self.document()) or self.doing().has_ended


def _begun_s(folder: Path) -> float:
    """Return when the folder was made, in seconds since 1970: its oldest entry's time, as it has no other."""
    times_s = []
    for entry in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # a partial file, which has its name by now
            times_s.append(entry.lstat().st_mtime)
    return min(times_s, default=time.time())
