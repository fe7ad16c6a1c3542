"""The cycle in which a sequence of tokens repeats, if it does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynotune.trace.timeline import Ints

MIN_CYCLES = 3
"""What happened twice may be chance."""
MIN_SIMILARITY = 0.9
"""Two cycles are alike when they share this part of their tokens: a line logged every tenth step changes a few."""
MIN_REGULAR_SHARE = 0.8
"""Of the cycles, how many must be like the typical one."""
MIN_DISTINCT = 4
"""A cycle of fewer distinct tokens ("linear, relu") is a stack of layers as likely as it is a step."""
MAX_TRIED = 64
"""Tokens tried as the mark of a cycle: a program with a cycle shows it in the rarest of them."""
MAX_CELLS = 20_000_000
"""Cycles times distinct tokens that are counted at most."""


def smallest_period(tokens: Ints) -> int | None:
    """The smallest period that holds for at least three cycles of a short sequence; None where there is none.

    One in ten tokens may stand out of line.
    """
    for period in range(1, len(tokens) // MIN_CYCLES + 1):
        agree = tokens[period:] == tokens[:-period]
        if agree.mean() >= MIN_SIMILARITY:
            return period
    return None


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a program did, in its order.

    Args:
        id: which token, from 0 without gaps, int64.
        is_work: of each id: whether it belongs to the work that repeats. Names that the user gave to stretches of
            it and results read back do not: they may turn up now and then.
        is_whole: of each id: whether it alone can be all of a step (a CUDA graph).
    """

    id: Ints
    is_work: NDArray[np.bool_]
    is_whole: NDArray[np.bool_]

    @staticmethod
    def none() -> Tokens:
        nothing = np.zeros(0, dtype=bool)
        return Tokens(np.zeros(0, dtype=np.int64), nothing, nothing)


def cuts(tokens: Tokens) -> Ints | None:
    """Where the cycles of a long sequence start, and where the last one ends; None where nothing repeats.

    Every token that occurs three times or more might mark the cycle: it occurs once in each. The rarest that
    divides the sequence into alike parts is taken, so that a loop over layers inside a step is not called one.
    Where only one or two steps were recorded, such a loop is all that repeats: it is told by the work between
    its runs, before the first and after the last, which a usual cycle does not hold.
    """
    num_ids = len(tokens.is_work)
    counts = np.bincount(tokens.id, minlength=num_ids)
    order = np.argsort(tokens.id, kind="stable")
    begins = np.cumsum(counts) - counts
    marks = np.flatnonzero(counts >= MIN_CYCLES)
    marks = marks[np.lexsort((order[begins[marks]], counts[marks]))]
    tried = 0
    for mark in marks.tolist():
        at = order[begins[mark] : begins[mark] + counts[mark]]
        if not _even(np.diff(at)) or (len(at) + 1) * num_ids > MAX_CELLS:
            continue
        tried += 1
        if tried > MAX_TRIED:
            return None
        found = _alike(tokens, at)
        if found is not None:
            return found
    return None


def _even(lengths: Ints) -> bool:
    middle = np.median(lengths)
    near = np.abs(lengths - middle) <= (1 - MIN_REGULAR_SHARE) * middle
    return bool(near.mean() >= MIN_REGULAR_SHARE)


def _alike(tokens: Tokens, at: Ints) -> Ints | None:
    """`at`, with the end of the last cycle, if the parts between these positions are alike."""
    num_ids = len(tokens.is_work)
    part = np.zeros(len(tokens.id), dtype=np.int64)
    part[at] = 1
    part = np.cumsum(part)
    counts = np.bincount(part * num_ids + tokens.id, minlength=(len(at) + 1) * num_ids).reshape(-1, num_ids)
    before, inside, after = counts[0], counts[1:-1], counts[-1]
    typical = np.median(inside, axis=0)
    present = typical > 0
    if (present & tokens.is_work).sum() < MIN_DISTINCT and not (present & tokens.is_whole).any():
        return None
    regular = _similarity(inside, typical) >= MIN_SIMILARITY
    last_is_whole = bool(_similarity(after[None], typical)[0] >= MIN_SIMILARITY)
    if len(inside) + last_is_whole < MIN_CYCLES or regular.mean() < MIN_REGULAR_SHARE:
        return None
    if ((counts > 0) & ~present & tokens.is_work).any():
        return None
    if any(np.maximum(rest - typical, 0).sum() > (1 - MIN_SIMILARITY) * typical.sum() for rest in (before, after)):
        return None
    return np.append(at, len(tokens.id)) if last_is_whole else at


def _similarity(counts: Ints, typical: NDArray[np.float64]) -> NDArray[np.float64]:
    """Part of the tokens that each row of counts shares with the typical one, 0 to 1."""
    apart = np.abs(counts - typical).sum(axis=1)
    similarity: NDArray[np.float64] = 1 - apart / np.maximum(counts.sum(axis=1) + typical.sum(), 1)
    return similarity
