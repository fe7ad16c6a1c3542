"""Limits of the host's memory and files: shared memory, huge pages, locked memory, containers."""

from dynotune.doctor import policy
from dynotune.doctor.declaration import Judgement, Judgements, machine_rule
from dynotune.doctor.machine import NOT_MEASURED, no_gpu
from dynotune.doctor.observation_view import ObservationView, or_else
from dynotune.schema.diagnosis import Severity
from dynotune.schema.loader import Loader

MIB = 1 << 20
INFINIBAND = ("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_PCI_RELAXED_ORDERING")


@machine_rule(family="machine_memory")
def thp_mode(view: ObservationView) -> Judgements:
    enabled, defrag = view.text("host.thp_enabled"), view.text("host.thp_defrag")
    if enabled != "never" and defrag != "always":
        return
    off = enabled == "never"
    yield Judgement(
        severity="low",
        kind="speed" if off else "jitter",
        claim="Transparent huge pages are off."
        if off
        else "Allocations wait while the kernel assembles huge pages.",
        share=NOT_MEASURED,
        evidence=[view.mentions("host.thp_enabled"), view.mentions("host.thp_defrag")],
    )


@machine_rule(family="machine_memory")
def shm_too_small(view: ObservationView) -> Judgements:
    size, left = view.number("host.shm_bytes"), view.number_or_none("host.shm_free_bytes")
    loaders = _loaders(view)
    if loaders is not None and not any(loader.num_workers for loader in loaders):
        return
    needed = sum(
        _num_ready(loader) * sum(tensor.num_bytes for tensor in loader.batch or ())
        for loader in loaders or []
    )
    free = size if left is None else left
    if loaders and needed:
        severity: Severity | None = "high" if needed > size else "medium" if needed > free else None
        why = f"workers and their batches need {needed / MIB:.0f} MiB"
    else:
        small = size <= policy.CONTAINER_SHM_BYTES or free < policy.CONTAINER_SHM_BYTES
        severity = "medium" if small else "low" if size < policy.SMALL_SHM_BYTES else None
        why = "the need of workers depends on their batches"
    if severity is not None:
        yield Judgement(
            severity=severity,
            claim=f"/dev/shm holds {size / MIB:,.0f} MiB, {free / MIB:,.0f} MiB of them free: "
            "little for the batches of loader workers.",
            share=0.0,
            evidence=[f"/dev/shm: {size / MIB:,.0f} MiB, {free / MIB:,.0f} MiB free", why],
        )


def _loaders(view: ObservationView) -> list[Loader] | None:
    """Return all loaders of the command; None if no command was watched."""
    return or_else(lambda: [loader for process in view.processes for loader in process.loaders], None)


def _num_ready(loader: Loader) -> int:
    """Return how many batches the workers keep in memory: prefetched batches, and as many being made or in
    use."""
    return 2 * loader.num_workers * (loader.prefetch_factor or 2)


@machine_rule(family="machine_memory")
def fd_limit_loader(view: ObservationView) -> Judgements:
    limit = view.number("host.nofile_soft")
    loaders = _loaders(view)
    if loaders is None:
        severity: Severity | None = "medium" if limit < policy.SMALL_NOFILE else None
        evidence = []
    elif view.fact_or_none("live.multiprocessing_sharing") == "file_system":
        return
    else:
        tensors = sum(_num_ready(loader) * len(loader.batch or []) for loader in loaders)
        severity = "medium" if tensors and tensors + policy.FILES_BESIDE_LOADER > limit else None
        evidence = [f"batches in transit have up to {tensors} tensors, each with a file of its own"]
    if severity is not None:
        yield Judgement(
            severity=severity,
            claim=f"A process may open {limit:g} files, and loader workers open one for each tensor.",
            share=0.0,
            evidence=[*evidence, view.mentions("host.nofile_soft"), view.mentions("host.nofile_hard")],
        )


@machine_rule(family="machine_memory")
def memlock_rdma(view: ObservationView) -> Judgements:
    if no_gpu(view) or view.fact("host.memlock_soft_bytes") is None:
        return
    limit = view.number("host.memlock_soft_bytes")
    if limit >= policy.SMALL_MEMLOCK_BYTES:
        return
    named = [name for name in INFINIBAND if view.variable(name)]
    by_name = (view.variable("NCCL_NET") or "").upper() == "IB"
    if not named and not by_name:
        return
    yield Judgement(
        otherwise="medium",
        claim=(
            f"A process may lock {limit / MIB:,.3g} MiB, and NCCL is set up for InfiniBand, which locks "
            "its buffers."
        ),
        share=NOT_MEASURED,
        evidence=[
            f"locked memory: {limit / MIB:,.3g} MiB",
            *view.variable_evidence(*named, *(["NCCL_NET"] if by_name else [])),
        ],
    )


@machine_rule(family="machine_memory")
def cgroup_mem_high(view: ObservationView) -> Judgements:
    limit = view.fact("host.memory_limit_bytes")
    if limit is None:
        return
    killed, high = view.number("host.cgroup_oom_kills"), view.number_or_none("host.cgroup_memory_high") or 0
    killed += view.number_or_none("window.cgroup_oom_kills") or 0
    high += view.number_or_none("window.cgroup_memory_high") or 0
    if killed or high:
        yield Judgement(
            severity="medium" if killed else "low",
            claim=f"{killed:g} processes of this container were killed for memory."
            if killed
            else "The kernel slowed this container because it is near its memory limit.",
            share=NOT_MEASURED,
            evidence=[
                (
                    f"the limit is {view.number('host.memory_limit_bytes') / 2**30:.1f} GiB; cached files "
                    "count too"
                ),
                view.mentions("host.cgroup_oom_kills"),
                view.mentions("host.cgroup_memory_high"),
            ],
        )
