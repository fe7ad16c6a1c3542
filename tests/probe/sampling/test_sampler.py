from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dynotune.probe import Sampler, descendants, host, judge, read_samples
from dynotune.probe.sampling import sampler as sampling
from dynotune.probe.sampling.window import Window
from dynotune.probe.sources import counters
from dynotune.probe.sources.samples import SCHEMA, SamplesFile
from dynotune.schema.errors import RecordError
from dynotune.schema.facts import Unknown

DEADLINE_S = 120


def recorded(root, *, busy: int = 0) -> None:
    root.cpus((busy, 100, 0), (0, 100, 0))
    root.swap(0, 0)
    root.process(10, ticks=busy)


def test_a_sample_holds_what_the_kernel_and_nvml_say(root, fake_nvml, h200):
    recorded(root, busy=50)
    root.process(99, name="blender")
    library = fake_nvml(h200, h200 | {"pids": [10, 99], "shares": {99: 30}, "used": 5})
    sampler = Sampler({0, 1}, [1], lambda: [10], root=root.path, nvml=library, clock=lambda: 12.5)
    sample = sampler.sample()
    assert sample.time_s == 12.5
    assert sample.cores.busy_s == sample.tree.cpu_s == pytest.approx(50 * counters.TICK_S)
    assert sample.quota is None
    (gpu,) = sample.gpus
    assert (gpu.nvml_index, gpu.utilisation_percent, gpu.memory_used_bytes) == (1, 97, 5)
    assert (gpu.sm_clock_mhz, gpu.power_w, gpu.clock_reasons) == (1980, 650.5, 0)
    assert [(process.pid, process.name, process.ours) for process in gpu.processes] == [
        (10, "python", True),
        (99, "blender", False),
    ]
    assert [process.sm_percent for process in gpu.processes] == [None, 30]
    assert (gpu.memory_clock_mhz, gpu.temperature_c) == (3201, 61)
    assert isinstance(gpu.pcie_rx_bytes_per_s, Unknown)
    assert sample.vmstat.values == {"pswpin": 0, "pswpout": 0}


def test_a_gpu_lost_in_the_middle_of_a_run_is_unknown_and_the_sampling_goes_on(root, fake_nvml, h200):
    recorded(root)
    library = fake_nvml(h200)
    with Sampler({0}, [0], lambda: [10], 3600, root=root.path, nvml=library) as sampler:
        library.lose()
    first, last = sampler.samples[0].gpus[0], sampler.samples[-1].gpus[0]
    assert (first.utilisation_percent, first.memory_clock_mhz) == (97, 3201)
    for field in ("utilisation_percent", "memory_used_bytes", "power_w", "clock_reasons", "processes"):
        assert isinstance(getattr(last, field), Unknown), field
    assert sampler.errors == []


def test_sample_is_unknown_only_where_nvml_refuses(root, fake_nvml, h200):
    recorded(root)
    del h200["power_mw"], h200["pids"]
    sample = Sampler({0}, [0], lambda: [10], root=root.path, nvml=fake_nvml(h200)).sample()
    assert isinstance(sample.gpus[0].power_w, Unknown)
    assert isinstance(sample.gpus[0].processes, Unknown)
    assert sample.gpus[0].sm_clock_mhz == 1980


def test_gpus_that_could_not_be_told_stay_unknown_in_every_sample(root, tmp_path):
    recorded(root)
    file = tmp_path / "samples.jsonl"
    with Sampler({0}, Unknown("split by MIG"), lambda: [10], 3600, root=root.path, file=file):
        pass
    assert [sample.gpus for sample in read_samples(file)] == [Unknown("split by MIG")] * 2


def test_a_driver_that_does_not_answer_makes_the_gpu_unknown(root, fake_nvml):
    recorded(root)
    sample = Sampler({0}, [0], lambda: [10], root=root.path, nvml=fake_nvml(init_error=9)).sample()
    assert isinstance(sample.gpus[0].utilisation_percent, Unknown)


def test_without_a_kernel_that_counts_everything_is_unknown(root):
    sample = Sampler({0}, [], list, root=root.path).sample()
    assert isinstance(sample.cores, Unknown)
    assert isinstance(sample.vmstat, Unknown)


def test_a_tree_that_cannot_be_listed_is_unknown(root):
    def fail() -> list[int]:
        raise PermissionError("no")

    recorded(root)
    assert isinstance(Sampler({0}, [], fail, root=root.path).sample().tree, Unknown)


def test_starting_and_stopping_each_take_a_sample_and_nvml_is_let_go(root, fake_nvml, h200):
    recorded(root)
    library = fake_nvml(h200)
    sampler = Sampler({0}, [0], lambda: [10], 3600, root=root.path, nvml=library)
    with sampler:
        assert len(sampler.samples) == 1
    assert len(sampler.samples) == len(sampler.stop()) == 2
    assert library.num_open == 0


def test_a_mistake_in_the_thread_ends_the_sampling_and_is_told(root):
    recorded(root)
    calls = iter(range(2))

    def fails_the_second_time() -> list[int]:
        return [10] if next(calls, None) == 0 else [int("x")]

    sampler = Sampler({0}, [], fails_the_second_time, 0.001, root=root.path)
    sampler.start()
    sampler._thread.join(DEADLINE_S)
    assert sampler.errors
    assert "ValueError" in sampler.errors[0]
    assert len(sampler.samples) == 1


@pytest.mark.parametrize(
    ("when", "interval_s"), [("first", 3600), ("between", 0.001), ("asked", 3600), ("last", 3600)]
)
def test_a_reading_that_never_ends_holds_nothing_up_and_is_told(root, monkeypatch, when, interval_s):
    recorded(root)
    hangs, goes_on = threading.Event(), threading.Event()
    calls = iter([when != "first"])

    def never_answers() -> list[int]:
        if not next(calls, False):
            hangs.set()
            goes_on.wait(DEADLINE_S)
        return [10]

    others = set(threading.enumerate())
    sampler = Sampler({0}, [], never_answers, interval_s, root=root.path)
    if when != "first":
        sampler.start()
    monkeypatch.setattr(sampling, "LIMIT_S", 0.01)
    if when == "first":
        sampler.start()
    if when == "between":
        assert hangs.wait(DEADLINE_S)
    if when == "asked":
        assert sampler.sample() is None
    found = sampler.stop()
    # Nobody waits for the thread, so it may begin to read after all this.
    assert hangs.wait(DEADLINE_S)
    assert len(found) == (when != "first")
    assert len(sampler.errors) == 1
    assert "did not answer within" in sampler.errors[0]
    goes_on.set()
    for thread in set(threading.enumerate()) - others:
        thread.join(DEADLINE_S)


def test_every_sample_is_in_the_file_at_once(root, tmp_path, fake_nvml, h200):
    recorded(root)
    file = tmp_path / "samples.jsonl"
    sampler = Sampler({0, 1}, [0], lambda: [10], 3600, file=file, root=root.path, nvml=fake_nvml(h200))
    with sampler:
        assert read_samples(file) == sampler.samples
    assert read_samples(file) == sampler.samples
    assert SCHEMA in file.read_text().splitlines()[0]
    assert sampler.errors == []


def test_a_last_line_cut_short_is_left_out(root, tmp_path):
    recorded(root)
    file = tmp_path / "samples.jsonl"
    with Sampler({0}, [], lambda: [10], 3600, file=file, root=root.path):
        pass
    whole = read_samples(file)
    file.write_bytes(file.read_bytes()[:-5])
    assert read_samples(file) == whole[:-1]


@pytest.mark.parametrize(
    "text", ["", '{"schema":"dynotune.samples/2"}\n', f'{{"schema":"{SCHEMA}"}}\nnope\n']
)
def test_a_file_that_is_not_ours_is_refused(tmp_path, text):
    file = tmp_path / "samples.jsonl"
    file.write_text(text)
    with pytest.raises(RecordError):
        read_samples(file)
    with pytest.raises(RecordError):
        read_samples(tmp_path / "missing")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_told_and_the_samples_are_kept(root):
    recorded(root)
    sampler = Sampler({0}, [], lambda: [10], 3600, file=Path("/dev/full"), root=root.path)
    with sampler:
        pass
    assert len(sampler.samples) == 2
    assert len(sampler.errors) == 1
    assert "No space left" in sampler.errors[0]


def test_a_file_is_continued_and_not_begun_again(tmp_path, root):
    recorded(root)
    file = tmp_path / "samples.jsonl"
    for _ in range(2):
        with Sampler({0}, [], lambda: [10], 3600, file=file, root=root.path):
            pass
    assert len(read_samples(file)) == 4
    SamplesFile(file).close()


def test_a_watcher_keeps_the_newest_two_samples(root):
    recorded(root)
    times = iter(range(10))
    clock = lambda: float(next(times))  # noqa: E731
    with Sampler({0}, [], lambda: [10], 3600, root=root.path, clock=clock, watched=True) as sampler:
        sampler.sample()
        sampler.sample()
        assert [sample.time_s for sample in sampler.samples] == [1.0, 2.0]


def test_a_busy_process_is_foreign_to_one_that_does_not_know_it_and_its_own_to_one_that_does():
    """The same seconds, counted twice: the two differ by what the process used, however noisy the machine."""
    cpus = host.usable_cpus()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            stranger = Sampler(cpus, [], lambda: [os.getpid()], 3600)
            owner = Sampler(cpus, [], lambda: [os.getpid(), *descendants(busy.pid)], 3600)
            first = [sampler.sample() for sampler in (stranger, owner)]
            if isinstance(first[0].cores, Unknown):
                pytest.skip(first[0].cores.reason)
            alone = counters.TreeCounter()
            before_s = alone.read([busy.pid]).cpu_s
            deadline = time.monotonic() + DEADLINE_S
            while alone.read([busy.pid]).cpu_s < before_s + 1 and time.monotonic() < deadline:
                busy.poll()
            last = [sampler.sample() for sampler in (stranger, owner)]
            used_s = last[1].tree.cpu_s - first[1].tree.cpu_s
        finally:
            busy.kill()
    seen_by_stranger, seen_by_owner = (
        Window([begin, end], begin.time_s, end.time_s).other_cpu_s()
        for begin, end in zip(first, last, strict=True)
    )
    assert used_s >= 1
    assert seen_by_stranger > seen_by_owner
    assert judge([first[0], last[0]], first[0].time_s, last[0].time_s).unknown == []
