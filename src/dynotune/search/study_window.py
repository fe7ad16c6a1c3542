"""Plan the window of a study's runs: long enough to be informative, short enough for the budget."""

import contextlib
import functools
import math
import statistics
from collections.abc import Sequence

import msgspec

from dynotune.measure.live import (
    MAX_WINDOW_S,
    MIN_WINDOW_S,
    MIN_WINDOW_STEPS,
    Outcome,
    WindowPlan,
    readiness,
    window_plan,
)
from dynotune.schema.errors import UsageError
from dynotune.schema.run import RunSpec
from dynotune.schema.study import Study

NUM_BLOCKS, MOST_ARMS = 2, 8
NUM_PROVING = 8
"""Runs of the confirming pairs: with more, windows get so short that noise costs more than runs gain."""
OF_START = 0.5
"""Least length of a window relative to the time before it, if time allows: a quiet baseline proves nothing about arms
that are twice as fast, whose windows are half as long and whose hosts may no longer keep up."""
LEAST_OF_START = 0.2
"""A window is not cut below this relative length, which would save next to nothing."""


def study_window(
    request: RunSpec,
    baseline: Outcome,
    others: Sequence[Outcome],
    left_s: float,
    *,
    num_runs: int = 0,
    num_ahead: int = 0,
) -> WindowPlan:
    """Return the window, from the pilots. Arms with a pilot begin it warm, except those that never become steady.

    Its length follows from the noise of the baseline and from the time before the window. If the time left does not
    afford enough such runs, the window is shorter, but never too short to be informative: then fewer arms are tried.

    Args:
        num_runs: number of runs that the time left should afford.
        num_ahead: as for `window_plan.plan_window`.

    Raises:
        CannotRunHere: the command ends before it can be timed, or makes too few steps for a verdict.
    """
    steady = [other for other in others if readiness.steady_steps(other.records[0]) is not None]
    pilots = [baseline, *steady]
    plan = functools.partial(window_plan.plan_window, num_telling=1, of_start=OF_START, num_ahead=num_ahead)
    whole = plan(request, pilots)
    if request.window_steps is not None or not whole.num_steps:
        return whole
    window_plan.refuse_too_short(request, whole)
    fewest = max(
        MIN_WINDOW_STEPS,
        math.ceil(max(MIN_WINDOW_S, LEAST_OF_START * whole.start_s) / whole.step_s),
        window_plan.fewest_steps(request, whole.step_s),
        num_ahead,
    )
    least = min(whole.num_steps, fewest)
    whole = _long_enough(whole, steady)
    if num_runs * whole.run_s <= left_s:
        return whole
    with contextlib.suppress(UsageError):
        window = plan(request, pilots, num_runs=num_runs, budget_s=left_s)
        if window.num_steps >= least:
            return window
    return msgspec.structs.replace(whole, num_steps=least, whole_epochs=0)


def _long_enough(window: WindowPlan, others: Sequence[Outcome]) -> WindowPlan:
    """Return the window with as many steps as the fastest arm needs for an informative one."""
    paces_s = [statistics.median(other.records[0].step_s[-MIN_WINDOW_STEPS:]) for other in others]
    if not paces_s or not window.num_steps:
        return window
    wanted = math.ceil(MIN_WINDOW_S / max(min(paces_s), 1e-9))
    most = int(MAX_WINDOW_S / window.step_s)
    return msgspec.structs.replace(window, num_steps=max(window.num_steps, min(wanted, most)))


def num_runs(study: Study) -> int:
    """Return how many runs a study wants: blocks that leave each setting out, and pairs that confirm."""
    num_settings = sum(one.id not in study.outcomes for one in study.candidates)
    return NUM_BLOCKS * (min(num_settings, MOST_ARMS) + 2) + NUM_PROVING
