"""Tell whether the program may have further interpreters, whose threads run beside this one's lock."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

MAKING_INTERPRETERS = ("_interpreters", "_xxsubinterpreters")
"""Modules of Python, without which a program makes no further interpreter."""


def may_be_several() -> bool:
    return any(name in sys.modules for name in MAKING_INTERPRETERS)


def frames_of_threads() -> dict[int, FrameType]:
    """Return the innermost frame of each thread; {} if the program may have several interpreters.

    Python walks the threads of all interpreters for it, and aborts if one of those runs meanwhile.
    """
    return {} if may_be_several() else sys._current_frames()
