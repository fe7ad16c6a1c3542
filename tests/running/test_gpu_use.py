"""The GPUs of a running program: which are its own, and how busy they are, from samples of a pretended
driver."""

from __future__ import annotations

import threading

import pytest

from dynotune import probe
from dynotune.probe.sources.samples import GpuProcess
from dynotune.running import gpu_use, targets
from dynotune.schema.facts import Unknown

NOT_ASKED = Unknown("not asked")
CUDA = frozenset({"/usr/lib/libcuda.so.1"})


def gpu(index: int, percent: int | Unknown, *pids: int) -> probe.Gpu:
    processes = [GpuProcess(pid=pid, name="python", ours=True) for pid in pids]
    unknown = dict.fromkeys(("memory_used_bytes", "sm_clock_mhz", "power_w", "clock_reasons"), NOT_ASKED)
    return probe.Gpu(nvml_index=index, utilisation_percent=percent, processes=processes, **unknown)


@pytest.fixture
def used(started, monkeypatch):
    """`used(rows, comparable)` looks at a program with CUDA, whose driver gives these GPUs at each sample."""

    def use(rows, *, comparable=True):
        target = targets.find(started().pid)
        process = target.ranks[0].process._replace(libraries=CUDA)
        target = target._replace(ranks=(target.ranks[0]._replace(process=process),))
        sampled = threading.Event()

        class Sampler:
            def __init__(self, *_, **__) -> None:
                self.left = list(rows(process.pid))

            def sample(self) -> probe.Sample:
                gpus = self.left.pop(0)
                if not self.left:
                    sampled.set()
                    self.left.append(gpus)
                return probe.Sample(
                    time_s=0.0, cores=NOT_ASKED, tree=NOT_ASKED, own_cpu_s=0.0, quota=None, gpus=gpus,
                    pids_comparable=comparable,
                )  # fmt: skip

            def stop(self) -> None:
                pass

        monkeypatch.setattr(gpu_use, "INTERVAL_S", 0.0)
        monkeypatch.setattr(probe, "Sampler", Sampler)
        monkeypatch.setattr(probe.nvml, "visible_gpus", lambda _: [0, 1])
        found = gpu_use.GpuUse(target)
        assert sampled.wait(60)
        found.stop()
        return found.of(target.ranks[0])

    return use


def test_gpus_are_those_with_a_context_of_the_process_when_ids_are_comparable(used):
    gpus, busy = used(lambda pid: [[gpu(0, 90, 7), gpu(1, 40, pid)]])
    assert gpus == [1]
    assert busy == pytest.approx(0.4)


def test_gpus_are_all_visible_ones_when_ids_are_not_comparable(used):
    gpus, busy = used(lambda _: [[gpu(0, 90, 7), gpu(1, 40, 8)]], comparable=False)
    assert gpus == [0, 1]
    assert busy == pytest.approx(0.65)


@pytest.mark.parametrize("rows", [[Unknown("no driver")], [[gpu(0, Unknown("it is split")), gpu(1, 3)]]])
def test_busy_share_is_unknown_when_the_driver_does_not_say(used, rows):
    _, busy = used(lambda _: rows)
    assert isinstance(busy, Unknown)


def test_no_driver_is_asked_when_the_program_has_not_loaded_cuda(started, monkeypatch):
    monkeypatch.setattr(probe, "Sampler", None)
    target = targets.find(started().pid)
    found = gpu_use.GpuUse(target)
    found.stop()
    assert found.of(target.ranks[0]) == ([], gpu_use.NONE)
