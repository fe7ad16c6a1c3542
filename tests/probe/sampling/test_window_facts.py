from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.probe import over, read_samples
from dynotune.probe.sampling.window_facts import GPU_NAMES, NAMES
from dynotune.probe.sources.samples import SCHEMA, ByName, Cores, Gpu, Quota, Sample, Tree
from dynotune.schema.facts import Unknown

LOST = Unknown("GPU is lost")


def gpu(**known):
    values = {"utilisation_percent": 50, "memory_used_bytes": 1, "sm_clock_mhz": 1000, "power_w": 300.0}
    return Gpu(nvml_index=0, **{**values, "clock_reasons": 0, "processes": [], **known})


def sample(time_s, *gpus, **parts):
    """Two cores since time 0: the tree uses one of them, another program a half, dynotune 0.01."""
    values = {
        "cores": Cores(num_cpus=2, busy_s=1.51 * time_s, idle_s=0.49 * time_s, steal_s=0.0),
        "tree": Tree(cpu_s=time_s, num_major_faults=int(3 * time_s)),
        "own_cpu_s": 0.01 * time_s,
        "gpus": list(gpus),
        "quota": None,
        "vmstat": ByName(values={"pswpin": 4 * time_s, "pswpout": 2 * time_s}),
        "memory_events": ByName(values={"high": time_s, "oom_kill": 0}),
    }
    return Sample(time_s=time_s, **{**values, **parts})


def test_a_window_is_summed_up():
    samples = [
        sample(0, gpu(utilisation_percent=0)),
        sample(1, gpu(utilisation_percent=90, sm_clock_mhz=1980, clock_reasons=0x4, memory_used_bytes=7)),
        sample(2, gpu(utilisation_percent=70, sm_clock_mhz=1500, clock_reasons=0x4 | 0x20, power_w=500.0)),
        sample(3, gpu(utilisation_percent=80, sm_clock_mhz=1600)),
        sample(4, gpu(utilisation_percent=0)),
    ]
    facts = over(samples, 0.5, 3.5)
    assert facts["window.gpu_utilisation_percent"] == pytest.approx(80)
    assert facts["window.gpu_memory_used_bytes"] == 7
    assert facts["window.sm_clock_mhz"] == 1600
    assert facts["window.power_w"] == pytest.approx(1100 / 3)
    assert facts["window.clock_reasons"] == ["sw-power-cap 0.67", "sw-thermal 0.33"]
    assert facts["window.tree_cpu_s_per_s"] == pytest.approx(1)
    assert facts["window.others_cpu_s_per_s"] == pytest.approx(0.5)
    assert facts["window.throttled_s_per_s"] == 0
    assert facts["window.swapped_pages"] == pytest.approx(18)
    assert facts["window.major_faults"] == pytest.approx(9)
    assert facts["window.cgroup_memory_high"] == pytest.approx(3)
    assert isinstance(facts["window.numa_pte_updates"], Unknown)
    assert set(NAMES) == set(facts)


def test_pcie_is_the_mean_and_the_most_of_what_was_read():
    rates = [{"pcie_rx_bytes_per_s": rx, "pcie_tx_bytes_per_s": LOST} for rx in (100, LOST, 300, LOST)]
    facts = over([sample(at, gpu(**rate)) for at, rate in enumerate(rates)], 0, 3)
    assert facts["window.pcie_rx_bytes_per_s"] == 200
    assert facts["window.pcie_rx_bytes_per_s_max"] == 300
    assert facts["window.pcie_tx_bytes_per_s"] == LOST


def test_the_link_is_the_best_that_was_read():
    links = [{"pcie_generation": read, "pcie_width": LOST} for read in (1, LOST, 5, 3)]
    facts = over([sample(at, gpu(**link)) for at, link in enumerate(links)], 0, 3)
    assert facts["window.pcie_generation"] == 5
    assert facts["window.pcie_width"] == LOST


def test_packets_sent_again_are_those_of_the_window():
    samples = [sample(at, gpu(pcie_replays=10 + 4 * at)) for at in range(4)]
    assert over(samples, 0.5, 2.5)["window.pcie_replays"] == pytest.approx(8)
    samples[1] = sample(1, gpu(pcie_replays=LOST))
    assert over(samples, 0.5, 2.5)["window.pcie_replays"] == LOST


def test_further_gpus_have_a_number():
    facts = over([sample(at, gpu(), gpu(utilisation_percent=7)) for at in (0, 1)], 0, 1)
    assert facts["window.gpu_utilisation_percent"] == 50
    assert facts["window1.gpu_utilisation_percent"] == 7


def test_a_gpu_lost_in_the_middle_is_told_by_the_samples_before():
    lost = dict.fromkeys(
        ("utilisation_percent", "sm_clock_mhz", "power_w", "clock_reasons", "processes"), LOST
    )
    samples = [sample(0, gpu(clock_reasons=0x8)), sample(1, gpu(**lost)), sample(2, gpu(**lost))]
    assert over(samples, 0, 2)["window.clock_reasons"] == ["hw-slowdown 1.00"]
    assert over(samples, 1, 2)["window.clock_reasons"] == LOST
    assert over(samples, 1, 2)["window.sm_clock_mhz"] == LOST


def test_gpus_that_could_not_be_told_are_unknown_with_the_reason():
    facts = over([sample(at, gpus=Unknown("split by MIG")) for at in (0, 1)], 0, 1)
    assert {facts[f"window.{name}"] for name in GPU_NAMES} == {Unknown("split by MIG")}


def test_without_gpus_the_host_is_told():
    facts = over([sample(0), sample(1)], 0, 1)
    assert isinstance(facts["window.sm_clock_mhz"], Unknown)
    assert facts["window.tree_cpu_s_per_s"] == pytest.approx(1)


def test_a_window_that_the_samples_do_not_cover_is_unknown():
    samples = [sample(1, gpu()), sample(2, gpu())]
    for begin_s, end_s in ((0.5, 1.5), (1.5, 2.5), (5, 6)):
        facts = over(samples, begin_s, end_s)
        assert set(facts) == set(NAMES)
        assert all(isinstance(value, Unknown) for value in facts.values())
    assert all(isinstance(value, Unknown) for value in over([], 0, 1).values())
    with pytest.raises(ValueError, match="window from"):
        over(samples, 2, 2)


def test_a_quota_is_told_by_how_long_it_held():
    samples = [
        sample(at, quota=Quota(cores=2, num_throttled=at, throttled_s=0.3 * at, usage_s=1.0 * at))
        for at in (0, 1, 2)
    ]
    assert over(samples, 0.5, 1.5)["window.throttled_s_per_s"] == pytest.approx(0.3)
    samples[1] = sample(1, quota=Unknown("gone"))
    assert over(samples, 0.5, 1.5)["window.throttled_s_per_s"] == Unknown("gone")


def test_window_facts_are_unknown_when_they_were_counted_only_in_part():
    samples = [sample(0), sample(1, vmstat=Unknown("no file"), tree=Unknown("no tree")), sample(2)]
    facts = over(samples, 0, 2)
    assert facts["window.tree_cpu_s_per_s"] == facts["window.major_faults"] == Unknown("no tree")
    assert facts["window.swapped_pages"] == Unknown("no file")


@given(st.floats(0, 10), st.floats(0, 10))
def test_a_steady_program_uses_the_same_in_every_window(begin_s, end_s):
    begin_s, end_s = sorted((begin_s, end_s))
    if end_s - begin_s < 1e-3:
        return
    samples = [sample(0.5 * at) for at in range(21)]
    facts = over(samples, begin_s, end_s)
    assert facts["window.tree_cpu_s_per_s"] == pytest.approx(1)


def test_samples_of_an_older_dynotune_are_read_and_say_what_they_lack(tmp_path):
    new = {
        "memory_clock_mhz",
        "temperature_c",
        "pcie_rx_bytes_per_s",
        "pcie_tx_bytes_per_s",
        "pcie_generation",
        "pcie_width",
        "pcie_replays",
    }
    new |= {"vmstat", "memory_events"}

    def older(value):
        if isinstance(value, dict):
            return {key: older(item) for key, item in value.items() if key not in new}
        return [older(item) for item in value] if isinstance(value, list) else value

    lines = [older(msgspec.to_builtins(sample(at, gpu()))) for at in (0, 1)]
    file = tmp_path / "samples.jsonl"
    file.write_bytes(b"\n".join([msgspec.json.encode(line) for line in ({"schema": SCHEMA}, *lines)]) + b"\n")
    facts = over(read_samples(file), 0, 1)
    assert facts["window.gpu_utilisation_percent"] == 50
    assert facts["window.tree_cpu_s_per_s"] == pytest.approx(1)
    for name in ("swapped_pages", "cgroup_oom_kills", "pcie_rx_bytes_per_s", "temperature_c"):
        assert isinstance(facts[f"window.{name}"], Unknown), name
