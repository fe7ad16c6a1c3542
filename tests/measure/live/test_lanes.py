"""Which lanes there are: idle GPUs of one model, with cores near them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.measure.live import lanes
from dynotune.measure.live.lanes import WHOLE, Lane
from dynotune.measure.live.outcome import Outcome
from dynotune.schema.errors import UsageError
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting

from ...fakes import Watcher, process, record, run, spec, take

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
        take(one, {"event": "cycle", "begin_s": one.begin_s, "world_size": ranks})
    return Outcome(run=made, folder=None, launched_s=0.0, records=records)


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
        gpu(0)
        | gpu(1, memory_bytes=141 * GIB - 2**22)
        | gpu(2, utilisation_percent=80)
        | gpu(3, memory_bytes=80 * GIB)
    )
    found = lanes.idle(facts, 4, "", watcher)
    assert [lane.gpu for lane in found] == ["GPU-0", "GPU-1"]
    assert "80% of its time and 0% of its memory" in watcher.said[0]
    assert "H200 of 85.9 GB" in watcher.said[1]


def test_a_gpu_that_was_busy_a_moment_ago_is_waited_for(watcher, monkeypatch):
    looks = [
        gpu(0, utilisation_percent=90) | gpu(1),
        gpu(0, utilisation_percent=90) | gpu(1),
        gpu(0) | gpu(1),
    ]
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
    unknown = dict.fromkeys(
        ("uuid", "utilisation_percent", "memory_used_bytes", "cpu_affinity"), Unknown("not told")
    )
    found = lanes.idle(gpu(0, **unknown) | gpu(1, **unknown), 2, "3,5", watcher)
    assert found == [Lane(0, "3"), Lane(0, "5")]
    assert ["uses GPU 3 is unknown" in watcher.said[0], "uses GPU 5 is unknown" in watcher.said[1]] == [
        True,
        True,
    ]


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
    among = [
        Lane(0, f"GPU-{place}", frozenset(draw.sample(cpus, draw.randint(0, len(cpus)))))
        for place in range(num)
    ]
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
