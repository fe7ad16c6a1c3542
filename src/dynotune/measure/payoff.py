"""After how many steps a setting that starts later, as compilation does, is ahead."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from dynotune.measure.stats import StatisticsError
from dynotune.measure.summary import MeasuredRun, Pace, pace
from dynotune.schema.study import PaysOff


def pays_off(recipe_runs: Sequence[MeasuredRun], baseline_runs: Sequence[MeasuredRun]) -> PaysOff:
    """Medians over the runs of each arm, whose windows say the pace and when it began.

    Of runs with warm caches it is the start with warm caches: the first one of all took longer.

    Raises:
        StatisticsError: an arm has no run whose window and launch are known.
    """
    recipe, baseline = _pace(recipe_runs, "recipe"), _pace(baseline_runs, "baseline")
    return PaysOff(
        start_s=recipe.start_s,
        baseline_start_s=baseline.start_s,
        after_steps=_ahead_after(recipe, baseline),
    )


def _ahead_after(recipe: Pace, baseline: Pace) -> int | None:
    later_s, saved_s = recipe.start_s - baseline.start_s, baseline.step_s - recipe.step_s
    if saved_s <= 0:
        return None
    return 0 if later_s < 0 else math.floor(later_s / saved_s) + 1


def _pace(runs: Sequence[MeasuredRun], arm: str) -> Pace:
    paces = [found for run in runs if (found := pace(run)) is not None]
    if not paces:
        raise StatisticsError(f"When the {arm} is ahead cannot be told: no run of it has a window and a launch.")
    return Pace(statistics.median(one.start_s for one in paces), statistics.median(one.step_s for one in paces))
