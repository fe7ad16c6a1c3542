"""Give the interval of a statistic of one run by drawing the parts of its window anew (block bootstrap)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

NUM_DRAWN = 400
INTERVAL = (0.025, 0.975)


def interval(
    values: Sequence[float], blocks: Sequence[int], statistic: Callable[[Any], float]
) -> tuple[float, float]:
    """Return the 95% interval of `statistic(values)`, which includes the statistic itself.

    Args:
        blocks: number of the block that each value is in. Values of a block are drawn together, since values
            close to each other depend on each other. One block gives no spread.
        statistic: function of an array.
    """
    import numpy as np

    numbers, every = np.asarray(blocks), np.asarray(values, dtype=float)
    parts = [every[numbers == number] for number in sorted(set(numbers.tolist()))]
    rng = np.random.default_rng(0)
    drawn = [
        statistic(np.concatenate([parts[index] for index in rng.integers(0, len(parts), len(parts))]))
        for _ in range(NUM_DRAWN)
    ]
    low, high = (float(bound) for bound in np.quantile(drawn, INTERVAL))
    own = statistic(every)
    return min(low, own), max(high, own)
