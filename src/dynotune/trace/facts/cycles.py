"""Find the cycle in which a sequence of actions repeats."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynotune.trace.timeline import Ints

MIN_CYCLES = 3
"""A pattern that occurs twice may be chance."""
MIN_SIMILARITY = 0.9
"""Two cycles are similar if they share this fraction of tokens or more: a log line now and then adds few."""
MIN_REGULAR_SHARE = 0.8
"""Least share of the cycles that must be similar to the typical cycle."""
MIN_DISTINCT = 4
"""A cycle of fewer distinct tokens ("linear, relu") may just as well be a stack of layers as a step."""
MAX_TRIED = 64
"""Most tokens that are tried as the boundary of a cycle: the rarest tokens of a program show the boundary."""
MAX_CELLS = 20_000_000
"""Largest size (cycles times distinct tokens) of the table of token counts."""


def smallest_period(tokens: Ints) -> int | None:
    """Return the smallest period that repeats at least three times in a short sequence; None without one.

    One in ten tokens may deviate from the period.
    """
    for period in range(1, len(tokens) // MIN_CYCLES + 1):
        agree = tokens[period:] == tokens[:-period]
        if agree.mean() >= MIN_SIMILARITY:
            return period
    return None


@dataclass(frozen=True, slots=True)
class Tokens:
    """Actions of a program, in its order.

    Args:
        id: the token's kind as a number, from 0 without gaps, int64.
        is_work: for each id, whether the token is work that repeats. The user's annotations and reads of
            results are not: they may occur irregularly.
        is_whole: for each id, whether the token alone can be a whole step (a CUDA graph).
    """

    id: Ints
    is_work: NDArray[np.bool_]
    is_whole: NDArray[np.bool_]

    @staticmethod
    def none() -> Tokens:
        nothing = np.zeros(0, dtype=bool)
        return Tokens(np.zeros(0, dtype=np.int64), nothing, nothing)


def cuts(tokens: Tokens) -> Ints | None:
    """Return the start of each cycle of a long sequence, and the end of the last; None if nothing repeats.

    A token that occurs three times or more may occur once in each cycle and so mark the cycle's boundary. The
    rarest token that divides the sequence into similar pieces is chosen, so that a loop over layers inside a
    step is not mistaken for steps. If only one or two steps were recorded, a loop over layers is all that
    repeats. Such a loop is recognised by the work between its runs, before the first run and after the last,
    which a usual cycle does not contain.
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
    """Return the positions `at`, with the end of the last cycle, if the pieces between them are similar."""
    num_ids = len(tokens.is_work)
    part = np.zeros(len(tokens.id), dtype=np.int64)
    part[at] = 1
    part = np.cumsum(part)
    counts = np.bincount(part * num_ids + tokens.id, minlength=(len(at) + 1) * num_ids).reshape(-1, num_ids)
    before = counts[0]
    inside = counts[1:-1]
    after = counts[-1]
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
    most_beyond = (1 - MIN_SIMILARITY) * typical.sum()
    if any(np.maximum(rest - typical, 0).sum() > most_beyond for rest in (before, after)):
        return None
    return np.append(at, len(tokens.id)) if last_is_whole else at


def _similarity(counts: Ints, typical: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of tokens that each row of counts has in common with the typical row, 0 to 1."""
    apart = np.abs(counts - typical).sum(axis=1)
    similarity: NDArray[np.float64] = 1 - apart / np.maximum(counts.sum(axis=1) + typical.sum(), 1)
    return similarity
