"""The record of a process."""

from dynotune.agent.core.writer import ALLOCATED, COMPILED, EPOCH
from dynotune.launch.records import record as records


def test_flags_mean_the_same_on_both_sides():
    assert (COMPILED, ALLOCATED, EPOCH) == (records.COMPILED, records.ALLOCATED, records.EPOCH)
