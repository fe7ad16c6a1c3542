"""Which allocation of one run is which of another, with another batch: alignment by dynamic programming.

Runs with different batches differ by more than sizes: libraries choose other kernels, which take or leave a workspace.
An allocation is recognised by its size, which is the same or grows with the batch, and by how long it lives.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynotune.trace.snapshot import Life

Array = NDArray[Any]
MOST_DRIFT = 300
"""Allocations by which the runs may be shifted against each other, besides those that one has more."""
ROUNDING_BYTES = 512
GAP, SAME_SIZE, GROWN, OTHER, SAME_SPAN = -1.0, 3.0, 1.0, -1.0, 0.5
"""Scores: to leave one out; a size that is the same or in proportion, one between these, another; a life as long."""
DIAGONAL, UP, LEFT = 0, 1, 2


def aligned(first: Sequence[Life], second: Sequence[Life], ratio: float) -> tuple[list[int | None], float]:
    """Align the allocations of two runs.

    Args:
        first, second: in order of birth.
        ratio: by which sizes grow that follow the batch.

    Returns:
        For each of `second` the index of its partner in `first`, None without one; and how well all match.
    """
    num_first, num_second = len(first), len(second)
    width = 2 * (MOST_DRIFT + abs(num_first - num_second)) + 1
    size, span = _columns(first), _columns(second)
    rows: list[tuple[int, Array]] = []
    best: Array = np.empty(0)
    begin = 0
    for row in range(num_first + 1):
        at = max(0, min(num_second, row * num_second // max(1, num_first)) - width // 2)
        columns = np.arange(at, min(num_second, at + width - 1) + 1)
        if row == 0:
            scores, steps = GAP * columns, np.full(len(columns), LEFT, dtype=np.int8)
        else:
            pair = np.maximum(columns - 1, 0)
            scored = _scores(size[:, row - 1], span[:, pair], ratio)
            diagonal = np.where(columns > 0, _at(best, pair - begin) + scored, -np.inf)
            up = _at(best, columns - begin) + GAP
            scores, steps = np.maximum(diagonal, up), np.where(diagonal >= up, DIAGONAL, UP).astype(np.int8)
            # To leave out several of `second` in a row is a running maximum.
            left = np.maximum.accumulate(scores - GAP * columns) + GAP * columns
            steps[left > scores] = LEFT
            scores = left
        rows.append((at, steps))
        best, begin = scores, at
    partners: list[int | None] = [None] * num_second
    row, column = num_first, num_second
    while row > 0 and column > 0:
        at, steps = rows[row]
        step = steps[column - at] if 0 <= column - at < len(steps) else UP
        if step == DIAGONAL:
            partners[column - 1] = row - 1
        row, column = row - (step != LEFT), column - (step != UP)
    return partners, float(best[-1])


def _columns(lives: Sequence[Life]) -> Array:
    return np.array([(life.size, life.died - life.born) for life in lives], dtype=float).reshape(-1, 2).T


def _at(values: Array, index: Array) -> Array:
    inside = (index >= 0) & (index < len(values))
    found: Array = np.where(inside, values[np.clip(index, 0, max(0, len(values) - 1))], -np.inf)
    return found


def _scores(one: Array, others: Array, ratio: float) -> Array:
    size, span = one
    sizes, spans = others
    same = (sizes == size) | (np.abs(sizes - size * ratio) <= ROUNDING_BYTES)
    between = (sizes >= size) & (sizes <= size * ratio)
    found: Array = np.where(same, SAME_SIZE, np.where(between, GROWN, OTHER)) + SAME_SPAN * (spans == span)
    return found
