"""Work beside the program in short pieces, so that a thread of the agent does not hold the program up.

A thread that computes in Python gives the interpreter to another thread only after the switch interval, 5 ms.
The program's main thread lets go of the interpreter in nearly every operation of torch, and would wait so
long each time.
"""

from __future__ import annotations

from time import perf_counter, sleep

PIECE_S, PAUSE_S = 0.002, 0.008
"""Seconds of work after which a thread pauses, and seconds of its pause."""


class Pieces:
    """The pieces of one thread's work."""

    def __init__(self) -> None:
        self._since_s = perf_counter()

    def pause(self) -> None:
        """Let the program run for a moment, if the present piece is long enough."""
        if perf_counter() - self._since_s >= PIECE_S:
            sleep(PAUSE_S)
            self._since_s = perf_counter()
