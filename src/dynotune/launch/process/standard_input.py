"""What a captured run reads: the file that dynotune itself was given, from its beginning, or nothing.

A pipe can be read once, and whoever waits for its end may wait for ever.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def opened() -> BinaryIO:
    """The file that is our standard input, opened anew; else the null device."""
    try:
        return Path("/proc/self/fd/0" if _is(stat.S_ISREG) else os.devnull).open("rb")
    except OSError:  # it may not be opened again
        return Path(os.devnull).open("rb")


def is_pipe() -> bool:
    """Whether somebody pipes something to us, which no captured run gets."""
    return _is(stat.S_ISFIFO)


def _is(kind: Callable[[int], bool]) -> bool:
    try:
        return kind(os.fstat(0).st_mode)
    except OSError:  # it is closed
        return False
