"""Plan the window of fresh runs, and how many runs with it fit into the time: for pairs, and for a search.

`live.window_plan` says where a window begins after the pilots' warm-up, and how long it is at best. Here it
is made to fit the time: pairs rather become fewer than short, and a search rather tries fewer arms than short
windows.
"""

import contextlib
import functools
import math
import statistics
from collections.abc import Sequence

import msgspec

from dynotune.measure.live.compilation import COLD_KEPT
from dynotune.measure.live.lane_order import most_in_a_lane
from dynotune.measure.live.outcome import Outcome
from dynotune.measure.live.readiness import steady_steps
from dynotune.measure.live.request import CompareRequest
from dynotune.measure.live.window_length import MAX_WINDOW_S, MIN_WINDOW_S, MIN_WINDOW_STEPS
from dynotune.measure.live.window_plan import (
    LEAST_WINDOW_S,
    WindowPlan,
    fewest_steps,
    plan_window,
    refuse_too_short,
)
from dynotune.schema.comparison import TELLING_PAIRS
from dynotune.schema.errors import UsageError
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import batches_ahead

OF_START = 0.5
"""Least length of a window relative to the time before it, if time allows: a quiet baseline proves nothing
about arms that are twice as fast, whose windows are half as long and whose hosts may no longer keep up."""
LEAST_OF_START = 0.2
"""A window is not cut below this relative length, which would save next to nothing."""


def for_pairs(
    request: CompareRequest,
    pilots: Sequence[Outcome],
    left_s: float | None,
    *,
    cold_kept: float | None = None,
    num_lanes: int = 1,
) -> tuple[WindowPlan, int]:
    """Plan the window and the number of pairs: as requested, or the largest even number that the time left
    allows.

    Fewer pairs with a full window are preferred to many pairs with a short one. An odd number is the last
    resort.

    `cold_kept`: as for `plan_window`; None for the usual value with the caches of `request`.

    Raises:
        CannotRunHere: as for `plan_window`, or the window is too short to show a difference.
        UsageError: the time left is too short for a comparison that could find a difference.
    """
    cold_kept = (1.0 if request.run.caches == "cold" else COLD_KEPT) if cold_kept is None else cold_kept
    ahead = batches_ahead([*request.run.settings, *request.candidate])
    planned = functools.partial(plan_window, request.run, pilots, num_ahead=ahead, cold_kept=cold_kept)
    whole = planned()
    if request.run.window_steps is None and whole.num_steps:  # explicitly requested windows may be short
        refuse_too_short(request.run, whole)
    if left_s is None:
        return whole, request.max_pairs
    fewest = min(TELLING_PAIRS, request.max_pairs)
    numbers = [n for n in range(request.max_pairs, fewest - 1, -1) if n % 2 == 0 or n == request.max_pairs]
    enough = min(whole.num_steps, math.ceil(MIN_WINDOW_S / whole.step_s))
    few = min(whole.num_steps, math.ceil(LEAST_WINDOW_S / whole.step_s))
    floor = min(whole.num_steps, max(fewest_steps(request.run, whole.step_s), ahead))
    leasts = (max(enough, floor), max(few, floor))
    for least, num_pairs in [
        (least, num) for some in (numbers, [fewest]) for least in leasts for num in some
    ]:
        try:
            num_runs = 2 * most_in_a_lane(num_pairs, num_lanes)
            window = planned(num_runs=num_runs, budget_s=left_s)
        except UsageError:
            continue
        if window.num_steps >= least and num_runs * window.run_s <= left_s:
            return window, num_pairs
    shortest = min(
        whole.num_steps, max(few, floor, MIN_WINDOW_STEPS) if request.run.window_steps is None else math.inf
    )
    run_s = whole.start_s + shortest * whole.step_s
    raise UsageError(
        f"An answer needs {fewest} pairs, and they do not fit into the {max(0.0, left_s):.0f} s left of "
        "the budget.",
        hint=f"A pair takes at least {2 * run_s:.0f} s here: give at least "
        f"--budget {int(2 * most_in_a_lane(fewest, num_lanes) * run_s + request.budget_s - left_s) + 1}s."
        if request.budget_s is not None
        else "",
    )


def for_search(
    request: RunSpec,
    baseline: Outcome,
    others: Sequence[Outcome],
    left_s: float,
    *,
    num_runs: int = 0,
    num_ahead: int = 0,
) -> WindowPlan:
    """Return the window, from the pilots. Arms with a pilot begin it warm, except those that never become
    steady.

    Its length follows from the noise of the baseline and from the time before the window. If the time left
    does not afford enough such runs, the window is shorter, but never too short to be informative: then fewer
    arms are tried.

    Args:
        num_runs: number of runs that the time left should afford.
        num_ahead: as for `plan_window`.

    Raises:
        CannotRunHere: the command ends before it can be timed, or makes too few steps for a verdict.
    """
    steady = [other for other in others if steady_steps(other.records[0]) is not None]
    pilots = [baseline, *steady]
    plan = functools.partial(plan_window, num_telling=1, of_start=OF_START, num_ahead=num_ahead)
    whole = plan(request, pilots)
    if request.window_steps is not None or not whole.num_steps:
        return whole
    refuse_too_short(request, whole)
    fewest = max(
        MIN_WINDOW_STEPS,
        math.ceil(max(MIN_WINDOW_S, LEAST_OF_START * whole.start_s) / whole.step_s),
        fewest_steps(request, whole.step_s),
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
