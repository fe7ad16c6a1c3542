"""Following a run folder."""

from __future__ import annotations

import math
import os

import pytest

from dynotune.agent.core.writer import Writer
from dynotune.probe import Gpu, Sample
from dynotune.probe.sources.samples import GpuProcess
from dynotune.schema.facts import Unknown
from dynotune.watch.follower import Follower

WHY = Unknown("not asked")


@pytest.fixture
def follower(tmp_path):
    made = Follower(tmp_path)
    yield made
    made.close()


def test_a_process_is_called_by_its_part_in_the_first_look_that_knows_its_steps(
    tmp_path, monkeypatch, follower
):
    called = []
    monkeypatch.setattr(follower.processes, "update", lambda pids, roles, *rest: called.append(roles))
    writer = Writer(str(tmp_path), {"watched": True})
    writer.event(event="cycle", begin_s=0.5)
    writer.step(1.0, 0.1, 4, 0)
    follower.update(math.inf)
    assert called == [{os.getpid(): "program"}]


def test_pipes_and_links_among_the_records_are_left_out_when_a_program_put_them_there(tmp_path, follower):
    os.mkfifo(tmp_path / "process-99-0.rec")
    (tmp_path / "process-98-0.rec").symlink_to("/dev/zero")
    writer = Writer(str(tmp_path), {"watched": True})
    writer.event(event="cycle", begin_s=0.5)
    writer.step(1.0, 0.1, 4, 0)
    follower.update(math.inf)
    assert list(follower.ranks) == [os.getpid()]


def sample(time_s, rate=WHY, *, comparable=True, ours=True, idle=()):
    processes = [
        GpuProcess(pid=10, name="python", ours=ours),
        GpuProcess(pid=77, name="blender", ours=False, sm_percent=40),
        GpuProcess(pid=78, name="idle", ours=False, sm_percent=0),
        GpuProcess(pid=79, name="unknown", ours=False, sm_percent=WHY),
    ]
    gpus = [
        Gpu(
            nvml_index=index, utilisation_percent=99, memory_used_bytes=1, sm_clock_mhz=1980, power_w=650.0,
            clock_reasons=0, processes=processes if index == 3 else [], pcie_rx_bytes_per_s=rate,
        )
        for index in (3, *idle)
    ]  # fmt: skip
    return Sample(
        time_s=time_s, cores=WHY, tree=WHY, own_cpu_s=0.0, quota=None, gpus=gpus, pids_comparable=comparable
    )


def test_others_on_a_gpu_are_those_that_run_kernels_where_process_ids_are_comparable(follower):
    follower._take_sample(sample(1e9))
    assert follower.gpus[0].others == ["blender (77), 40% of the time"]
    follower._take_sample(sample(2e9, comparable=False))
    assert follower.gpus[0].others == []


def indices(follower):
    return [gpu.nvml_index for gpu in follower.gpus]


def test_a_gpu_that_only_others_use_is_none_of_the_run(follower):
    follower._take_sample(sample(1e9, ours=False))
    assert indices(follower) == []


def test_gpus_of_a_run_are_those_that_it_was_seen_on(follower):
    follower._take_sample(sample(1e9, ours=False, idle=[4]))
    assert indices(follower) == [4]
    follower._take_sample(sample(2e9, idle=[4]))
    follower._take_sample(sample(3e9, ours=False, idle=[4]))
    assert indices(follower) == [3]


def test_follower_shows_all_gpus_when_process_ids_tell_nothing(follower):
    follower._take_sample(sample(1e9, ours=False, comparable=False, idle=[4]))
    assert indices(follower) == [3, 4]


def test_a_rate_that_is_asked_less_often_stays_until_it_is_asked_again(follower):
    for time_s, rate in ((1e9, 5), (2e9, WHY)):
        follower._take_sample(sample(time_s, rate))
        assert follower.gpus[0].pcie_rx_bytes_per_s == 5
    assert follower.store.of("gpu.power_w", "3").ever.num == 2
