"""Which lanes are as fast as the whole machine, from pilots that are made up."""

from __future__ import annotations

import os

import pytest
from msgspec.structs import replace

from dynotune.measure.live import lane_speed, lanes
from dynotune.measure.live.lane_order import SideBySide
from dynotune.measure.live.lanes import WHOLE, Lane
from dynotune.measure.live.outcome import Outcome
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.run import EnvironmentChange

from ...fakes import Watcher, process, record, run, spec, take


@pytest.fixture
def watcher():
    return Watcher()


def pilot(step_s, *, ranks=1, num_devices=None) -> Outcome:
    """A pilot of steady steps that differ a little, in turns."""
    times = [step_s * (1 + 0.002 * (index % 7)) for index in range(200)]
    made = run(*[process(num_devices=num_devices) for _ in range(ranks)])
    records = [record(times, rank=None if ranks == 1 else rank) for rank in range(ranks)]
    for one in records:
        take(one, {"event": "cycle", "begin_s": one.begin_s, "world_size": ranks})
    return Outcome(run=made, folder=None, launched_s=0.0, records=records)


def found(alone, pilots, watcher, number=2, failing=()):
    """The lanes that `alike` finds; `pilots`: the step time by number of lanes and lane, seconds."""

    def launch(lane):
        if lane.number in failing:
            raise CannotRunHere("its port is taken")
        return pilots(lane)

    cores = [[cpu] for cpu in sorted(os.sched_getaffinity(0))] * 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes.probe.host, "cores", lambda cpus: cores)
        among = [Lane(0, f"GPU-{place}") for place in range(4)]
        return lane_speed.alike(spec(lanes=number), among, alone, SideBySide(), launch, watcher)


def test_lanes_that_are_as_fast_as_the_machine_alone_are_all_used(watcher):
    assert [lane.number for lane in found(pilot(0.010), lambda lane: pilot(0.0101), watcher)] == [1, 2, 3, 4]


def test_the_first_run_of_all_may_be_slower_than_all_lanes(watcher):
    assert len(found(pilot(0.020), lambda lane: pilot(0.010), watcher)) == 4


def test_a_lane_that_is_slower_by_more_than_noise_is_left_out_and_said(watcher):
    taken = found(pilot(0.010), lambda lane: pilot(0.012 if lane.number == 2 else 0.010), watcher)
    assert [lane.number for lane in taken] == [1, 3, 4]
    why = "Lane 2 is left out: steps take 20."
    assert any(text.startswith(why) and "may be noise" in text for text in watcher.said)
    paces = next(text for text in watcher.said if text.startswith("A step takes"))
    assert "ms with the whole machine" in paces
    assert "12.1 ms in lane 2" in paces


def test_one_lane_that_happens_to_be_fast_makes_no_other_lane_slow(watcher):
    """Runs of a program that waits for its host differ by a tenth, in whichever lane they are."""
    paces = {1: 0.00492, 2: 0.00449, 3: 0.00501, 4: 0.00495}
    assert len(found(pilot(0.0061), lambda lane: pilot(paces[lane.number]), watcher)) == 4
    two = {Lane(number): pilot(paces[number]) for number in (1, 2)}
    assert lane_speed.slower(pilot(0.0061), two) == {}
    slow = found(
        pilot(0.0061), lambda lane: pilot(0.006 if lane.number == 3 else paces[lane.number]), watcher
    )
    assert [lane.number for lane in slow] == [1, 2, 4]


def test_lanes_that_are_a_little_slower_by_more_than_noise_are_not_used(watcher):
    assert found(pilot(0.010), lambda lane: pilot(0.0107), watcher) == [lanes.WHOLE]


def test_a_lane_whose_run_fails_is_left_out_and_said(watcher):
    assert [
        lane.number for lane in found(pilot(0.010), lambda lane: pilot(0.010), watcher, failing=(1,))
    ] == [2, 3, 4]
    assert "Lane 1 is left out: its port is taken" in watcher.said


def test_lanes_that_spoil_each_other_are_fewer(watcher):
    num = []

    def shared_disk(lane):
        num.append(lane.number)
        return pilot(0.010 if len(num) > 4 else 0.014)

    assert [lane.gpu for lane in found(pilot(0.010), shared_disk, watcher)] == ["GPU-0", "GPU-1"]


def test_runs_go_one_after_another_when_all_lanes_are_slower(watcher):
    assert found(pilot(0.010), lambda lane: pilot(0.02), watcher) == [WHOLE]
    assert watcher.said[-1] == "Runs go one after another."


@pytest.mark.parametrize("several", [{"ranks": 2}, {"num_devices": 2}])
def test_a_program_of_several_gpus_is_refused_where_a_number_was_asked_for(watcher, several):
    with pytest.raises(UsageError, match="2 ranks or GPUs"):
        found(pilot(0.01, **several), lambda lane: pilot(0.01), watcher, 2)
    assert found(pilot(0.01, **several), lambda lane: pilot(0.01), watcher, lanes.AUTO) == [WHOLE]


def test_a_program_that_chooses_its_gpu_itself_has_no_lanes(watcher):
    alone = pilot(0.01)
    change = EnvironmentChange(
        name="CUDA_VISIBLE_DEVICES", value="0", file="train.py", line=3, function="main"
    )
    alone.run.processes[0] = replace(alone.run.processes[0], environment_changes=[change])
    with pytest.raises(UsageError, match="sets CUDA_VISIBLE_DEVICES itself"):
        found(alone, lambda lane: pilot(0.01), watcher, 2)
    assert found(alone, lambda lane: pilot(0.01), watcher, lanes.AUTO) == [WHOLE]


def test_there_are_no_more_lanes_than_processors(watcher, monkeypatch):
    monkeypatch.setattr(lanes.probe.host, "cores", lambda cpus: [[0]])
    among = [Lane(0, "GPU-0"), Lane(0, "GPU-1")]
    assert lane_speed.alike(spec(lanes=lanes.AUTO), among, pilot(0.01), SideBySide(), pilot, watcher) == [
        WHOLE
    ]


def test_a_lane_whose_pilot_has_no_step_is_not_called_slower(watcher):
    made = {Lane(1): Outcome(run=run(process()), folder=None, launched_s=0.0, records=[record([])])}
    assert lane_speed.slower(pilot(0.01), made) == {}
