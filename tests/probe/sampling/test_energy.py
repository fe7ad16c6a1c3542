"""Energy of a window from samples, by NVML's counter or by power."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.probe import Sampler, energy
from dynotune.probe.sources.counters import tree_bytes
from dynotune.probe.sources.samples import Gpu, GpuProcess, Sample
from dynotune.schema.facts import Unknown

WHY = Unknown("not supported")


def gpu(*, energy_j=WHY, power_w=WHY, ours=None) -> Gpu:
    processes = WHY if ours is None else [GpuProcess(pid=7, name="python", ours=ours)]
    return Gpu(
        nvml_index=0, utilisation_percent=WHY, memory_used_bytes=WHY, sm_clock_mhz=WHY, power_w=power_w,
        clock_reasons=WHY, processes=processes, energy_j=energy_j,
    )  # fmt: skip


def sample(time_s, *gpus) -> Sample:
    return Sample(time_s=time_s, cores=WHY, tree=WHY, own_cpu_s=0.0, quota=None, gpus=list(gpus))


def test_a_counter_is_interpolated_at_both_ends():
    samples = [sample(t, gpu(energy_j=1000.0 + 400.0 * t, power_w=1.0)) for t in (0.0, 0.5, 1.0, 1.5)]
    found = energy(samples, 0.25, 1.25)
    assert (found.joules, found.source) == (pytest.approx(400.0), "counter")


def test_without_a_counter_power_is_summed_up():
    samples = [sample(t, gpu(power_w=100.0 + 100.0 * t)) for t in (0.0, 1.0, 2.0)]
    found = energy(samples, 0.5, 1.5)
    assert (found.joules, found.source) == (pytest.approx(200.0), "power")


def test_a_counter_that_stands_still_does_not_count():
    samples = [sample(t, gpu(energy_j=5.0, power_w=80.0)) for t in (0.0, 1.0, 2.0)]
    assert energy(samples, 0.0, 2.0).source == "power"


def test_gpus_that_the_program_does_not_use_are_left_out_where_that_is_known():
    mine, idle = {"energy_j": 0.0, "ours": True}, {"energy_j": 0.0, "ours": False}
    samples = [
        sample(t, gpu(**(mine | {"energy_j": 300 * t})), gpu(**(idle | {"energy_j": 70 * t})))
        for t in (0.0, 1.0)
    ]
    assert energy(samples, 0.0, 1.0).joules == pytest.approx(300.0)
    # Where process ids cannot be compared, none of them is known to be ours: all that are visible count.
    samples = [sample(t, gpu(energy_j=300 * t), gpu(energy_j=70 * t)) for t in (0.0, 1.0)]
    assert energy(samples, 0.0, 1.0).joules == pytest.approx(370.0)


def test_energy_says_why_when_it_cannot_be_known():
    assert "do not cover" in energy([sample(0.0, gpu(energy_j=1.0))], 0.5, 1.0).reason
    assert "no GPU" in energy([sample(0.0), sample(2.0)], 0.5, 1.0).reason
    assert energy([sample(0.0, gpu()), sample(2.0, gpu())], 0.5, 1.0) == WHY
    with pytest.raises(ValueError, match="a window from"):
        energy([], 1.0, 1.0)


@given(st.lists(st.floats(1.0, 1000.0), min_size=3, max_size=20), st.floats(0.01, 0.99))
def test_the_energy_of_two_parts_is_that_of_the_whole(powers, share):
    samples = [sample(0.5 * at, gpu(power_w=power)) for at, power in enumerate(powers)]
    end_s = samples[-1].time_s
    middle_s = end_s * share
    parts = energy(samples, 0.0, middle_s).joules + energy(samples, middle_s, end_s).joules
    assert parts == pytest.approx(energy(samples, 0.0, end_s).joules)
    assert min(powers) * end_s <= parts * (1 + 1e-9) and parts <= max(powers) * end_s * (1 + 1e-9)


def test_the_sampler_asks_for_the_counter_and_for_memory_only_when_told(root, fake_nvml, h200):
    root.cpus((0, 100, 0))
    root.process(10)
    root.write(
        "proc/10/smaps_rollup", "00400000-7ff ---p 00000000 00:00 0 [rollup]\nRss: 90 kB\nPss:  12 kB\n"
    )
    library = fake_nvml(h200 | {"energy_mj": 5_250_000})
    sampler = Sampler({0}, [0], lambda: [10, 11], root=root.path, nvml=library, memory=True)
    taken = sampler.sample()
    assert taken.gpus[0].energy_j == 5250.0
    # Process 11 has ended.
    assert taken.tree_bytes == 12 * 1024
    assert Sampler({0}, [0], lambda: [10], root=root.path, nvml=fake_nvml(h200)).sample().tree_bytes is None


def test_the_memory_of_a_tree_that_is_gone_is_unknown(root):
    assert "no process" in tree_bytes([10], root.path).reason
