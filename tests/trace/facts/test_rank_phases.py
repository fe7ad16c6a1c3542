"""The rank that holds the others up by its own work, and in which phase."""

from __future__ import annotations

import numpy as np
import pytest

from dynotune.schema.trace_summary import RANK_PHASES
from dynotune.trace.facts import steps
from dynotune.trace.facts.rank_phases import RankPhases, late, phases

from ..made import Made

NUM_STEPS = 10


def rank_of(own_ns: np.ndarray) -> RankPhases:
    return RankPhases(own_ns, np.zeros(len(own_ns), dtype=np.int64))


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


def test_own_work_ends_where_the_last_gradients_exchange_begins():
    made = Made()
    for begin in range(0, 4_000, 1_000):
        made.annotation(f"ProfilerStep#{begin // 1_000}", begin, begin + 1_000)
        made.annotation("DistributedDataParallel.forward", begin + 100, begin + 300).operator(
            "aten::mm", begin + 110, begin + 290
        )
        made.operator("autograd::engine::evaluate_function: MmBackward0", begin + 300, begin + 500, thread="autograd")
        made.operator("gloo:all_reduce", begin + 480, begin + 700, thread="gloo")
        made.annotation("Optimizer.step#Adam.step", begin + 700, begin + 750).operator(
            "aten::add_", begin + 710, begin + 740
        )
    timeline = made.timeline()
    found = phases(timeline, steps.find(timeline))
    assert found is not None
    own = dict(zip(RANK_PHASES, found.own_ns[1].tolist(), strict=True))
    assert own == {"input": 350, "forward": 200, "backward": 180, "optimizer": 50}
    assert found.exchange_ns[1] == 220
