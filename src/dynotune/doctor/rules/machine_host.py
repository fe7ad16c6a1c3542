"""The host: processors, their quota, memory nodes and the kernel."""

from __future__ import annotations

from collections.abc import Iterator

from dynotune.doctor import policy
from dynotune.doctor.machine import (
    DIAGNOSE,
    NOT_MEASURED,
    bounded,
    gpu_label,
    gpus,
    is_watched,
    known,
    known_number,
    mentioned,
    no_gpu,
    shares,
    told,
    weighed,
)
from dynotune.doctor.observation_view import Missing, Seen
from dynotune.doctor.registry import rule
from dynotune.schema.diagnosis import Finding, Severity

DYNAMIC_DRIVERS = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
"""Under these `powersave` follows the load; under all others it is the lowest frequency."""

BINDING = ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


@rule("machine")
def cpu_governor_powersave(seen: Seen) -> Iterator[Finding]:
    """The processors are told to save power.

    Sees: the frequency governor `powersave`, and the driver below it where that is known. Machines whose hypervisor
    decides have no governor.

    Costs: with intel_pstate or amd-pstate it follows the load, and little is lost; with another driver all cores stay
    at their lowest frequency, and all that the host does takes longer.

    Wrong when: the step waits for the GPU anyway.
    """
    if "powersave" not in seen.text("host.governor").split(", "):
        return
    driver = known(seen, "host.governor_driver")
    fixed = isinstance(driver, str) and driver not in DYNAMIC_DRIVERS
    yield Finding(
        id="cpu-governor-powersave",
        severity="medium" if fixed else "low",
        claim="The frequency governor of the processors is powersave"
        + (f", which with {driver} is the lowest frequency." if fixed else "."),
        share=NOT_MEASURED,
        evidence=mentioned(seen, "host.governor", "host.governor_driver"),
        remedy="Try the governor performance where a step waits for its host.",
        commands=["sudo cpupower frequency-set -g performance"],
    )


@rule("machine", explains=["cpu-oversubscribed"])
def cgroup_cpu_quota(seen: Seen) -> Iterator[Finding]:
    """A quota allows less processor time than the cores in sight.

    Sees: the CPU quota of the container's control group against the cores that a process may run on, and how long the
    quota has stopped it. Thread pools, and torch's check of the number of workers, count cores and know no quota.

    Costs: with more threads than the quota pays for, all of them are stopped for the rest of each period, usually
    0.1 s: at most the time for which the command was stopped.

    Wrong when: the number of threads is set to the quota already, as OMP_NUM_THREADS does.
    """
    quota = seen.fact("host.cpu_quota")
    if quota is None:
        return
    cores, num_cpus = seen.number("host.cpu_quota"), len(seen.words("host.affinity"))
    if cores >= num_cpus:
        return
    threads = seen.variable("OMP_NUM_THREADS")
    stopped = seen.number("window.throttled_s_per_s") if is_watched(seen) else None
    evidence = [f"{cores:g} cores of processor time, {num_cpus} cores in sight", *told(seen, "OMP_NUM_THREADS")]
    evidence += mentioned(seen, "host.cgroup_num_throttled", "host.cgroup_throttled_s")
    if stopped is not None:
        evidence.append(f"stopped for {stopped:.2f} s of each second while the command ran, all cores together")
        share, severity = bounded(seen, min(stopped, 1.0), "low")
        if stopped < policy.THROTTLED_S_PER_S:
            share, severity = 0.0, "low"
    else:
        share = NOT_MEASURED
        severity = "medium" if cores <= num_cpus / 2 and threads is None else "low"
    yield Finding(
        id="cgroup-cpu-quota",
        severity=severity,
        claim=f"A quota allows {cores:g} cores of processor time, and {num_cpus} cores are in sight.",
        share=share,
        evidence=evidence,
        remedy=f"Keep threads and loader workers together at {max(int(cores), 1)}, or have the quota raised.",
        commands=["docker run --cpus=N …", "# Kubernetes: resources.limits.cpu"],
    )


@rule("machine")
def cpu_affinity_narrow(seen: Seen) -> Iterator[Finding]:
    """The process may run on few of the machine's processors.

    Sees: the processors of its affinity against those that are online; of a watched command, whether it used them up.

    Costs: what runs beside one another elsewhere takes turns here: the program, its pinning thread, loader workers.

    Wrong when: a scheduler gave the job these processors and its others belong to other jobs.
    """
    num_cpus, num_online = len(seen.words("host.affinity")), seen.number("host.num_logical_cpus")
    if num_cpus >= num_online:
        return
    wanted = policy.FEW_CPUS_PER_GPU * max(int(known_number(seen, "gpu.count") or 0), 1)
    used = known_number(seen, "window.tree_cpu_s_per_s")
    if used is None:
        severity: Severity = "medium" if num_cpus < min(wanted, num_online) else "low"
    else:
        severity = "medium" if used >= policy.USED_UP * num_cpus else "low"
    if severity == "low" and num_cpus >= num_online / 2:
        return
    yield Finding(
        id="cpu-affinity-narrow",
        severity=severity,
        claim=f"The process may run on {num_cpus} of {num_online:g} processors.",
        share=NOT_MEASURED,
        evidence=[
            f"affinity: {num_cpus} processors; online: {num_online:g}",
            *([] if used is None else [f"the command used {used:.1f} of them"]),
            *told(seen, *(name for name in BINDING if seen.variable(name))),
        ],
        remedy="Look at the launcher, taskset, numactl, the job's request and the container's cpuset.",
        commands=["taskset -pc $$", "# Slurm: --cpus-per-task=N; docker: --cpuset-cpus"],
    )


@rule("machine")
def numa_remote(seen: Seen) -> Iterator[Finding]:
    """The process runs on processors that are far from its GPU.

    Sees: the processors of its affinity against those near the GPU, on machines with several memory nodes.

    Costs: copies and launches cross the link between processors: 1 to 10% where it matters, often nothing.

    Wrong when: memory was bound to the GPU's node by other means.
    """
    if no_gpu(seen) or seen.number("host.num_numa_nodes") <= 1:
        return
    usable = set(seen.words("host.affinity"))
    num_near = {gpu: len(usable & set(seen.words(f"{gpu}.cpu_affinity"))) for gpu in gpus(seen)}
    far = [gpu for gpu, num in num_near.items() if num == 0]
    unbound = [gpu for gpu, num in num_near.items() if 0 < num < len(usable)]
    if not far and not unbound:
        return
    node = known(seen, f"{(far or unbound)[0]}.numa_node")
    bind = f"numactl --cpunodebind={'N' if node is None else node} --membind={'N' if node is None else node} python …"
    yield Finding(
        id="numa-remote",
        severity="medium" if far else "low",
        claim="All processors that may be used are far from the GPU."
        if far
        else "The processors that may be used belong to several memory nodes; some are far from the GPU.",
        share=NOT_MEASURED,
        evidence=[
            f"{gpu_label(seen, gpu)}: {num_near[gpu]} of {len(usable)} usable processors are near it"
            for gpu in far or unbound
        ],
        remedy=f"Bind each rank to its GPU's node: torchrun --numa-binding=node (torch 2.11 and later), or {bind}",
    )


@rule("machine")
def numa_balancing(seen: Seen) -> Iterator[Finding]:
    """The kernel moves pages between memory nodes under a process that is bound to one.

    Sees: automatic NUMA balancing is on, there are several memory nodes, and the process is bound to a part of the
    processors.

    Costs: page faults that the kernel provokes to learn who uses a page; for a bound process it learns nothing new.

    Wrong when: the process is bound to processors of several nodes.
    """
    if seen.number("host.numa_balancing") == 0 or seen.number("host.num_numa_nodes") <= 1:
        return
    num_cpus, num_online = len(seen.words("host.affinity")), seen.number("host.num_logical_cpus")
    if num_cpus < num_online and known(seen, "window.numa_pte_updates") != 0:
        yield Finding(
            id="numa-balancing",
            severity="low",
            claim="The kernel balances memory between nodes, under a process that is bound already.",
            share=NOT_MEASURED,
            evidence=[
                seen.mentions("host.numa_balancing"),
                seen.mentions("host.num_numa_nodes"),
                f"bound to {num_cpus} of {num_online:g} processors",
                *mentioned(seen, "window.numa_pte_updates"),
            ],
            remedy="Switch it off on machines whose jobs are bound, and compare.",
            commands=["sudo sysctl kernel.numa_balancing=0"],
        )


@rule("machine")
def zone_reclaim(seen: Seen) -> Iterator[Finding]:
    """The kernel throws cached files away rather than use another node's memory.

    Sees: `vm.zone_reclaim_mode` is not zero, on a machine with several memory nodes.

    Costs: data that would have stayed in the page cache is read from disk again, and allocations wait for reclaim.

    Wrong when: each process is bound to a node and its data fits there.
    """
    mode = seen.number("host.zone_reclaim_mode")
    if mode and seen.number("host.num_numa_nodes") > 1:
        yield Finding(
            id="zone-reclaim",
            severity="medium",
            claim="The kernel reclaims a node's cache before it uses the memory of another node.",
            share=NOT_MEASURED,
            evidence=[f"vm.zone_reclaim_mode is {mode:g}", seen.mentions("host.num_numa_nodes")],
            remedy="Set it to 0, which is the default.",
            commands=["sudo sysctl vm.zone_reclaim_mode=0"],
        )


@rule("machine")
def preempt_rt_kernel(seen: Seen) -> Iterator[Finding]:
    """The kernel is a real-time kernel.

    Sees: PREEMPT_RT in the kernel's version, or /sys/kernel/realtime.

    Costs: throughput, which it trades for bounded latency. NVIDIA's driver refuses to be built for it.

    Wrong when: the machine controls something in real time, and training on it is the lesser purpose.
    """
    if seen.truth("host.preempt_rt"):
        yield Finding(
            id="preempt-rt-kernel",
            severity=weighed(seen, "high") if not no_gpu(seen) else "medium",
            claim="The kernel is built for real time (PREEMPT_RT), which costs throughput.",
            share=NOT_MEASURED,
            evidence=mentioned(seen, "host.preempt_rt", "host.kernel", "host.kernel_version"),
            remedy="Start the distribution's standard kernel. NVIDIA does not support its driver on this one.",
            commands=["uname -v"],
        )


@rule("machine")
def swap_active(seen: Seen) -> Iterator[Finding]:
    """Memory is being swapped.

    Sees: pages swapped while a command was watched. Of the machine alone: nothing where there is no swap, and a
    warning where swap is in use and hardly any memory is left.

    Costs: each page that is touched again is read from disk, thousands of times slower than memory.

    Wrong when: what was swapped belongs to programs that sleep.
    """
    if not seen.number("host.swap_total_bytes"):
        return
    used = mentioned(seen, "host.swap_used_bytes", "host.memory_available_bytes")
    remedy = "Free memory: fewer loader workers, smaller prefetch, other programs. vm.swappiness alone changes little."
    if is_watched(seen):
        pages = seen.number("window.swapped_pages")
        if pages >= policy.SWAPPED_PAGES:
            parts = shares(seen)
            bound = None if parts is None else 1 - parts.device
            share, severity = bounded(seen, bound, "high")
            yield Finding(
                id="swap-active",
                severity=severity if pages < policy.MUCH_SWAPPED_PAGES else "high",
                claim=f"{pages:,.0f} pages were swapped while the command ran.",
                share=share,
                evidence=[*used, *mentioned(seen, "window.major_faults")],
                remedy=remedy,
                commands=["vmstat 1", "free -h"],
            )
        return
    total, left = seen.number("host.memory_bytes"), seen.number("host.memory_available_bytes")
    if left < policy.LITTLE_AVAILABLE_MEMORY * total and seen.number("host.swap_used_bytes"):
        yield Finding(
            id="swap-active",
            severity="medium",
            claim=f"Hardly any memory is left ({left / 2**30:.1f} GiB), and swap is in use.",
            share=NOT_MEASURED,
            evidence=used,
            remedy=remedy,
            commands=["vmstat 1", "free -h"],
        )
        return
    raise Missing("swapping while a command runs", DIAGNOSE)
