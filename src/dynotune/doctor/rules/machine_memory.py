"""Limits of the host's memory and files: shared memory, huge pages, locked memory, the container's limit."""

from __future__ import annotations

from collections.abc import Iterator

from dynotune.doctor import policy
from dynotune.doctor.machine import NOT_MEASURED, known, known_number, no_gpu, told, weighed
from dynotune.doctor.observation_view import Missing, Seen
from dynotune.doctor.registry import rule
from dynotune.schema.diagnosis import Finding, Severity
from dynotune.schema.observation import Loader

MIB = 1 << 20
INFINIBAND = ("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_PCI_RELAXED_ORDERING")


@rule("machine")
def thp_mode(seen: Seen) -> Iterator[Finding]:
    """Transparent huge pages are off, or stall whoever asks for memory.

    Sees: `never` in transparent_hugepage/enabled, or `always` in transparent_hugepage/defrag.

    Costs: without them large arrays need 512 times the entries in the processor's tables; with `defrag` at `always`
    an allocation waits until the kernel has put a huge page together.

    Wrong when: many forked loader workers write to shared arrays: huge pages then copy more.
    """
    enabled, defrag = seen.text("host.thp_enabled"), seen.text("host.thp_defrag")
    if enabled != "never" and defrag != "always":
        return
    off = enabled == "never"
    yield Finding(
        id="thp-mode",
        severity="low",
        kind="speed" if off else "jitter",
        claim="Transparent huge pages are switched off."
        if off
        else "Allocations wait while the kernel puts huge pages together.",
        share=NOT_MEASURED,
        evidence=[seen.mentions("host.thp_enabled"), seen.mentions("host.thp_defrag")],
        remedy="Set enabled to madvise and defrag to defer+madvise; processes that start afterwards have it.",
        commands=[
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
            "echo defer+madvise | sudo tee /sys/kernel/mm/transparent_hugepage/defrag",
        ],
    )


@rule("machine")
def shm_too_small(seen: Seen) -> Iterator[Finding]:
    """/dev/shm is too small for the batches of loader workers.

    Sees: the size of /dev/shm and what is left of it, against what the workers of a watched command hold there: each
    its prefetched batches, and those on their way; without a command, against the 64 MiB that docker gives.

    Costs: nothing until it is full; then a worker dies with a bus error, or the loader runs with too few of them.

    Wrong when: no loader has workers, or its batches are small.
    """
    size, left = seen.number("host.shm_bytes"), known_number(seen, "host.shm_free_bytes")
    loaders = _loaders(seen)
    if loaders is not None and not any(loader.num_workers for loader in loaders):
        return
    needed = sum(filter(None, (_shared_bytes(loader) for loader in loaders or [])))
    free = size if left is None else left
    if loaders and needed:
        severity: Severity | None = "high" if needed > size else "medium" if needed > free else None
        why = f"workers and their batches need {needed / MIB:.0f} MiB"
    else:
        small = size <= policy.CONTAINER_SHM_BYTES or free < policy.CONTAINER_SHM_BYTES
        severity = "medium" if small else "low" if size < policy.SMALL_SHM_BYTES else None
        why = "what workers need depends on their batches"
    if severity is not None:
        yield Finding(
            id="shm-too-small",
            severity=severity,
            kind="memory",
            claim=f"/dev/shm holds {size / MIB:,.0f} MiB, {free / MIB:,.0f} MiB of them free: "
            "little for the batches of loader workers.",
            share=0.0,
            evidence=[f"/dev/shm: {size / MIB:,.0f} MiB, {free / MIB:,.0f} MiB free", why],
            remedy="Start the container with more; --ipc=host works too, and weakens its isolation.",
            commands=[
                "docker run --shm-size=16g …",
                "# Kubernetes: an emptyDir volume with medium: Memory at /dev/shm",
                "sudo mount -o remount,size=16G /dev/shm",
            ],
        )


def _loaders(seen: Seen) -> list[Loader] | None:
    """None where no command was watched."""
    try:
        return [loader for process in seen.processes for loader in process.loaders]
    except Missing:
        return None


def _shared_bytes(loader: Loader) -> int | None:
    """What the workers of a loader hold in shared memory: as many batches again are being made or consumed."""
    if not loader.num_workers or not loader.batch:
        return None
    return 2 * loader.num_workers * (loader.prefetch_factor or 2) * sum(tensor.num_bytes for tensor in loader.batch)


@rule("machine")
def fd_limit_loader(seen: Seen) -> Iterator[Finding]:
    """The limit of open files is low for a loader with workers.

    Sees: the soft limit of open files; of a watched command, against one file for each tensor of each batch that its
    workers hold, which is how torch shares tensors unless told otherwise.

    Costs: nothing until it is reached; then the loader fails with "received 0 items of ancdata" or "too many open
    files".

    Wrong when: the program raises its own limit, or shares tensors by the file system.
    """
    limit = seen.number("host.nofile_soft")
    loaders = _loaders(seen)
    if loaders is None:
        severity: Severity | None = "medium" if limit < policy.SMALL_NOFILE else None
        evidence = []
    elif known(seen, "live.multiprocessing_sharing") == "file_system":
        return
    else:
        tensors = sum(
            2 * loader.num_workers * (loader.prefetch_factor or 2) * len(loader.batch or []) for loader in loaders
        )
        severity = "medium" if tensors and tensors + policy.FILES_BESIDE_LOADER > limit else None
        evidence = [f"batches on their way hold up to {tensors} tensors, a file each"]
    if severity is not None:
        yield Finding(
            id="fd-limit-loader",
            severity=severity,
            kind="correctness",
            claim=f"A process may open {limit:g} files, and loader workers open one for each tensor.",
            share=0.0,
            evidence=[*evidence, seen.mentions("host.nofile_soft"), seen.mentions("host.nofile_hard")],
            remedy="Raise the limit, or call torch.multiprocessing.set_sharing_strategy('file_system'), which leaves "
            "shared memory behind when a process dies.",
            commands=["ulimit -n 65536", "docker run --ulimit nofile=65536:65536 …"],
        )


@rule("machine")
def memlock_rdma(seen: Seen) -> Iterator[Finding]:
    """Little memory may be locked, and NCCL uses InfiniBand.

    Sees: the limit of locked memory, and that NCCL is set up for InfiniBand. Pinned memory of CUDA does not count
    against this limit; registering memory for the network does.

    Costs: registration fails: NCCL warns of it and ends, or falls back to sockets.

    Wrong when: the network's driver does not lock memory.
    """
    if no_gpu(seen) or seen.fact("host.memlock_soft_bytes") is None:
        return
    limit = seen.number("host.memlock_soft_bytes")
    if limit >= policy.SMALL_MEMLOCK_BYTES:
        return
    named = [name for name in INFINIBAND if seen.variable(name)]
    by_name = (seen.variable("NCCL_NET") or "").upper() == "IB"
    if not named and not by_name:
        return
    yield Finding(
        id="memlock-rdma",
        severity=weighed(seen, "medium"),
        kind="correctness",
        claim=f"A process may lock {limit / MIB:,.3g} MiB, and NCCL is set up for InfiniBand, which locks its buffers.",
        share=NOT_MEASURED,
        evidence=[f"locked memory: {limit / MIB:,.3g} MiB", *told(seen, *named, *(["NCCL_NET"] if by_name else []))],
        remedy="Lift the limit in limits.conf, the service's unit or the container.",
        commands=[
            "docker run --ulimit memlock=-1 …",
            "echo '* - memlock unlimited' | sudo tee -a /etc/security/limits.conf",
        ],
    )


@rule("machine")
def cgroup_mem_high(seen: Seen) -> Iterator[Finding]:
    """The container has met its memory limit.

    Sees: the control group's counts of processes killed for memory, and of times it was slowed to reclaim memory.

    Costs: a worker that is killed ends the program; reclaiming stops whoever allocates, and drops cached data.

    Wrong when: it was another program in the same container, some time ago.
    """
    limit = seen.fact("host.memory_limit_bytes")
    if limit is None:
        return
    killed, high = seen.number("host.cgroup_oom_kills"), known_number(seen, "host.cgroup_memory_high") or 0
    killed += known_number(seen, "window.cgroup_oom_kills") or 0
    high += known_number(seen, "window.cgroup_memory_high") or 0
    if killed or high:
        yield Finding(
            id="cgroup-mem-high",
            severity="medium" if killed else "low",
            kind="memory",
            claim=f"{killed:g} processes of this container were killed for memory."
            if killed
            else "This container was slowed down because it is near its memory limit.",
            share=NOT_MEASURED,
            evidence=[
                f"the limit is {seen.number('host.memory_limit_bytes') / 2**30:.1f} GiB; cached files count too",
                seen.mentions("host.cgroup_oom_kills"),
                seen.mentions("host.cgroup_memory_high"),
            ],
            remedy="Have the limit raised, or use fewer workers and a smaller prefetch.",
            commands=["docker run --memory=… …", "# Kubernetes: resources.limits.memory"],
        )
