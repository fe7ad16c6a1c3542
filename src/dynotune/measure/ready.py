"""Waits for a line of a command's output, where no step can be seen, and says when it came."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import NamedTuple

from dynotune import probe
from dynotune.launch.launcher import Exit, Launched
from dynotune.measure.ready_on import ReadyOn
from dynotune.schema.run import EndedBy

POLL_S = 0.002
"""How late a line may be seen. Looking reads the ends of two files."""
GRACE_S = 3.0
AT_EXIT_S = 0.05
"""From a line that was held back in a buffer to the end of the process that wrote it out."""


class Waited(NamedTuple):
    """How it ended.

    Args:
        ready_s: when the line was seen, on CLOCK_MONOTONIC; None when it never came.
        at_exit: the command ended with it.
    """

    ended_by: EndedBy
    exit: Exit
    ready_s: float | None
    at_exit: bool = False


def watch(launched: Launched, sampler: probe.Sampler, folder: Path, wanted: re.Pattern[str], limit_s: float) -> Waited:
    """Until the line, `limit_s` or the command's own end; then everything of it is ended."""
    ready = ReadyOn(wanted, folder)
    deadline_s = time.monotonic() + limit_s
    while True:
        exit_ = launched.wait(POLL_S)
        if ready(ended=exit_ is not None):
            if exit_ is not None:
                return Waited("command", exit_, ready.ready_s, at_exit=True)
            sampler.sample()
            exit_ = launched.wait(AT_EXIT_S)
            if exit_ is not None:
                return Waited("command", exit_, ready.ready_s, at_exit=True)
            return Waited("window", launched.end(GRACE_S), ready.ready_s)
        if exit_ is not None:
            return Waited("command", exit_, None)
        if time.monotonic() > deadline_s:
            return Waited("timeout", launched.end(GRACE_S), None)
