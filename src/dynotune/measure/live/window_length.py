"""Compute how long a window should be, from the noise within runs and between runs, and from the cost of a
start."""

import math
from collections.abc import Sequence

from dynotune.measure.live.warmup import BATCH_STEPS, batch_means, refuse_non_durations
from dynotune.schema.comparison import MAX_PAIRS
from dynotune.schema.errors import StatisticsError, UsageError

# Relative difference between the means of two runs that is assumed before any measurement, because memory
# placement, cores and clocks differ between processes. A single pilot cannot show this difference, so the
# assumption counts as this many degrees of freedom; with more pilots, the measured spread dominates.
PRIOR_BETWEEN_RUNS = 0.01
PRIOR_DEGREES = 4

# Loaders and collectors have periods of several steps, and synchronising has a jitter of some tenths of a
# millisecond. A window must contain several periods and be much longer than the jitter. Beyond half a minute,
# another pair adds more information than a longer window.
MIN_WINDOW_STEPS = 10
MIN_WINDOW_S = 1.0
MAX_WINDOW_S = 30.0


def window_length(
    arms: Sequence[Sequence[Sequence[float]]],
    *,
    start_s: float,
    budget_s: float | None = None,
    num_runs: int = 2 * MAX_PAIRS,
) -> int:
    """Return the number of steps of the window that gives the most precision for the time of a comparison.

    The formula is sqrt(cost of a start / cost of a step × variance within / variance between runs), with at
    least 10 steps and 1 s, at most 30 s, and within `budget_s`. The length is the same for baseline and
    candidate.

    Args:
        arms: for baseline and candidate, the steady step times (s) of each pilot run; at least 10 steps.
        start_s: seconds from launch to the first steady step, of the slower of baseline and candidate.
        budget_s: seconds for all `num_runs` runs together.

    Raises:
        StatisticsError: baseline or candidate has no pilot, or a pilot with less than 10 steps or without
            duration.
        UsageError: the budget allows no window at all.

    Source: Kalibera and Jones 2013, "Rigorous benchmarking in reasonable time", section 6; with the variance
    of batch means within runs, because neighbouring steps are correlated.
    """
    if not arms:
        raise StatisticsError("The window's length needs a pilot run of baseline and candidate.")
    step_s = max(_mean_step_s(runs) for runs in arms)
    best = max(_best_length(runs, start_s) for runs in arms)
    shortest = max(MIN_WINDOW_STEPS, math.ceil(MIN_WINDOW_S / step_s))
    longest = max(shortest, math.floor(MAX_WINDOW_S / step_s))
    steps = min(max(best, shortest), longest)
    if budget_s is None:
        return steps
    affordable = math.floor((budget_s / num_runs - start_s) / step_s)
    if affordable < MIN_WINDOW_STEPS:
        needed_s = num_runs * (start_s + MIN_WINDOW_STEPS * step_s)
        raise UsageError(
            f"A budget of {budget_s:.0f} s leaves no time for a window: each of {num_runs} runs takes "
            f"{start_s:.1f} s"
            f" to become steady and {MIN_WINDOW_STEPS * step_s:.1f} s for {MIN_WINDOW_STEPS} steps.",
            hint=f"Give at least --budget {math.ceil(needed_s)}s, or ask for fewer --pairs.",
        )
    return min(steps, affordable)


def _best_length(runs: Sequence[Sequence[float]], start_s: float) -> int:
    mean_s = _mean_step_s(runs)
    batches = [batch_means(run) for run in runs]
    # A single step's contribution to the variance of a long mean: a batch of b steps has 1/b of it.
    within = BATCH_STEPS * math.fsum(map(_variance, batches)) / len(runs)
    prior = (PRIOR_BETWEEN_RUNS * mean_s) ** 2
    between = prior
    if len(runs) > 1:
        measured_over = math.fsum(map(len, runs)) / len(runs)
        measured = _variance([math.fsum(run) / len(run) for run in runs]) - within / measured_over
        degrees = len(runs) - 1
        between = (PRIOR_DEGREES * prior + degrees * max(0.0, measured)) / (PRIOR_DEGREES + degrees)
    return math.ceil(math.sqrt(start_s / mean_s * within / between))


def _mean_step_s(runs: Sequence[Sequence[float]]) -> float:
    if not runs or min(map(len, runs)) < 2 * BATCH_STEPS:
        raise StatisticsError(f"A pilot run of each with at least {2 * BATCH_STEPS} steady steps is needed.")
    for run in runs:
        refuse_non_durations(run)
    mean_s = math.fsum(math.fsum(run) / len(run) for run in runs) / len(runs)
    if mean_s <= 0:
        raise StatisticsError("The steps of a pilot run took no time at all: its clock stands still.")
    return mean_s


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
