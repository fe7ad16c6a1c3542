"""Find where a run has become steady."""

import math
import statistics
from collections.abc import Sequence

from dynotune.schema.errors import StatisticsError

BATCH_STEPS = 5
MIN_BATCHES = 6
# Limit in standard deviations of a batch, estimated by the median distance of neighbours, robust to few
# stalls.
ALIKE = 2.5
TOGETHER = 2.0
SD_OF_DIFFERENCE = 1.4826 / math.sqrt(2)


def steady_from(step_s: Sequence[float], *, events: Sequence[int] = ()) -> int | None:
    """Return the index of the first steady step by MSER-5, or None while that is unknown.

    The result is None with less than 30 steps after the last event, and if the best cut lies in the second
    half of these steps, because the run is still settling. If steps are alike from early on, the criterion is
    flat and cuts anywhere; so steps before the cut that resemble the steps after the cut count as steady too.

    Args:
        step_s: time of each step since the start of the process, in seconds.
        events: indices of steps in which something was compiled, autotuned or newly allocated.

    Raises StatisticsError: a step time is negative or not a number.

    Source: White, Cobb and Spratt 2000, "A comparison of five steady-state truncation heuristics".
    """
    refuse_non_durations(step_s)
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
    """Return the first batch of steps from which on all batches before the cut resemble the batches after the
    cut.

    Neighbours in the second half, after the start has faded, show how much batches differ beside a steady
    growth. If batches two apart are far more alike, their differences count, because an effect in every other
    batch is not noise.
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


def batch_means(step_s: Sequence[float]) -> list[float]:
    """Return means of complete batches of 5; left-over steps at the end are ignored."""
    whole = len(step_s) - len(step_s) % BATCH_STEPS
    return [math.fsum(step_s[at : at + BATCH_STEPS]) / BATCH_STEPS for at in range(0, whole, BATCH_STEPS)]


def _squared_errors_of_mean(values: Sequence[float]) -> list[float]:
    """Return MSER's criterion from each index on: the values' sum of squares over the squared number of
    values."""
    # Sum from the end, relative to the last value, so that large early values do not blur later sums.
    errors, total, squares = [], 0.0, 0.0
    for num, value in enumerate(reversed(values), 1):
        total += value - values[-1]
        squares += (value - values[-1]) ** 2
        errors.append(max(0.0, squares - total**2 / num) / num**2)
    return errors[::-1]


def refuse_non_durations(step_s: Sequence[float]) -> None:
    for index, value in enumerate(step_s):
        if not (math.isfinite(value) and value >= 0):
            raise StatisticsError(f"Step {index} took {value} s, which is no duration.")
