"""Judge timed starts against those of a kept record, for a gate."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from dynotune.schema import redaction
from dynotune.schema.comparison import CONFIDENCE, Verdict
from dynotune.schema.errors import UsageError
from dynotune.schema.facts import Unknown
from dynotune.schema.run import RunSpec
from dynotune.schema.startup import CacheState, StartChange, Startup
from dynotune.text import words

_STATES: tuple[CacheState, ...] = ("cold", "warm")
_SAME_MACHINE = {
    "gpu.name": "GPU",
    "gpu.driver": "driver",
    "host.cpu": "processor",
    "host.num_cores": "number of usable cores",
}
FEWEST = 4
"""Fewest starts of both records together that tell a change from noise."""


def changes(before: Startup, now: Startup) -> list[StartChange]:
    """Return how cold and warm starts changed since the record `before`, each with an interval.

    `slower` and `faster`: the interval of the ratio lies beyond 1, and the ratio beyond the margin. If starts
    of both records differ only as starts of one record do, both states together are called slower without a
    cause in at most 2.5% of cases. What differs between the times of the two records, such as a clock rate or
    other programs, is not in the interval: only the margin allows for it.
    """
    found = []
    for arm in _STATES:
        old, new = ([start.value_s for start in each.starts(arm)] for each in (before, now))
        if old and new:
            found.append(_change(arm, old, new, now.margin))
    return found


def kept(before: Startup) -> Startup:
    """Return what later judgements need of a record: without its own record, and without settings, whose
    secrets would have to be typed again to go on."""
    run = msgspec.structs.replace(before.run, settings=[])
    return msgspec.structs.replace(before, run=run, against=None)


def refuse_another(before: Startup, run: RunSpec) -> None:
    """Refuse a record of another command, or one whose starts ended at another line.

    Raises UsageError.
    """
    then = before.run
    # A kept record holds no secrets.
    if redaction.words(then.command) != redaction.words(run.command):
        raise UsageError(
            f"The kept record is of another command: {words.command(then.command)}.",
            hint="Make one of this command: dynotune startup time --blocks 6 --json starts.json -- COMMAND",
        )
    if then.ready_pattern != run.ready_pattern:
        pattern = then.ready_pattern or "none, as they ended at the first step"
        raise UsageError(
            f"Starts of the kept record ended at another line: --ready-pattern {pattern}.",
            hint="Give the same --ready-pattern, or make another record.",
        )


def machine_notes(before: Startup, now: Startup) -> list[str]:
    """Return warnings that the record is of another machine."""
    notes = []
    for fact, label in _SAME_MACHINE.items():
        old, new = before.facts.get(fact), now.facts.get(fact)
        if old != new and not isinstance(old, Unknown) and not isinstance(new, Unknown):
            notes.append(f"The kept record is of another machine: {label} {old} there, {new} here.")
    return notes


def _change(arm: CacheState, old: Sequence[float], new: Sequence[float], margin: float) -> StartChange:
    from scipy.special import stdtrit

    logs = [[math.log(value) for value in values] for values in (old, new)]
    center = statistics.fmean(logs[1]) - statistics.fmean(logs[0])
    df = len(old) + len(new) - 2
    if len(old) + len(new) < FEWEST:
        reason = f"An interval needs {FEWEST} starts in both records together: --blocks 4 makes more."
        return StartChange(
            arm=arm, ratio=math.exp(center), num_before=len(old), num_now=len(new), reason=reason
        )
    squares = math.fsum((value - statistics.fmean(each)) ** 2 for each in logs for value in each)
    error = math.sqrt(squares / df * (1 / len(old) + 1 / len(new)))
    width = float(stdtrit(df, 1 - (1 - CONFIDENCE) / 2 / len(_STATES))) * error
    ci = (math.exp(center - width), math.exp(center + width))
    verdict: Verdict = "undecided"
    if ci[0] > 1 and center > math.log1p(margin):
        verdict = "slower"
    elif ci[1] < 1 and center < -math.log1p(margin):
        verdict = "faster"
    elif max(abs(center - width), abs(center + width)) <= math.log1p(margin):
        verdict = "same"
    return StartChange(
        arm=arm, verdict=verdict, ratio=math.exp(center), ci=ci, num_before=len(old), num_now=len(new)
    )
