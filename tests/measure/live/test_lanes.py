"""Lanes: which there are, whether they are alike, and in which order their pairs are taken."""

from __future__ import annotations

import itertools
import math
import os
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dynotune.measure.comparison import judge, orders
from dynotune.measure.live import lanes
from dynotune.measure.live.lanes import WHOLE, InOrder, Lane, SideBySide
from dynotune.measure.live.outcome import Outcome
from dynotune.measure.live.pilot import lane_of, most_in_a_lane
from dynotune.schema.comparison import Pair
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.facts import Unknown
from dynotune.schema.run import EnvironmentChange
from dynotune.schema.setting import Setting

from ...fakes import Watcher, process, record, run, spec

GIB = 2**30


@pytest.fixture
def watcher():
    return Watcher()


def gpu(place, **changed):
    facts = {
        "uuid": f"GPU-{place}", "name": "H200", "memory_bytes": 141 * GIB, "utilisation_percent": 0,
        "memory_used_bytes": GIB // 2, "cpu_affinity": [2 * place, 2 * place + 1],
    }  # fmt: skip
    return {f"gpu{place or ''}.{name}": value for name, value in (facts | changed).items()}


def pilot(step_s, *, ranks=1, num_devices=None) -> Outcome:
    """A pilot of steady steps that differ a little, in turns."""
    times = [step_s * (1 + 0.002 * (index % 7)) for index in range(200)]
    made = run(*[process(num_devices=num_devices) for _ in range(ranks)])
    records = [record(times, rank=None if ranks == 1 else rank) for rank in range(ranks)]
    for one in records:
        one.events["cycle"][0]["world_size"] = ranks
    return Outcome(run=made, folder=None, launched_s=0.0, records=records)


# Which lanes there are


def test_idle_gpus_of_one_kind_are_lanes_by_their_uuid_with_the_cores_near_them(watcher):
    found = lanes.idle(gpu(0) | gpu(1), 2, "", watcher)
    assert found == [Lane(0, "GPU-0", frozenset({0, 1})), Lane(0, "GPU-1", frozenset({2, 3}))]
    assert not watcher.said


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"utilisation_percent": 80}, "another program uses it"),
        ({"memory_used_bytes": 100 * GIB}, "another program uses it"),
        ({"name": "L4"}, "another kind, L4"),
    ],
)
def test_a_gpu_that_is_busy_or_another_is_left_out_and_said(watcher, changed, why):
    found = lanes.idle(gpu(0) | gpu(1, **changed) | gpu(2), 3, "", watcher)
    assert [lane.gpu for lane in found] == ["GPU-0", "GPU-2"]
    assert [why in text and "GPU 1 " in text for text in watcher.said] == [True]


def test_a_gpu_is_left_out_with_the_figures_and_a_little_less_memory_is_the_same_kind(watcher):
    facts = (
        gpu(0) | gpu(1, memory_bytes=141 * GIB - 2**22) | gpu(2, utilisation_percent=80) | gpu(3, memory_bytes=80 * GIB)
    )
    found = lanes.idle(facts, 4, "", watcher)
    assert [lane.gpu for lane in found] == ["GPU-0", "GPU-1"]
    assert "80% of its time and 0% of its memory" in watcher.said[0]
    assert "H200 of 85.9 GB" in watcher.said[1]


def test_a_gpu_that_was_busy_a_moment_ago_is_waited_for(watcher, monkeypatch):
    looks = [gpu(0, utilisation_percent=90) | gpu(1), gpu(0, utilisation_percent=90) | gpu(1), gpu(0) | gpu(1)]
    slept = []
    monkeypatch.setattr(lanes.probe.gpu, "facts", lambda env: {"gpu.count": 2} | looks[len(slept)])
    monkeypatch.setattr(lanes.time, "sleep", slept.append)
    notes = lanes.Notes(watcher)
    assert [lane.gpu for lane in lanes.wanted(spec(lanes=2), notes)] == ["GPU-0", "GPU-1"]
    assert len(slept) == 2
    assert notes.said == watcher.said == ["Of 2 GPUs that the command sees, 2 can have a lane."]


def test_a_gpu_that_stays_busy_is_left_out(watcher, monkeypatch):
    now_s = iter(range(100))
    monkeypatch.setattr(
        lanes.probe.gpu, "facts", lambda env: {"gpu.count": 2} | gpu(0, utilisation_percent=90) | gpu(1)
    )
    monkeypatch.setattr(lanes.time, "sleep", lambda s: None)
    monkeypatch.setattr(lanes.time, "monotonic", lambda: float(next(now_s)))
    assert [lane.gpu for lane in lanes.wanted(spec(lanes=2), lanes.Notes(watcher))] == ["GPU-1"]
    assert any("90% of its time" in text for text in watcher.said)
    assert "CUDA_VISIBLE_DEVICES=GPU-1" in watcher.said[-1]


def test_a_gpu_whose_use_is_unknown_is_taken_and_said_and_the_users_own_word_names_it(watcher):
    unknown = dict.fromkeys(("uuid", "utilisation_percent", "memory_used_bytes", "cpu_affinity"), Unknown("not told"))
    found = lanes.idle(gpu(0, **unknown) | gpu(1, **unknown), 2, "3,5", watcher)
    assert found == [Lane(0, "3"), Lane(0, "5")]
    assert ["uses GPU 3 is unknown" in watcher.said[0], "uses GPU 5 is unknown" in watcher.said[1]] == [True, True]


def test_the_figures_of_a_busy_gpu_are_only_those_that_nvml_reports(watcher):
    facts = gpu(0, utilisation_percent=Unknown("not told"), memory_used_bytes=100 * GIB) | gpu(1)
    assert [lane.gpu for lane in lanes.idle(facts, 2, "", watcher)] == ["GPU-1"]
    assert "another program uses it, 71% of its memory." in watcher.said[0]


def test_a_lane_shows_its_program_one_gpu_and_the_whole_machine_changes_nothing():
    one = spec(env={"CUDA_VISIBLE_DEVICES": "3,5", "A": "1"})
    assert Lane(1, "GPU-0").of(one).env == {"CUDA_VISIBLE_DEVICES": "GPU-0", "A": "1"}
    assert WHOLE.of(one) == one


@pytest.mark.parametrize(
    ("gpus", "fields", "setting", "said"),
    [
        ([0, 1], {"lanes": 3}, "env.A", "sees 2 GPUs, too few for 3 lanes"),
        ([], {"lanes": 2}, "env.A", "sees 1 cores, too few"),
        ([0, 1], {"lanes": 2}, "env.CUDA_VISIBLE_DEVICES", "chooses the GPU"),
        ([0, 1], {"lanes": 0, "objective": "time-to-first-step"}, "env.A", "the same disk"),
        (Unknown("a GPU is split by MIG"), {"lanes": 2}, "env.A", "split by MIG"),
    ],
)
def test_lanes_that_cannot_be_are_refused_with_what_to_do(monkeypatch, gpus, fields, setting, said):
    monkeypatch.setattr(lanes.probe.nvml, "visible_gpus", lambda env: gpus)
    monkeypatch.setattr(lanes.probe.host, "usable_cpus", lambda: [0])
    with pytest.raises(UsageError, match=said) as refused:
        lanes.refuse_impossible(spec(**fields), [Setting(setting, "1")])
    assert "--lanes" in refused.value.hint
    lanes.refuse_impossible(spec(**fields | {"lanes": 1}), [Setting(setting, "1")])


@given(st.integers(1, 8), st.integers(0, 24), st.integers(1, 2), st.randoms())
def test_cores_are_shared_out_evenly_whole_and_each_once(num, more, threads, draw):
    numbers = iter(range(10_000))
    cores = [[next(numbers) for _ in range(threads)] for _ in range(num + more)]
    cpus = [cpu for core in cores for cpu in core]
    among = [Lane(0, f"GPU-{place}", frozenset(draw.sample(cpus, draw.randint(0, len(cpus))))) for place in range(num)]
    made = lanes.divide(among, cores)
    assert [(lane.number, lane.gpu) for lane in made] == [(place + 1, f"GPU-{place}") for place in range(num)]
    assert {len(lane.cpus) for lane in made} == {threads * (len(cores) // num)}
    assert sum(len(lane.cpus) for lane in made) == len(frozenset[int]().union(*(lane.cpus for lane in made)))
    assert all(lane.cpus.issuperset(core) or lane.cpus.isdisjoint(core) for lane in made for core in cores)


def test_a_lane_has_the_cores_of_its_own_node_first():
    cores = [[cpu] for cpu in range(8)]
    made = lanes.divide([Lane(0, "a", frozenset(range(4, 8))), Lane(0, "b", frozenset(range(4)))], cores)
    assert [lane.cpus for lane in made] == [frozenset(range(4, 8)), frozenset(range(4))]
    # Both GPUs on one node: they share it, and take the rest from the other.
    made = lanes.divide([Lane(0, "a", frozenset(range(4))), Lane(0, "b", frozenset(range(4)))], cores)
    assert [len(lane.cpus & set(range(4))) for lane in made] == [2, 2]


def test_with_fewer_cores_than_lanes_their_threads_are_shared_out():
    assert [lane.cpus for lane in lanes.divide([Lane(), Lane()], [[0, 1]])] == [{0}, {1}]


# Whether they are alike


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
        return lanes.alike(spec(lanes=number), among, alone, SideBySide(), launch, watcher)


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
    assert lanes.slower(pilot(0.0061), two) == {}
    slow = found(pilot(0.0061), lambda lane: pilot(0.006 if lane.number == 3 else paces[lane.number]), watcher)
    assert [lane.number for lane in slow] == [1, 2, 4]


def test_lanes_that_are_a_little_slower_by_more_than_noise_are_not_used(watcher):
    assert found(pilot(0.010), lambda lane: pilot(0.0107), watcher) == [lanes.WHOLE]


def test_a_lane_whose_run_fails_is_left_out_and_said(watcher):
    assert [lane.number for lane in found(pilot(0.010), lambda lane: pilot(0.010), watcher, failing=(1,))] == [2, 3, 4]
    assert "Lane 1 is left out: its port is taken" in watcher.said


def test_lanes_that_spoil_each_other_are_fewer(watcher):
    num = []

    def shared_disk(lane):
        num.append(lane.number)
        return pilot(0.010 if len(num) > 4 else 0.014)

    assert [lane.gpu for lane in found(pilot(0.010), shared_disk, watcher)] == ["GPU-0", "GPU-1"]


def test_where_all_lanes_are_slower_runs_go_one_after_another(watcher):
    assert found(pilot(0.010), lambda lane: pilot(0.02), watcher) == [WHOLE]
    assert watcher.said[-1] == "Runs go one after another."


@pytest.mark.parametrize("several", [{"ranks": 2}, {"num_devices": 2}])
def test_a_program_of_several_gpus_is_refused_where_a_number_was_asked_for(watcher, several):
    with pytest.raises(UsageError, match="2 ranks or GPUs"):
        found(pilot(0.01, **several), lambda lane: pilot(0.01), watcher, 2)
    assert found(pilot(0.01, **several), lambda lane: pilot(0.01), watcher, lanes.AUTO) == [WHOLE]


def test_a_program_that_chooses_its_gpu_itself_has_no_lanes(watcher):
    alone = pilot(0.01)
    change = EnvironmentChange(name="CUDA_VISIBLE_DEVICES", value="0", file="train.py", line=3, function="main")
    alone.run.processes[0] = replace(alone.run.processes[0], environment_changes=[change])
    with pytest.raises(UsageError, match="sets CUDA_VISIBLE_DEVICES itself"):
        found(alone, lambda lane: pilot(0.01), watcher, 2)
    assert found(alone, lambda lane: pilot(0.01), watcher, lanes.AUTO) == [WHOLE]


def test_there_are_no_more_lanes_than_processors(watcher, monkeypatch):
    monkeypatch.setattr(lanes.probe.host, "cores", lambda cpus: [[0]])
    among = [Lane(0, "GPU-0"), Lane(0, "GPU-1")]
    assert lanes.alike(spec(lanes=lanes.AUTO), among, pilot(0.01), SideBySide(), pilot, watcher) == [WHOLE]


def test_a_lane_whose_pilot_has_no_step_is_not_called_slower(watcher):
    made = {Lane(1): Outcome(run=run(process()), folder=None, launched_s=0.0, records=[record([])])}
    assert lanes.slower(pilot(0.01), made) == {}


# In which order


class Gates:
    """Jobs that end when they are told to, in any order."""

    def __init__(self):
        self.gates = [threading.Event() for _ in range(64)]
        self.began = []

    def __call__(self, lane, pair):
        self.began.append((pair, lane))
        self.gates[pair].wait()
        return pair, lane


AMONG = [Lane(number, "", frozenset(os.sched_getaffinity(0))) for number in (1, 2, 3)]


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(12)), st.integers(2, 3))
def test_pairs_are_taken_in_the_order_in_which_they_were_drawn_whatever_order_they_end_in(ends, num):
    jobs = Gates()

    def end_them():
        for pair in ends:
            jobs.gates[pair].set()

    ender = threading.Thread(target=end_them)
    with SideBySide() as side:
        in_order = InOrder(side, AMONG[:num], jobs)
        ender.start()
        taken = [in_order.take(pair, 12) for pair in range(12)]
    ender.join()
    assert [pair for pair, _ in taken] == list(range(12))
    assert [lane for _, lane in taken] == [AMONG[lane_of(pair, num)] for pair in range(12)]


@given(st.integers(0, 24), st.integers(1, 8))
def test_no_pair_straddles_lanes_nor_does_a_block_and_the_first_lane_has_most(block, num):
    assert lane_of(2 * block, num) == lane_of(2 * block + 1, num)
    counts = [sum(lane_of(pair, num) == lane for pair in range(block)) for lane in range(num)]
    assert most_in_a_lane(block, num) == max(counts)
    assert most_in_a_lane(block, 1) == block


def test_one_lane_alone_begins_no_pair_before_it_is_asked_for():
    began = []
    with SideBySide() as side:
        in_order = InOrder(side, [WHOLE], lambda lane, pair: began.append(pair))
        for pair in range(3):
            in_order.take(pair, 12)
            assert began == list(range(pair + 1))


def test_a_pair_for_which_a_lane_has_no_time_is_not_begun_but_for_the_first_of_all():
    with SideBySide() as side:
        in_order = InOrder(side, [WHOLE], lambda lane, pair: pair)
        assert in_order.take(0, 12, most=0) == 0
        assert in_order.take(1, 12, most=0) is None


def test_a_pair_that_is_asked_for_again_is_made_again_in_its_lane():
    tries = itertools.count()
    with SideBySide() as side:
        in_order = InOrder(side, AMONG, lambda lane, pair: (next(tries), pair, lane.number))
        _, pair, number = in_order.take(0, 12)
        again, same_pair, same_number = in_order.take(0, 12)
    assert (pair, number) == (same_pair, same_number) == (0, 1)
    assert again > 0


def test_what_a_lane_starts_runs_on_its_cores_and_what_fails_says_so():
    cpu = min(os.sched_getaffinity(0))
    with SideBySide() as side:
        assert side.begin(Lane(1, "", frozenset({cpu})), lambda: os.sched_getaffinity(0)).result() == {cpu}
        failed = side.begin(AMONG[0], lambda: 1 / 0)
        assert isinstance(failed.exception(), ZeroDivisionError)


def test_leaving_ends_what_runs_and_begins_nothing_that_waited():
    began, ended = threading.Event(), []
    side = SideBySide()

    def run_on():
        began.set()
        while True:
            side.go_on()

    with side:
        first = side.begin(AMONG[0], run_on)
        second = side.begin(AMONG[0], lambda: ended.append("second"))
        began.wait()
    assert isinstance(first.exception(), lanes.Stopped)
    assert second.cancelled()
    side.go_on()  # it can be used again


def test_numbers_go_on_past_those_that_were_taken_out_of_turn():
    assert next(lanes.numbers(2, ["c/001-baseline", "c/005-candidate", "diagnosis"])) == 6
    assert next(lanes.numbers(3, [])) == 4


# What a verdict may err in


def a_over_a(seed, num, most=12):
    """A comparison of a command with itself, in lanes of unlike speed, drift, noise and cost of coming second."""
    draw = random.Random(seed)
    speed = [draw.uniform(-1, 1) for _ in range(num)]
    second = [draw.gauss(0, 0.02) for _ in range(num)]
    noise = [0.01 * draw.choice((1, 1, 3)) for _ in range(num)]
    pairs = []
    for pair, first in enumerate(orders(most, seed)):
        lane = lane_of(pair, num)
        one, other = (speed[lane] + draw.gauss(0, noise[lane]) for _ in range(2))
        times = {first: one, "candidate" if first == "baseline" else "baseline": other + second[lane]}
        pairs.append(Pair(first, math.exp(times["baseline"]), math.exp(times["candidate"]), lane=lane + 1))
    # At each look, as a session does it.
    return next(one for num in range(2, most + 1) if (one := judge(pairs[:num], max_pairs=most)).finished)


@pytest.mark.parametrize("num", [1, 2, 4])
def test_a_command_against_itself_in_unlike_lanes_is_called_different_no_more_often_than_promised(num):
    called = sum(a_over_a(seed, num).verdict in ("faster", "slower") for seed in range(400))
    # 5% of 400 is 20; so many more come by chance once in a thousand times.
    assert called <= 35
