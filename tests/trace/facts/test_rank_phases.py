"""The rank that holds the others up by its own work, and in which phase."""

from __future__ import annotations

import numpy as np
import pytest

from dynotune.schema.trace_summary import RANK_PHASES
from dynotune.trace.facts.rank_phases import RankPhases, late

NUM_STEPS = 10


def rank_of(own_ns: np.ndarray) -> RankPhases:
    return RankPhases([], own_ns, np.zeros(len(own_ns), dtype=np.int64))


def alike() -> np.ndarray:
    """Own work of four ranks, which take turns in being last; shape (ranks, steps, phases)."""
    own = np.full((4, NUM_STEPS, len(RANK_PHASES)), 1_000, dtype=np.int64)
    for step in range(NUM_STEPS):
        own[step % 4, step, 1] += 500
    return own


@pytest.mark.parametrize("phase", RANK_PHASES)
@pytest.mark.parametrize("rank", range(4))
def test_the_rank_that_works_longer_in_each_step_is_late_in_that_phase(rank, phase):
    own = alike()
    own[rank, :, RANK_PHASES.index(phase)] += 2_000
    found = late([rank_of(one) for one in own])
    assert found is not None
    assert (found.rank, found.phase, found.late_ns) == (rank, phase, 2_000)


def test_ranks_that_are_last_in_turn_are_not_late():
    assert late([rank_of(one) for one in alike()]) is None


def test_one_slow_step_makes_no_rank_late():
    own = alike()
    own[2, 4] += 1_000_000
    assert late([rank_of(one) for one in own]) is None


def test_few_steps_make_no_rank_late():
    own = alike()[:, :2]
    own[1] += 2_000
    assert late([rank_of(one) for one in own]) is None
