"""The host: processors, their quota, memory nodes and the kernel."""

from dynotune.doctor import machine, policy
from dynotune.doctor.bounds import severity_of
from dynotune.doctor.declaration import Judgement, Judgements, machine_rule
from dynotune.doctor.observation_view import Missing, ObservationView
from dynotune.schema.diagnosis import Severity
from dynotune.schema.facts import Unknown

DYNAMIC_DRIVERS = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
"""With these drivers `powersave` follows the load. With all others it is the lowest frequency."""

BINDING = ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


@machine_rule(family="machine_host")
def cpu_governor_powersave(view: ObservationView) -> Judgements:
    if "powersave" not in view.text("host.governor").split(", "):
        return
    driver = view.fact_or_none("host.governor_driver")
    fixed = isinstance(driver, str) and driver not in DYNAMIC_DRIVERS
    yield Judgement(
        severity="medium" if fixed else "low",
        claim="The frequency governor of the processors is powersave"
        + (f", which with {driver} is the lowest frequency." if fixed else "."),
        evidence=view.fact_evidence("host.governor", "host.governor_driver"),
    )


@machine_rule(family="machine_host")
def cgroup_cpu_quota(view: ObservationView) -> Judgements:
    quota = view.fact("host.cpu_quota")
    if quota is None:
        return
    cores, num_cpus = view.number("host.cpu_quota"), len(view.words("host.affinity"))
    if cores >= num_cpus:
        return
    threads = view.variable("OMP_NUM_THREADS")
    stopped = view.number("window.throttled_s_per_s") if machine.is_watched(view) else None
    evidence = [
        f"{cores:g} cores of processor time, {num_cpus} visible cores",
        *view.variable_evidence("OMP_NUM_THREADS"),
    ]
    evidence += view.fact_evidence("host.cgroup_num_throttled", "host.cgroup_throttled_s")
    if stopped is not None:
        evidence.append(
            f"stopped for {stopped:.2f} s of each second while the command ran, all cores together"
        )
        stopped = stopped if stopped >= policy.THROTTLED_S_PER_S else 0.0
    share, much = machine.measured(stopped), cores <= num_cpus / 2 and threads is None
    yield Judgement(
        severity=severity_of(share, "medium" if much else "low"),
        claim=f"A quota allows {cores:g} cores of processor time, and {num_cpus} cores are visible.",
        share=share,
        evidence=evidence,
        remedy=(
            f"Use at most {max(int(cores), 1)} threads and loader workers together, or ask for a larger "
            "quota."
        ),
    )


@machine_rule(family="machine_host")
def cpu_affinity_narrow(view: ObservationView) -> Judgements:
    num_cpus, num_online = len(view.words("host.affinity")), view.number("host.num_logical_cpus")
    if num_cpus >= num_online:
        return
    wanted = policy.FEW_CPUS_PER_GPU * max(int(view.number_or_none("gpu.count") or 0), 1)
    used = view.number_or_none("window.tree_cpu_s_per_s")
    few = num_cpus < min(wanted, num_online) if used is None else used >= policy.USED_UP * num_cpus
    if not few and num_cpus >= num_online / 2:
        return
    yield Judgement(
        severity="medium" if few else "low",
        claim=f"The process may run on {num_cpus} of {num_online:g} processors.",
        evidence=[
            f"affinity: {num_cpus} processors; online: {num_online:g}",
            *([] if used is None else [f"the command used {used:.1f} of them"]),
            *view.variable_evidence(*(name for name in BINDING if view.variable(name))),
        ],
    )


@machine_rule(family="machine_host")
def numa_remote(view: ObservationView) -> Judgements:
    if machine.no_gpu(view) or view.number("host.num_numa_nodes") <= 1:
        return
    usable = set(view.words("host.affinity"))
    num_near = {gpu: len(usable & set(view.words(f"{gpu}.cpu_affinity"))) for gpu in machine.gpus(view)}
    far = [gpu for gpu, num in num_near.items() if num == 0]
    unbound = [gpu for gpu, num in num_near.items() if 0 < num < len(usable)]
    if not far and not unbound:
        return
    number = view.number_or_none(f"{(far or unbound)[0]}.numa_node")
    node = "N" if number is None else f"{number:g}"
    bind = f"numactl --cpunodebind={node} --membind={node} python …"
    yield Judgement(
        severity="medium" if far else "low",
        claim="All usable processors are far from the GPU."
        if far
        else "The usable processors belong to several memory nodes, and some are far from the GPU.",
        evidence=[
            f"{machine.gpu_label(view, gpu)}: {num_near[gpu]} of {len(usable)} usable processors are near it"
            for gpu in far or unbound
        ],
        remedy=(
            "Bind each rank to its GPU's node: torchrun --numa-binding=node (torch 2.11 and later), or "
            f"{bind}"
        ),
    )


@machine_rule(family="machine_host")
def numa_balancing(view: ObservationView) -> Judgements:
    if view.number("host.numa_balancing") == 0 or view.number("host.num_numa_nodes") <= 1:
        return
    num_cpus, num_online = len(view.words("host.affinity")), view.number("host.num_logical_cpus")
    if num_cpus < num_online and view.fact_or_none("window.numa_pte_updates") != 0:
        yield Judgement(
            severity="low",
            evidence=[
                view.mentions("host.numa_balancing"),
                view.mentions("host.num_numa_nodes"),
                f"bound to {num_cpus} of {num_online:g} processors",
                *view.fact_evidence("window.numa_pte_updates"),
            ],
        )


@machine_rule(family="machine_host")
def zone_reclaim(view: ObservationView) -> Judgements:
    mode = view.number("host.zone_reclaim_mode")
    if mode and view.number("host.num_numa_nodes") > 1:
        yield Judgement(
            severity="medium",
            evidence=[f"vm.zone_reclaim_mode is {mode:g}", view.mentions("host.num_numa_nodes")],
        )


@machine_rule(family="machine_host")
def preempt_rt_kernel(view: ObservationView) -> Judgements:
    if view.truth("host.preempt_rt"):
        yield Judgement(
            severity="medium" if machine.no_gpu(view) else machine.severity_on_gpu(view, "high"),
            evidence=view.fact_evidence("host.preempt_rt", "host.kernel", "host.kernel_version"),
        )


@machine_rule(family="machine_host")
def swap_active(view: ObservationView) -> Judgements:
    if not view.number("host.swap_total_bytes"):
        return
    severity: Severity | None = "medium"
    share: float | Unknown = machine.NOT_MEASURED
    if machine.is_watched(view):
        pages, parts = view.number("window.swapped_pages"), machine.shares(view)
        if pages < policy.SWAPPED_PAGES:
            return
        severity = None if pages < policy.MUCH_SWAPPED_PAGES else "high"
        share = machine.measured(None if parts is None else 1 - parts.device)
        claim = f"{pages:,.0f} pages were swapped while the command ran."
    else:
        total, left = view.number("host.memory_bytes"), view.number("host.memory_available_bytes")
        if left >= policy.LITTLE_AVAILABLE_MEMORY * total or not view.number("host.swap_used_bytes"):
            raise Missing("swapping while a command runs", machine.DIAGNOSE)
        claim = f"Hardly any memory is left ({left / 2**30:.1f} GiB), and swap is in use."
    yield Judgement(
        severity=severity,
        otherwise="high",
        claim=claim,
        share=share,
        evidence=view.fact_evidence(
            "host.swap_used_bytes", "host.memory_available_bytes", "window.major_faults"
        ),
    )
