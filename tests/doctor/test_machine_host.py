"""Rules on the host: in which state each fires, is silent, and cannot tell."""

from __future__ import annotations

import pytest

from dynotune.schema.loader import Loader
from dynotune.schema.tensor import Tensor

from .machines import NO_GPU, NOBODY, WINDOW, found, missing
from .observations import attribution

TWO_NODES = {"host.num_numa_nodes": 2}
SWAP = {"host.swap_total_bytes": 8 << 30, "host.swap_used_bytes": 1 << 20}
MIB = 1 << 20
LARGE_BATCHES = Loader(
    name="DataLoader",
    dataset="Images",
    num_workers=8,
    prefetch_factor=2,
    batch=[Tensor(shape=[64, 3, 224, 224], dtype="float32", device="cpu", num_bytes=38 * MIB)],
)

FIRES = {
    "cpu-governor-powersave": [
        ({"host.governor": "powersave", "host.governor_driver": "acpi-cpufreq"}, "medium"),
        ({"host.governor": "powersave", "host.governor_driver": "intel_pstate"}, "low"),
        ({"host.governor": "powersave"}, "low"),
    ],
    "cgroup-cpu-quota": [
        ({"host.cpu_quota": 4.0}, "medium"),
        ({"host.cpu_quota": 4.0, "OMP_NUM_THREADS": "4"}, "low"),
        ({"host.cpu_quota": 12.0}, "low"),
        ({"host.cpu_quota": 4.0, **WINDOW, "window.throttled_s_per_s": 0.3}, "high"),
        ({"host.cpu_quota": 4.0, **WINDOW}, "low"),
    ],
    "cpu-affinity-narrow": [
        ({"host.affinity": [0]}, "medium"),
        ({"host.affinity": [0, 1, 2, 3, 4, 5]}, "low"),
        ({"host.affinity": [0, 1, 2, 3, 4, 5], "window.tree_cpu_s_per_s": 5.9}, "medium"),
    ],
    "numa-remote": [
        (TWO_NODES | {"host.affinity": [16, 17], "gpu.cpu_affinity": [0, 1]}, "medium"),
        (TWO_NODES | {"host.affinity": [0, 1, 16, 17], "gpu.cpu_affinity": [0, 1]}, "low"),
    ],
    "numa-balancing": [(TWO_NODES | {"host.numa_balancing": 1, "host.affinity": [0, 1]}, "low")],
    "zone-reclaim": [(TWO_NODES | {"host.zone_reclaim_mode": 1}, "medium")],
    "preempt-rt-kernel": [
        ({"host.preempt_rt": True}, "high"),
        (NO_GPU | {"host.preempt_rt": True}, "medium"),
    ],
    "swap-active": [
        (SWAP | WINDOW | {"window.swapped_pages": 40_000}, "high"),
        (SWAP | {"host.memory_available_bytes": 1 << 30}, "medium"),
    ],
    "thp-mode": [({"host.thp_enabled": "never"}, "low"), ({"host.thp_defrag": "always"}, "low")],
    "shm-too-small": [
        ({"host.shm_bytes": 64 * MIB, "host.shm_free_bytes": 64 * MIB}, "medium"),
        ({"host.shm_free_bytes": 10 * MIB}, "medium"),
        ({"host.shm_bytes": 512 * MIB, "host.shm_free_bytes": 500 * MIB}, "low"),
    ],
    "fd-limit-loader": [({"host.nofile_soft": 256}, "medium")],
    "memlock-rdma": [({"host.memlock_soft_bytes": 8 * MIB, "NCCL_IB_HCA": "mlx5_0"}, "medium")],
    "cgroup-mem-high": [
        ({"host.memory_limit_bytes": 64 << 30, "host.cgroup_oom_kills": 2}, "medium"),
        ({"host.memory_limit_bytes": 64 << 30, "host.cgroup_memory_high": 900}, "low"),
        ({"host.memory_limit_bytes": 64 << 30, "window.cgroup_oom_kills": 1.0}, "medium"),
    ],
}

SILENT = {
    "cpu-governor-powersave": [{"host.governor": "performance"}, {"host.governor": "schedutil"}],
    "cgroup-cpu-quota": [{}, {"host.cpu_quota": 16.0}],
    "cpu-affinity-narrow": [{}, {"host.affinity": list(range(12))}],
    "numa-remote": [
        {},
        NO_GPU | TWO_NODES,
        TWO_NODES | {"host.affinity": [0, 1], "gpu.cpu_affinity": [0, 1, 2, 3]},
    ],
    "numa-balancing": [
        {},
        TWO_NODES | {"host.numa_balancing": 1},
        {"host.numa_balancing": 1, "host.affinity": [0]},
        TWO_NODES | {"host.numa_balancing": 1, "host.affinity": [0, 1], "window.numa_pte_updates": 0.0},
    ],
    "zone-reclaim": [{}, TWO_NODES, {"host.zone_reclaim_mode": 1}],
    "preempt-rt-kernel": [{}],
    "swap-active": [{}, SWAP | WINDOW, SWAP | WINDOW | {"window.swapped_pages": 12}],
    "thp-mode": [{}, {"host.thp_enabled": "always", "host.thp_defrag": "defer+madvise"}],
    "shm-too-small": [{}],
    "fd-limit-loader": [{}, {"host.nofile_soft": 1024}],
    "memlock-rdma": [
        {"NCCL_IB_HCA": "mlx5_0"},
        {"host.memlock_soft_bytes": 8 * MIB},
        NO_GPU | {"host.memlock_soft_bytes": 8 * MIB, "NCCL_IB_HCA": "mlx5_0"},
    ],
    "cgroup-mem-high": [{}, {"host.memory_limit_bytes": 64 << 30}],
}

UNKNOWN = {
    "cpu-governor-powersave": [({}, "host.governor")],
    "cgroup-cpu-quota": [({"host.cpu_quota": NOBODY}, "host.cpu_quota")],
    "cpu-affinity-narrow": [({"host.num_logical_cpus": NOBODY}, "host.num_logical_cpus")],
    "numa-remote": [
        ({"host.num_numa_nodes": NOBODY}, "host.num_numa_nodes"),
        (TWO_NODES | {"gpu.cpu_affinity": NOBODY}, "gpu.cpu_affinity"),
    ],
    "numa-balancing": [({"host.numa_balancing": NOBODY}, "host.numa_balancing")],
    "zone-reclaim": [({"host.zone_reclaim_mode": NOBODY}, "host.zone_reclaim_mode")],
    "preempt-rt-kernel": [({"host.preempt_rt": NOBODY}, "host.preempt_rt")],
    "swap-active": [
        (SWAP, "swapping while a command runs"),
        (SWAP | WINDOW | {"window.swapped_pages": NOBODY}, "window.swapped_pages"),
    ],
    "thp-mode": [({"host.thp_enabled": NOBODY}, "host.thp_enabled")],
    "shm-too-small": [({"host.shm_bytes": NOBODY}, "host.shm_bytes")],
    "fd-limit-loader": [({"host.nofile_soft": NOBODY}, "host.nofile_soft")],
    "memlock-rdma": [({"host.memlock_soft_bytes": NOBODY}, "host.memlock_soft_bytes")],
    "cgroup-mem-high": [({"host.memory_limit_bytes": NOBODY}, "host.memory_limit_bytes")],
}


def cases(table):
    return [
        pytest.param(id_, case, id=f"{id_}-{at}")
        for id_, rows in table.items()
        for at, case in enumerate(rows)
    ]


@pytest.mark.parametrize(("id_", "case"), cases(FIRES))
def test_a_rule_on_the_host_fires(id_, case):
    changes, severity = case
    (finding,) = found(
        id_, changes, **({"attributed": attribution(input=0.4)} if "window.swapped_pages" in changes else {})
    )
    assert (finding.id, finding.severity) == (id_, severity)
    assert finding.claim.endswith(".")
    assert finding.evidence
    assert finding.remedy


@pytest.mark.parametrize(("id_", "changes"), cases(SILENT))
def test_a_rule_on_the_host_is_silent(id_, changes):
    assert found(id_, changes) == []


@pytest.mark.parametrize(("id_", "case"), cases(UNKNOWN))
def test_a_rule_on_the_host_cannot_tell(id_, case):
    changes, what = case
    assert missing(id_, changes) == what


def test_shared_memory_is_compared_with_what_the_workers_of_the_program_hold():
    small = {"host.shm_bytes": 512 * MIB, "host.shm_free_bytes": 500 * MIB}
    (finding,) = found("shm-too-small", small, loaders=[LARGE_BATCHES])
    assert finding.severity == "high"  # 2 × 8 workers × 2 batches × 38 MiB
    assert (
        found(
            "shm-too-small",
            {"host.shm_bytes": 8 << 30, "host.shm_free_bytes": 8 << 30},
            loaders=[LARGE_BATCHES],
        )
        == []
    )


def test_a_program_without_loader_workers_needs_no_shared_memory():
    loader = Loader(name="DataLoader", dataset="Images")
    assert found("shm-too-small", {"host.shm_bytes": 64 * MIB}, loaders=[loader]) == []


def test_each_tensor_of_each_batch_of_a_worker_counts_as_an_open_file():
    many = Loader(
        name="DataLoader", dataset="Rows", num_workers=16, prefetch_factor=4, batch=LARGE_BATCHES.batch * 10
    )
    (finding,) = found("fd-limit-loader", {"host.nofile_soft": 1024}, loaders=[many])
    assert "1280 tensors" in finding.evidence[0]
    shared = {"live": {"live.multiprocessing_sharing": "file_system"}}
    assert found("fd-limit-loader", {"host.nofile_soft": 1024}, loaders=[many], **shared) == []


def test_throttling_costs_at_most_the_time_for_which_the_quota_stopped_the_command():
    changes = {"host.cpu_quota": 2.0, **WINDOW, "window.throttled_s_per_s": 0.07}
    (finding,) = found("cgroup-cpu-quota", changes)
    assert finding.share == pytest.approx(0.07)
    assert finding.severity == "medium"
