"""Several processes in one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynotune.trace.readers import kineto

from ..chrome import Event, call, kernel, named, span, write
from .rows import device, only


def rank(number: int, *, pid: object, device_pid: object, first: int, at: float) -> list[Event]:
    """Two kernels and their calls; the correlations start at `first`."""
    kernels = [kernel(at + 10 * i, 4, first + i, name=f"of rank {number}", device=0) for i in range(2)]
    for one in kernels:
        one["pid"] = device_pid
    calls = [call(at - 3 + 10 * i, 2, first + i, pid=pid) for i in range(2)]
    return [
        *calls,
        *kernels,
        named("process_labels", "", pid=pid),
        named("process_name", f"rank {number}", pid=pid),
    ]


@pytest.mark.parametrize("first", [1, 2, 50])
@pytest.mark.parametrize("device_pid", [1000, 0])
def test_a_merged_file_gives_each_rank_its_own_work(tmp_path: Path, first: int, device_pid: int) -> None:
    events = rank(0, pid=10, device_pid=0, first=1, at=100) + rank(
        1, pid=20, device_pid=device_pid, first=first, at=105
    )
    path = write(tmp_path / "trace.json", events, distributedInfo={"rank": 0, "world_size": 2})
    zero, one = kineto.read(path)
    for number, timeline in enumerate((zero, one)):
        assert [row[0] for row in device(timeline)] == [f"of rank {number}"] * 2
        assert [row[-1] for row in device(timeline)] == [97_000 + 5_000 * number, 107_000 + 5_000 * number]
        assert (timeline.rank, timeline.world_size) == (number, 2)
        assert timeline.threads == ["thread 1"]
        assert len(timeline.host) == 2
    told = [note for note in zero.notes if "fit calls of several" in note]
    assert bool(told) == (first == 1 or (first == 2 and device_pid == 0))


def test_work_without_a_call_goes_to_the_process_that_the_rest_of_its_group_belongs_to(
    tmp_path: Path,
) -> None:
    events = rank(0, pid=10, device_pid=0, first=1, at=100) + rank(1, pid="b", device_pid=1, first=1, at=105)
    stray = kernel(300, 1, 999, name="stray")
    stray["pid"] = 1
    nowhere = kernel(400, 1, 998, name="nowhere")
    nowhere["pid"] = 77
    helper = span("cpu_op", "of a helper", 1, 1, pid=3)
    zero, one = kineto.read(write(tmp_path / "trace.json", [*events, stray, nowhere, helper]))
    assert [row[0] for row in device(zero)] == ["of rank 0", "of rank 0"]
    assert [row[0] for row in device(one)] == ["of rank 1", "of rank 1", "stray"]
    assert zero.notes == one.notes
    assert "1 device activities fit no call of any process and were left out" in zero.notes
    assert "1 spans of processes that launched nothing were left out" in zero.notes


def test_a_process_that_launches_nothing_stands_with_the_one_that_does(tmp_path: Path) -> None:
    helper = [span("cpu_op", "of a helper", 1, 1, pid=3), call(5, 1, 40, pid=3)]
    alone = rank(0, pid=10, device_pid=0, first=1, at=100)
    timeline = only(write(tmp_path / "trace.json", [*alone, *helper]))
    assert len(timeline.host) == 4
    assert timeline.threads == ["thread 1 of process 3", "thread 1 of process 10"]
