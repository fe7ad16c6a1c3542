"""Whose step is attributed in a job of several ranks."""

import pytest

from dynotune.diagnose.rank_attribution import attributed
from dynotune.schema.observation import ProcessState
from dynotune.trace.summary import summarise

from ..doctor.observations import timing
from ..trace.facts.test_rank_phases import ahead, always, job


def test_rank_imbalance_is_told_by_the_recorded_ranks_together_and_not_by_each_alone():
    timelines = ahead(always(0, backward=20))
    recorded = summarise(timelines)
    # Steps of 33 ms, recorded.
    found = attributed([ProcessState(pid=1, timing=timing(step_s=30e-3))], recorded, timelines)
    told = [(loss.claim, loss.evidence) for loss in found.lost_time if loss.id == "rank-imbalance"]
    assert (
        told
        == [(cause.claim, cause.evidence) for cause in recorded.causes if cause.id == "rank-imbalance"]
        != []
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_the_parts_of_a_step_are_those_of_the_rank_that_the_others_wait_for(rank):
    timelines = job(2, always(rank, input=40))
    states = [
        ProcessState(pid=at, rank=at, timing=timing(step_s=54e-3, wait_s=(42e-3 if at == rank else 2e-3)))
        for at in range(2)
    ]
    found = attributed(states, summarise(timelines), timelines)
    assert found.shares.input == pytest.approx(42 / 54, abs=0.02)
    assert found.shares.communication < 0.1
