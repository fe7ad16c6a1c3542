"""Plan how many pairs of runs, with which window, fit into the time left for a comparison."""

import functools
import math
from collections.abc import Sequence

from dynotune.measure.live.compilation import COLD_KEPT
from dynotune.measure.live.lane_order import most_in_a_lane
from dynotune.measure.live.outcome import Outcome
from dynotune.measure.live.request import CompareRequest
from dynotune.measure.live.window_length import MIN_WINDOW_S, MIN_WINDOW_STEPS
from dynotune.measure.live.window_plan import (
    LEAST_WINDOW_S,
    WindowPlan,
    fewest_steps,
    plan_window,
    refuse_too_short,
)
from dynotune.schema.comparison import TELLING_PAIRS
from dynotune.schema.errors import UsageError
from dynotune.schema.setting import batches_ahead


def plan(
    request: CompareRequest,
    pilots: Sequence[Outcome],
    left_s: float | None,
    *,
    cold_kept: float | None = None,
    num_lanes: int = 1,
) -> tuple[WindowPlan, int]:
    """Plan the window and the number of pairs: as requested, or the largest even number that the time left allows.

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
    for least, num_pairs in [(least, num) for some in (numbers, [fewest]) for least in leasts for num in some]:
        try:
            num_runs = 2 * most_in_a_lane(num_pairs, num_lanes)
            window = planned(num_runs=num_runs, budget_s=left_s)
        except UsageError:
            continue
        if window.num_steps >= least and num_runs * window.run_s <= left_s:
            return window, num_pairs
    shortest = min(whole.num_steps, max(few, floor, MIN_WINDOW_STEPS) if request.run.window_steps is None else math.inf)
    run_s = whole.start_s + shortest * whole.step_s
    raise UsageError(
        f"An answer needs {fewest} pairs, and they do not fit into the {max(0.0, left_s):.0f} s left of the budget.",
        hint=f"A pair takes at least {2 * run_s:.0f} s here: give at least "
        f"--budget {int(2 * most_in_a_lane(fewest, num_lanes) * run_s + request.budget_s - left_s) + 1}s."
        if request.budget_s is not None
        else "",
    )
