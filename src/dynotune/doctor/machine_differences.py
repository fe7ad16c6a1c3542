"""Differences of two machines that can explain another speed of the same code on the same card."""

from __future__ import annotations

import re

from dynotune.schema.diagnosis import Difference
from dynotune.schema.facts import Facts, Unknown, Value

MATTERS: dict[str, str] = {
    "gpu.count": "another number of GPUs",
    "gpu.name": "another GPU",
    "gpu.compute_capability": "other kernels are chosen",
    "gpu.mig": "a slice of a GPU has a part of its multiprocessors and bandwidth",
    "gpu.power_limit_w": "clocks fall once the GPU draws that much",
    "gpu.default_power_limit_w": "another variant of the card",
    "gpu.max_sm_clock_mhz": "another variant of the card, or locked clocks",
    "gpu.max_memory_clock_mhz": "another memory, and another bandwidth",
    "gpu.pcie_max_generation": "half of the bandwidth to the host for each generation",
    "gpu.pcie_max_width": "bandwidth to the host goes with the lanes",
    "gpu.topology": "how fast GPUs reach one another",
    "gpu.memory_bytes": "room for larger batches",
    "gpu.num_processes": "others compute there meanwhile",
    "gpu.numa_node": "which processors are near the GPU",
    "gpu.ecc": "checking memory costs some of its bandwidth on cards without HBM",
    "gpu.ecc_uncorrected": "faulty memory",
    "gpu.remapped_rows_pending": "faulty memory",
    "gpu.cuda_driver": "the newest CUDA that runs; older ones compile kernels at the start",
    "gpu.driver": "the compiler for PTX, launch costs, and what CUDA is supported",
    "gpu.persistence": "time to the first step alone",
    "torch.version": "other kernels, another compiler, other defaults",
    "torch.cuda": "other versions of cuBLAS and of the compilers",
    "torch.cudnn": "other algorithms of convolution and attention",
    "torch.nccl": "other algorithms of communication",
    "torch.arch_list": "kernels that the driver must compile, or that are slower",
    "torch.runs_natively": "kernels that the driver must compile at the start",
    "torch.driver_ok": "without it torch finds no GPU",
    "package.": "the version of a library on the way of the data or the kernels",
    "env.": "a variable that torch, CUDA or a library below them reads",
    "host.num_cores": "loader workers, threads, and how far the host gets ahead",
    "host.cpu_quota": "threads are stopped once the quota is used up",
    "host.affinity": "which processors may be used",
    "host.cpu": "how fast Python, launches and decoding are",
    "host.num_physical_cores": "processors that share a core are no two cores",
    "host.num_logical_cpus": "how many processors there are",
    "host.governor": "how high the processors clock",
    "host.virtual": "launches and copies take longer under some hypervisors",
    "host.container": "limits, and the size of /dev/shm",
    "host.memory_bytes": "room for the page cache, so whether data is read from disk in each epoch",
    "host.memory_limit_bytes": "cached files count against it too",
    "host.swap_total_bytes": "swapping instead of running out of memory",
    "host.shm_bytes": "how many batches loader workers can hold",
    "host.nofile_soft": "how many tensors loader workers can share",
    "host.memlock_soft_bytes": "registering memory for InfiniBand",
    "host.num_numa_nodes": "memory and processors that are far from the GPU",
    "host.numa_balancing": "pages that the kernel moves under a bound process",
    "host.zone_reclaim_mode": "whether cached data stays in memory",
    "host.thp": "translation of addresses of large arrays, and stalls when memory is asked for",
    "host.preempt_rt": "throughput for latency",
    "host.swappiness": "what is given up when memory is short",
    "host.dirty_": "how long written data may wait; nothing for reading",
    "host.rmem_max": "sockets between machines alone",
    "host.wmem_max": "sockets between machines alone",
    "host.tcp_": "sockets between machines alone",
    "host.kernel": "the scheduler and the file systems",
    "host.cgroup_num_throttled": "the quota has stopped processes",
    "host.cgroup_throttled_s": "the quota has stopped processes",
    "host.cgroup_oom_kills": "processes were killed for memory",
    "python.version": "Python's own speed, and where it collects garbage",
    "python.implementation": "Python's own speed",
}
"""Prefix of a fact to why it can matter, in the order in which differences are shown; the longest prefix holds."""

# The identity of a machine, or its state at this moment.
LEFT_OUT = re.compile(
    r"gpu\d*\.(uuid|index|nvml_indices|processes|temperature_c|power_w|utilisation_percent|memory_used_bytes|clock_reasons"
    r"|sm_clock_mhz|memory_clock_mhz|pcie_generation|pcie_width|pcie_replays|pids_comparable|cpu_affinity)"
    r"|gpu\.nvml_indices|host\.(load_1min|memory_available_bytes|shm_free_bytes|swap_used_bytes|kernel_version)"
    r"|python\.(executable|include)|torch\.folder|env_from\..*|window\d*\..*|live\..*"
    r"|env\.(PYTHONPATH|.*_CACHE_DIR|.*_PATH|.*_DIR|MASTER_ADDR|MASTER_PORT|.*RUN_ID|.*JOB_ID)"
)
NEARLY = 0.02
"""Relative. Smaller differences of sizes and rates come from another firmware."""
SIZES = ("_bytes", "_mhz", "_w")


def differences(here: Facts, there: Facts) -> list[Difference]:
    """Return the facts in which two machines differ, those that can matter first.

    A fact that is known of neither is left out. A variable that is a fact of only one machine is not set on the other.
    """
    rows = []
    for name in {**here, **there}:
        if LEFT_OUT.fullmatch(name):
            continue
        ours, theirs = _value(here, name), _value(there, name)
        if ours is None and theirs is None:
            continue
        if not _same(name, ours, theirs):
            rows.append(Difference(fact=name, here=ours, there=theirs, matters=why(name)))
    return sorted(
        rows, key=lambda each: (isinstance(each.here, Unknown) + isinstance(each.there, Unknown), _rank(each))
    )


def why(name: str) -> str:
    """Return why a fact can matter; "" if nothing is known of it."""
    return MATTERS.get(_prefix(name), "")


def _value(facts: Facts, name: str) -> Value | Unknown:
    absent = None if name.startswith(("env.", "package.")) else Unknown("it was not asked for")
    return facts.get(name, absent)


def _same(name: str, left: Value | Unknown, right: Value | Unknown) -> bool:
    if isinstance(left, Unknown) and isinstance(right, Unknown):
        return True
    numbers = [each for each in (left, right) if isinstance(each, int | float) and not isinstance(each, bool)]
    if len(numbers) == 2 and name.endswith(SIZES):
        return abs(numbers[0] - numbers[1]) <= NEARLY * max(map(abs, numbers))
    return left == right


def _rank(difference: Difference) -> tuple[int, str]:
    order = list(MATTERS)
    prefix = _prefix(difference.fact)
    return order.index(prefix) if prefix else len(order), difference.fact


def _prefix(name: str) -> str:
    plain = re.sub(r"^gpu\d+\.", "gpu.", name)
    return max((prefix for prefix in MATTERS if plain.startswith(prefix)), key=len, default="")
