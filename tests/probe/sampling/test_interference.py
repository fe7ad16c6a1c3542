from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.probe import judge
from dynotune.probe.sampling.window import Window, growth
from dynotune.probe.sources.samples import ByName, Cores, Gpu, GpuProcess, Quota, Sample, Tree
from dynotune.schema.facts import Missing, Unknown


def foreign(samples: list[Sample], begin_s: float, end_s: float) -> list[str]:
    return judge(samples, begin_s, end_s).foreign


def sample(time_s: float, **parts: object) -> Sample:
    """Two cores, fully used by the tree."""
    quiet = Sample(
        time_s=time_s,
        cores=Cores(num_cpus=2, busy_s=2 * time_s, idle_s=0.0, steal_s=0.0),
        tree=Tree(cpu_s=2 * time_s, num_major_faults=0),
        own_cpu_s=0.0,
        quota=None,
        vmstat=ByName(values={"pswpin": 0, "pswpout": 0}),
        pids_comparable=True,
    )
    return msgspec.structs.replace(quiet, **parts)


def cores(time_s: float, *, busy: float, steal: float = 0.0, num_cpus: int = 2) -> Cores:
    """`busy` and `steal` in cores."""
    idle = num_cpus - busy - steal
    return Cores(num_cpus=num_cpus, busy_s=busy * time_s, idle_s=idle * time_s, steal_s=steal * time_s)


def tree(time_s: float, used: float, faults: int = 0) -> Tree:
    return Tree(cpu_s=used * time_s, num_major_faults=faults)


def run(make) -> list[Sample]:
    return [make(float(time_s)) for time_s in range(11)]


def test_a_quiet_window_has_no_foreign_cause_and_nothing_unknown():
    judgement = judge(run(sample), 2.3, 8.9)
    assert judgement.foreign == []
    assert judgement.unknown == []


def test_other_processes_on_our_cores_are_named_with_their_share():
    samples = run(lambda t: sample(t, cores=cores(t, busy=1.62), tree=tree(t, 1.0)))
    assert foreign(samples, 2.5, 7.25) == ["other processes used 0.62 of 2 cores (31%)"]


def test_the_background_of_a_machine_is_no_cause():
    samples = run(lambda t: sample(t, cores=cores(t, busy=1.15), tree=tree(t, 1.0)))
    assert foreign(samples, 2, 8) == []


def test_interference_does_not_blame_others_for_dynotunes_own_cores():
    samples = run(lambda t: sample(t, cores=cores(t, busy=1.5), tree=tree(t, 1.0), own_cpu_s=0.5 * t))
    assert foreign(samples, 2, 8) == ["dynotune itself used 0.50 of 2 cores (25%)"]


def test_cores_beyond_our_quota_may_be_used_by_others():
    def busy_host(others):
        quota = Quota(cores=2.0, num_throttled=0, throttled_s=0.0, usage_s=0.0)
        return run(
            lambda t: sample(t, cores=cores(t, busy=others + 2, num_cpus=16), tree=tree(t, 2.0), quota=quota)
        )

    assert foreign(busy_host(14.1), 2, 8) == []
    assert foreign(busy_host(14.0), 2, 8) == []
    crowded = run(
        lambda t: sample(
            t,
            cores=cores(t, busy=16, num_cpus=16),
            tree=tree(t, 1.0),
            quota=Quota(cores=2.0, num_throttled=0, throttled_s=0.0, usage_s=0.0),
        )
    )
    assert foreign(crowded, 2, 8) == ["other processes used 1.00 of 2 cores (50%)"]


def test_time_the_hypervisor_took_is_a_cause():
    samples = run(lambda t: sample(t, cores=cores(t, busy=1.8, steal=0.2), tree=tree(t, 1.8)))
    assert foreign(samples, 2, 8) == [
        "the hypervisor took 10% of the time that this command's cores wanted to run"
    ]


def test_a_little_stolen_time_on_idle_cores_is_none():
    samples = run(lambda t: sample(t, cores=cores(t, busy=0.1, steal=0.04), tree=tree(t, 0.1)))
    assert foreign(samples, 2, 8) == []


def test_a_kernel_that_counts_no_time_is_unknown_and_not_quiet():
    nothing = Cores(num_cpus=2, busy_s=0.0, idle_s=0.0, steal_s=0.0)
    judgement = judge(run(lambda t: sample(t, cores=nothing, tree=tree(t, 0.0))), 2, 8)
    assert judgement.foreign == []
    assert judgement.unknown == [
        "other processes: the kernel does not count the time of the cores that this command uses"
    ]


def test_a_tree_busier_than_its_cores_is_unknown():
    samples = run(lambda t: sample(t, cores=cores(t, busy=0.5), tree=tree(t, 1.5)))
    assert judge(samples, 2, 8).unknown == [
        "other processes: the counters of this command's cores and of its processes do not agree"
    ]


@pytest.mark.parametrize("part", ["cores", "tree", "vmstat", "quota"])
def test_a_missing_counter_is_unknown_with_its_reason(part):
    def make(t: float) -> Sample:
        whole = sample(t, quota=limited(t, usage=2.0))
        return msgspec.structs.replace(whole, **{part: Unknown("not here")}) if t == 8 else whole

    samples = run(make)
    judgement = judge(samples, 2, 8)
    assert judgement.foreign == []
    assert any(reason.endswith(": not here") for reason in judgement.unknown)


def test_a_window_the_samples_do_not_cover_is_unknown():
    for begin_s, end_s in ((-1, 5), (5, 11)):
        assert judge(run(sample), begin_s, end_s).unknown == [
            "outside causes: the samples do not cover the window"
        ]
    assert judge([], 1, 2).unknown


def test_a_window_of_a_few_ticks_is_too_short_to_judge():
    assert any("too short" in reason for reason in judge(run(sample), 2.0, 2.1).unknown)


def test_a_window_that_ends_before_it_begins_is_refused():
    with pytest.raises(ValueError):
        judge(run(sample), 5, 5)


def limited(t: float, *, usage: float | Unknown) -> Quota:
    used = usage if isinstance(usage, Unknown) else usage * t
    return Quota(cores=2.0, num_throttled=int(t), throttled_s=0.2 * t, usage_s=used)


def test_a_tree_that_runs_into_its_own_quota_is_what_is_measured():
    samples = run(lambda t: sample(t, quota=limited(t, usage=2.0)))
    assert judge(samples, 2, 8).foreign == []
    assert judge(samples, 2, 8).unknown == []


def test_a_quota_that_others_use_up_is_a_cause():
    samples = run(
        lambda t: sample(
            t, quota=limited(t, usage=2.0), tree=tree(t, 1.2), cores=cores(t, busy=2, num_cpus=8)
        )
    )
    assert foreign(samples, 2, 7) == [
        "the CPU quota throttled us for 1.0 s, while others under it used 0.80 of its 2 cores"
    ]


def test_throttling_of_nobody_knows_whom_is_unknown():
    samples = run(lambda t: sample(t, quota=limited(t, usage=Unknown("not counted"))))
    assert judge(samples, 2, 8).unknown == ["the CPU quota: not counted"]


def swapping(t: float, *, pages_in: float = 0, pages_out: float = 0) -> ByName:
    return ByName(values={"pswpin": pages_in * t, "pswpout": pages_out * t})


def test_pages_swapped_in_without_a_fault_of_ours_are_others():
    samples = run(lambda t: sample(t, vmstat=swapping(t, pages_in=1000)))
    assert foreign(samples, 0, 10) == ["other processes swapped in 41 MB"]


def test_pages_swapped_in_while_we_waited_for_pages_are_unknown():
    samples = run(
        lambda t: sample(t, vmstat=swapping(t, pages_in=1000), tree=tree(t, 2.0, faults=int(200 * t)))
    )
    assert judge(samples, 0, 10).foreign == []
    assert judge(samples, 0, 10).unknown == [
        "swapping: pages were swapped in, perhaps for the command itself"
    ]


def test_pages_swapped_out_are_of_nobody_known():
    samples = run(lambda t: sample(t, vmstat=swapping(t, pages_out=1000)))
    assert judge(samples, 0, 10).foreign == []
    assert "does not say of which process" in judge(samples, 0, 10).unknown[0]


def gpu(**parts: object) -> Gpu:
    quiet = Gpu(
        nvml_index=3,
        utilisation_percent=99,
        memory_used_bytes=1,
        sm_clock_mhz=1980,
        power_w=650.0,
        clock_reasons=0,
        processes=[GpuProcess(pid=10, name="python", ours=True)],
    )
    return msgspec.structs.replace(quiet, **parts)


def on_gpu(*processes: GpuProcess, comparable: bool = True, **parts: object) -> list[Sample]:
    own = gpu(processes=list(processes), **parts)
    return run(lambda t: sample(t, gpus=[own], pids_comparable=comparable))


OURS = GpuProcess(pid=10, name="python", ours=True)
STRANGER = GpuProcess(pid=77, name="blender", ours=False, sm_percent=40)


def test_a_foreign_process_that_computes_on_our_gpu_is_named():
    assert foreign(on_gpu(OURS, STRANGER), 2, 8) == ["process 77 (blender) computes on GPU 3"]


@pytest.mark.parametrize(
    ("elsewhere", "found"),
    [
        ([OURS], []),
        ([], ["process 77 (blender) computes on GPU 3"]),
        (Unknown("not supported"), ["process 77 (blender) computes on GPU 3"]),
    ],
)
def test_a_gpu_on_which_the_command_does_not_compute_is_not_judged(elsewhere, found):
    gpus = [gpu(processes=elsewhere, nvml_index=2), gpu(processes=[STRANGER])]
    samples = run(lambda t: sample(t, gpus=gpus))
    assert judge(samples, 2, 8).foreign == judge(samples, 2, 8).void == found


def test_gpu_without_process_ids_stays_unknown_when_ids_need_not_be_ours():
    gpus = [gpu(processes=[OURS], nvml_index=2), gpu(processes=[STRANGER])]
    judgement = judge(run(lambda t: sample(t, gpus=gpus, pids_comparable=False)), 2, 8)
    assert judgement.void == [] and "GPU 3" in judgement.unknown[0]


def test_our_own_process_on_the_gpu_is_none():
    assert judge(on_gpu(OURS), 2, 8).foreign == []
    assert judge(on_gpu(OURS), 2, 8).unknown == []


def test_a_process_that_was_ours_in_another_sample_is_ours():
    young = GpuProcess(pid=10, name="python", ours=False, sm_percent=90)
    samples = run(lambda t: sample(t, gpus=[gpu(processes=[OURS if t > 5 else young])]))
    assert foreign(samples, 2, 8) == []


def test_a_foreign_process_that_runs_nothing_disturbs_nothing():
    idle = GpuProcess(pid=77, name="jupyter", ours=False, sm_percent=0)
    assert judge(on_gpu(OURS, idle), 2, 8).foreign == []
    assert judge(on_gpu(OURS, idle), 2, 8).unknown == []


def test_a_foreign_process_of_unknown_activity_counts():
    silent = GpuProcess(pid=77, name=None, ours=False, sm_percent=Unknown("not supported"))
    assert foreign(on_gpu(OURS, silent), 2, 8) == ["process 77 (name unknown) computes on GPU 3"]


def test_process_ids_of_another_namespace_are_unknown_and_never_foreign():
    judgement = judge(on_gpu(STRANGER, comparable=False), 2, 8)
    assert judgement.foreign == []
    assert len(judgement.unknown) == 1
    assert judge(on_gpu(comparable=False), 2, 8).unknown == judgement.unknown


def test_one_of_our_processes_in_the_list_proves_that_the_ids_are_ours():
    assert foreign(on_gpu(OURS, STRANGER, comparable=False), 2, 8)


def test_a_server_that_works_for_many_is_unknown():
    server = GpuProcess(pid=5, name="nvidia-cuda-mps-server", ours=False, sm_percent=90)
    judgement = judge(on_gpu(OURS, server), 2, 8)
    assert judgement.foreign == []
    assert "MPS" in judgement.unknown[0]


def test_gpus_that_could_not_be_told_are_unknown_and_not_quiet():
    samples = run(lambda t: sample(t, gpus=Unknown("a GPU is split by MIG")))
    assert judge(samples, 2, 8).unknown == ["the GPUs: a GPU is split by MIG"]


def test_gpu_counters_that_nvml_refuses_are_unknown():
    refused = Unknown("not supported")
    samples = run(lambda t: sample(t, gpus=[gpu(processes=refused, clock_reasons=refused)]))
    assert judge(samples, 2, 8).unknown == [
        "other processes on GPU 3: not supported",
        "the clock of GPU 3: not supported",
    ]


@pytest.mark.parametrize(
    ("reasons", "name"),
    [
        (0x80, "power brake"),
        (0x88, "power brake"),
        (0x10, "sync boost with other GPUs"),
        (0x8, "hardware slowdown"),
    ],
)
def test_a_clock_held_down_from_outside_is_a_cause(reasons, name):
    assert foreign(on_gpu(OURS, clock_reasons=reasons), 2, 8) == [
        f"the clock of GPU 3 was held down from outside ({name})"
    ]


@pytest.mark.parametrize("reasons", [0x1, 0x2, 0x4, 0x20, 0x40, 0x48])
def test_power_capping_and_heat_are_part_of_a_run(reasons):
    assert foreign(on_gpu(OURS, clock_reasons=reasons), 2, 8) == []


def test_only_samples_inside_the_window_count():
    samples = run(lambda t: sample(t, gpus=[gpu(clock_reasons=0x80 if t < 2 else 0)]))
    assert foreign(samples, 2, 8) == []


def test_a_window_between_two_samples_is_judged_by_both():
    assert foreign(on_gpu(OURS, STRANGER), 2.2, 2.8) == ["process 77 (blender) computes on GPU 3"]


def counter(current: Sample) -> float | Unknown:
    return current.own_cpu_s


@st.composite
def counted(draw) -> list[Sample]:
    """Samples of a counter that never falls, at irregular times."""
    gaps = draw(st.lists(st.floats(0.01, 5), min_size=1, max_size=12))
    steps = draw(st.lists(st.floats(0, 5), min_size=len(gaps), max_size=len(gaps)))
    samples, time_s, value = [sample(0.0)], 0.0, 0.0
    for gap, step in zip(gaps, steps, strict=True):
        time_s, value = time_s + gap, value + step
        samples.append(sample(time_s, own_cpu_s=value))
    return samples


@given(counted(), st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_growth_is_never_negative_and_adds_up(samples, shares):
    begin_s, middle_s, end_s = sorted(share * samples[-1].time_s for share in shares)
    parts = growth(samples, counter, begin_s, middle_s), growth(samples, counter, middle_s, end_s)
    whole = growth(samples, counter, begin_s, end_s)
    assert all(part >= 0 for part in parts)
    assert sum(parts) == pytest.approx(whole, abs=1e-9)
    assert whole <= samples[-1].own_cpu_s + 1e-9


@given(counted())
def test_growth_over_all_samples_is_exact(samples):
    found = growth(samples, counter, samples[0].time_s, samples[-1].time_s)
    assert found == pytest.approx(samples[-1].own_cpu_s)


@given(st.floats(0, 10), st.floats(0, 10), st.floats(0, 3))
def test_growth_of_a_steady_counter_is_its_rate(one, other, rate):
    begin_s, end_s = sorted((one, other))
    samples = run(lambda t: sample(t, own_cpu_s=rate * t))
    assert growth(samples, counter, begin_s, end_s) == pytest.approx(rate * (end_s - begin_s), abs=1e-9)


def test_a_counter_that_falls_is_unknown():
    samples = [sample(0.0, own_cpu_s=5.0), sample(1.0, own_cpu_s=1.0)]
    assert isinstance(growth(samples, counter, 0.2, 0.8), Unknown)


def test_other_cpu_time_is_what_neither_the_tree_nor_dynotune_used():
    samples = run(lambda t: sample(t, cores=cores(t, busy=1.5), tree=tree(t, 1.0), own_cpu_s=0.1 * t))
    assert Window(samples, 2, 4).other_cpu_s() == pytest.approx(0.8)
    blind = run(lambda t: sample(t, tree=Unknown("gone")))
    with pytest.raises(Missing, match="gone"):
        Window(blind, 2, 4).other_cpu_s()
