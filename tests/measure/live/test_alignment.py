"""Which step of one rank is which of another, where each counts from when the agent came."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dynotune.measure.live.alignment import skips

from ...fakes import record

STEP_S = 0.1


def joined_at(first: int, pid: int, *, late_s: float = 0.0, num: int = 60):
    """Record the steps of one rank from step `first` of the program on."""
    made = record([STEP_S] * (num - first))
    ends_s = [(first + at) * STEP_S + late_s for at in range(num - first)]
    made.steps[:] = [
        msgspec.structs.replace(step, end_s=end_s) for step, end_s in zip(made.steps, ends_s, strict=True)
    ]
    made.pid = pid
    return made


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 0.4)), min_size=2, max_size=5))
def test_ranks_skip_up_to_the_step_at_which_the_last_one_was_joined(ranks):
    records = [
        joined_at(first, pid, late_s=part * STEP_S) for pid, (first, part) in enumerate(ranks, start=1)
    ]
    last = max(first for first, _ in ranks)
    assert skips(records) == {str(pid): last - first for pid, (first, _) in enumerate(ranks, start=1)}


def test_ranks_skip_nothing_when_one_has_hardly_made_steps():
    assert skips([joined_at(0, 1), joined_at(59, 2)]) == {}
