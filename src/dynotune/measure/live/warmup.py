"""Find where a run has become steady, and how long its window should be."""

import math
import statistics
from collections.abc import Sequence

from dynotune.schema.comparison import MAX_PAIRS
from dynotune.schema.errors import StatisticsError, UsageError

BATCH_STEPS = 5
MIN_BATCHES = 6
# Limit in standard deviations of a batch, estimated by the median distance of neighbours, robust to few stalls.
ALIKE, TOGETHER, SD_OF_DIFFERENCE = 2.5, 2.0, 1.4826 / math.sqrt(2)

# Relative difference between the means of two runs that is assumed before any measurement, because memory placement,
# cores and clocks differ between processes. A single pilot cannot show this difference, so the assumption counts as
# this many degrees of freedom; with more pilots, the measured spread dominates.
PRIOR_BETWEEN_RUNS = 0.01
PRIOR_DEGREES = 4

# Loaders and collectors have periods of several steps, and synchronising has a jitter of some tenths of a millisecond.
# A window must contain several periods and be much longer than the jitter. Beyond half a minute, another pair adds more
# information than a longer window.
MIN_WINDOW_STEPS = 10
MIN_WINDOW_S = 1.0
MAX_WINDOW_S = 30.0


def steady_from(step_s: Sequence[float], *, events: Sequence[int] = ()) -> int | None:
    """Return the index of the first steady step by MSER-5, or None while that is unknown.

    The result is None with less than 30 steps after the last event, and if the best cut lies in the second half of
    these steps, because the run is still settling. If steps are alike from early on, the criterion is flat and cuts
    anywhere; so steps before the cut that resemble the steps after the cut count as steady too.

    Args:
        step_s: time of each step since the start of the process, in seconds.
        events: indices of steps in which something was compiled, autotuned or newly allocated.

    Raises StatisticsError: a step time is negative or not a number.

    Source: White, Cobb and Spratt 2000, "A comparison of five steady-state truncation heuristics".
    """
    _refuse_non_durations(step_s)
    first = max(events, default=-1) + 1
    means = batch_means(step_s[first:])
    if len(means) < MIN_BATCHES:
        return None
    # Always keep the last third: a few batches that agree by luck would look like a steady state.
    cuts = range(len(means) - max(3, math.ceil(len(means) / 3)) + 1)
    errors = _squared_errors_of_mean(means)
    best = min(cuts, key=errors.__getitem__)
    best = _first_alike(means, best)
    return first + BATCH_STEPS * best if best < len(means) / 2 else None


def _first_alike(means: Sequence[float], cut: int) -> int:
    """Return the first batch of steps from which on all batches before the cut resemble the batches after the cut.

    Neighbours in the second half, after the start has faded, show how much batches differ beside a steady growth. If
    batches two apart are far more alike, their differences count, because an effect in every other batch is not noise.
    """
    tail, late = means[cut:], means[min(cut, len(means) // 2) :]
    middle = statistics.median(tail)
    neighbours = zip(late, late[1:], late[2:], strict=False)
    near = _usual([(before + after - 2 * mean) / math.sqrt(3) for before, mean, after in neighbours])
    far = _usual([after - before for before, after in zip(late, late[2:], strict=False)])
    sd = SD_OF_DIFFERENCE * (far if len(late) > 3 and far < near / 2 else near)
    first = cut
    while first:
        taken = means[first - 1 : cut]
        together = TOGETHER * sd * math.sqrt(1 / len(taken) + 1 / len(tail))
        if abs(taken[0] - middle) > ALIKE * sd or abs(statistics.fmean(taken) - middle) > together:
            break
        first -= 1
    return first


def _usual(differences: Sequence[float]) -> float:
    return statistics.median(map(abs, differences)) if differences else 0.0


def window_length(
    arms: Sequence[Sequence[Sequence[float]]],
    *,
    start_s: float,
    budget_s: float | None = None,
    num_runs: int = 2 * MAX_PAIRS,
) -> int:
    """Return the number of steps of the window that gives the most precision for the time of a comparison.

    The formula is sqrt(cost of a start / cost of a step × variance within / variance between runs), with at least 10
    steps and 1 s, at most 30 s, and within `budget_s`. The length is the same for baseline and candidate.

    Args:
        arms: for baseline and candidate, the steady step times (s) of each pilot run; at least 10 steps.
        start_s: seconds from launch to the first steady step, of the slower of baseline and candidate.
        budget_s: seconds for all `num_runs` runs together.

    Raises:
        StatisticsError: baseline or candidate has no pilot, or a pilot with less than 10 steps or without duration.
        UsageError: the budget allows no window at all.

    Source: Kalibera and Jones 2013, "Rigorous benchmarking in reasonable time", section 6; with the variance of batch
    means within runs, because neighbouring steps are correlated.
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
            f"A budget of {budget_s:.0f} s leaves no time for a window: each of {num_runs} runs takes {start_s:.1f} s"
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
        _refuse_non_durations(run)
    mean_s = math.fsum(math.fsum(run) / len(run) for run in runs) / len(runs)
    if mean_s <= 0:
        raise StatisticsError("The steps of a pilot run took no time at all: its clock stands still.")
    return mean_s


def batch_means(step_s: Sequence[float]) -> list[float]:
    """Return means of complete batches of 5; left-over steps at the end are ignored."""
    whole = len(step_s) - len(step_s) % BATCH_STEPS
    return [math.fsum(step_s[at : at + BATCH_STEPS]) / BATCH_STEPS for at in range(0, whole, BATCH_STEPS)]


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _squared_errors_of_mean(values: Sequence[float]) -> list[float]:
    """Return MSER's criterion from each index on: the values' sum of squares over the squared number of values."""
    # Sum from the end, relative to the last value, so that large early values do not blur later sums.
    errors, total, squares = [], 0.0, 0.0
    for num, value in enumerate(reversed(values), 1):
        total += value - values[-1]
        squares += (value - values[-1]) ** 2
        errors.append(max(0.0, squares - total**2 / num) / num**2)
    return errors[::-1]


def _refuse_non_durations(step_s: Sequence[float]) -> None:
    for index, value in enumerate(step_s):
        if not (math.isfinite(value) and value >= 0):
            raise StatisticsError(f"Step {index} took {value} s, which is no duration.")
