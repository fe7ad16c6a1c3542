"""Environment variables that slow a program down, left over from debugging or set by a library."""

from __future__ import annotations

from collections.abc import Iterator

from dynotune.doctor import policy
from dynotune.doctor.machine import (
    NOT_MEASURED,
    bounded,
    in_words,
    is_on,
    known,
    known_number,
    mentioned,
    no_gpu,
    place_of,
    shares,
    told,
    unset,
    weighed,
    whole_number,
)
from dynotune.doctor.observation_view import Seen
from dynotune.doctor.registry import rule
from dynotune.schema.diagnosis import Finding, Severity
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting


@rule("machine", explains=["host-bound", "launch-bound", "sync-per-step"])
def launch_blocking_on(seen: Seen) -> Iterator[Finding]:
    """Every kernel launch waits for the kernel's end.

    Sees: CUDA_LAUNCH_BLOCKING is set, and not to 0.

    Costs: host and GPU take turns: all of the GPU's idle time that the host causes. It is for finding out which kernel
    fails.

    Wrong when: kernels are so long that the host never gets ahead of the GPU by much.
    """
    if not is_on(seen.variable("CUDA_LAUNCH_BLOCKING")):
        return
    parts = shares(seen)
    share, severity = bounded(seen, None if parts is None else parts.host + parts.transfer, "high")
    yield Finding(
        id="launch-blocking-on",
        severity=severity,
        claim="CUDA_LAUNCH_BLOCKING makes the program wait for the end of every kernel.",
        share=share,
        evidence=told(seen, "CUDA_LAUNCH_BLOCKING"),
        where=place_of(seen, "CUDA_LAUNCH_BLOCKING"),
        candidates=unset("CUDA_LAUNCH_BLOCKING"),
        remedy="Take it away; set it only to find the kernel that fails.",
    )


@rule("machine", explains=["alloc-retries", "pinned-alloc-slow", "empty-cache-in-loop", "host-bound"])
def no_memory_caching_on(seen: Seen) -> Iterator[Finding]:
    """torch's caching allocator is switched off.

    Sees: PYTORCH_NO_CUDA_MEMORY_CACHING is set. Its value does not matter: 0 switches the cache off too.

    Costs: each allocation and each release becomes a call to the driver, and releases wait for the GPU: many times
    the usual time of a step; at most all of the GPU's idle time that the host causes.

    Wrong when: it is set for a memory checker.
    """
    if seen.variable("PYTORCH_NO_CUDA_MEMORY_CACHING") is None:
        return
    parts = shares(seen)
    share, severity = bounded(seen, None if parts is None else parts.host, "high")
    yield Finding(
        id="no-memory-caching-on",
        severity=severity,
        claim="PYTORCH_NO_CUDA_MEMORY_CACHING makes each allocation a call to the driver.",
        share=share,
        evidence=told(seen, "PYTORCH_NO_CUDA_MEMORY_CACHING"),
        where=place_of(seen, "PYTORCH_NO_CUDA_MEMORY_CACHING"),
        candidates=unset("PYTORCH_NO_CUDA_MEMORY_CACHING"),
        remedy="Take it away altogether: setting it to 0 keeps it on.",
    )


@rule("machine")
def omp_threads_1(seen: Seen) -> Iterator[Finding]:
    """Operators on the CPU run in one thread, though there are more cores.

    Sees: OMP_NUM_THREADS is 1 and the process may use more cores than that for itself; torchrun sets it where it is
    unset and several processes start, and so does Ultralytics. Or a model on the CPU runs in one thread of torch.

    Costs: operators that run on the CPU take as long as one core needs. For a model on the CPU at most the part of its
    operators that the other cores could take over; for one on the GPU, collation and augmentation in the main process.

    Wrong when: operators are too small to be split, or other processes keep the cores busy.
    """
    by_variable = (seen.variable("OMP_NUM_THREADS") or "").strip() == "1"
    on_cpu = not isinstance(seen.observation.processes, Unknown) and not seen.uses_cuda
    threads = known_number(seen, "live.num_threads")
    if not (threads in (None, 1) if by_variable else on_cpu and threads == 1):
        return
    ranks = whole_number(seen.variable("LOCAL_WORLD_SIZE")) or 1
    if not isinstance(seen.observation.processes, Unknown):
        ranks = max(ranks, len(seen.observation.processes))
    cores = int(seen.number("host.num_cores")) // ranks
    if cores <= 1 or (known_number(seen, "window.tree_cpu_s_per_s") or 0.0) >= policy.USED_UP * cores * ranks:
        return
    parts = shares(seen)
    bound = parts.device * (1 - 1 / cores) if parts is not None and on_cpu else None
    otherwise: Severity = "medium" if on_cpu or no_gpu(seen) else "low"
    share, severity = bounded(seen, bound, otherwise)
    what = "OMP_NUM_THREADS is 1" if by_variable else "torch was told to use one thread"
    # Libraries call torch.set_num_threads besides, and then the variable moves nothing.
    each = Setting("host.num_threads", cores) if on_cpu else Setting("env.OMP_NUM_THREADS", str(cores))
    yield Finding(
        id="omp-threads-1",
        severity=otherwise if bound is None else severity,
        claim=f"{what}: operators on the CPU use one core of {cores}.",
        share=share,
        evidence=[
            *told(seen, "OMP_NUM_THREADS"),
            f"{cores} cores for each process",
            *mentioned(seen, "live.num_threads"),
        ],
        where=place_of(seen, "OMP_NUM_THREADS"),
        candidates=[each],
        remedy="Set it to the cores that each rank may use, loader workers taken off."
        + " Where the program or a library calls torch.set_num_threads, that counts." * on_cpu,
    )


@rule("machine")
def max_connections(seen: Seen) -> Iterator[Finding]:
    """Few hardware queues, or more than there are.

    Sees: CUDA_DEVICE_MAX_CONNECTIONS is below 8, its default, or above 32, the most there are.

    Costs: work on streams that share a queue waits for the others' work.

    Wrong when: the program relies on the order that one queue gives, as tensor parallelism in Megatron's style does.
    """
    value = seen.variable("CUDA_DEVICE_MAX_CONNECTIONS")
    number = whole_number(value)
    if value is None or (number is not None and 8 <= number <= 32):
        return
    yield Finding(
        id="max-connections",
        severity="low",
        claim=f"CUDA_DEVICE_MAX_CONNECTIONS is {value}; the default is 8, the most is 32.",
        share=NOT_MEASURED,
        evidence=told(seen, "CUDA_DEVICE_MAX_CONNECTIONS"),
        where=place_of(seen, "CUDA_DEVICE_MAX_CONNECTIONS"),
        candidates=unset("CUDA_DEVICE_MAX_CONNECTIONS"),
        remedy="Leave it at 1 where tensor parallelism asks for it; take it away elsewhere.",
    )


@rule("machine", explains=["fp32-matmul-no-tf32"])
def tf32_env_override(seen: Seen) -> Iterator[Finding]:
    """A variable overrides what the program says about TF32.

    Sees: NVIDIA_TF32_OVERRIDE, which forbids TF32 in all libraries with 0, or TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, which
    allows it in matrix products.

    Costs: forbidden: float32 products and convolutions without tensor cores, at most their time. Allowed: results
    with ten bits of mantissa that nobody asked for in the program.

    Wrong when: it is set on purpose, to compare results.
    """
    forbidden = seen.variable("NVIDIA_TF32_OVERRIDE")
    allowed = seen.variable("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
    if forbidden is not None and forbidden.strip() == "0":
        parts = shares(seen)
        bound = None if parts is None else min(seen.lost("fp32-matmul-no-tf32", "amp-absent"), parts.device)
        share, severity = bounded(seen, bound, "medium")
        yield Finding(
            id="tf32-env-override",
            severity=severity,
            claim="NVIDIA_TF32_OVERRIDE=0 forbids TF32, whatever the program allows.",
            share=share,
            evidence=told(seen, "NVIDIA_TF32_OVERRIDE"),
            where=place_of(seen, "NVIDIA_TF32_OVERRIDE"),
            candidates=unset("NVIDIA_TF32_OVERRIDE"),
            remedy="Take it away: then the program's own settings hold. Results change in their last digits.",
        )
    elif is_on(allowed):
        yield Finding(
            id="tf32-env-override",
            severity="low",
            kind="correctness",
            claim="TORCH_ALLOW_TF32_CUBLAS_OVERRIDE allows TF32 in matrix products, whatever the program says.",
            share=0.0,
            evidence=told(seen, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
            where=place_of(seen, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
            candidates=unset("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
            remedy="Say it in the program instead, where readers see it.",
        )


@rule("machine")
def device_order(seen: Seen) -> Iterator[Finding]:
    """GPUs of several kinds are numbered by speed.

    Sees: visible GPUs of different models while CUDA_DEVICE_ORDER is not PCI_BUS_ID.

    Costs: no time; `cuda:0` is another GPU than the 0 of nvidia-smi, and the wrong one may be measured or shared.

    Wrong when: GPUs are chosen by UUID.
    """
    if seen.variable("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or no_gpu(seen):
        return
    count = seen.observation.facts.get("gpu.count")
    differ = isinstance(count, Unknown) and "CUDA_DEVICE_ORDER" in count.reason
    if not differ:
        several = range(int(seen.number("gpu.count")))
        differ = len({seen.text(f"gpu{at or ''}.name") for at in several}) > 1
    if differ:
        yield Finding(
            id="device-order",
            severity="low",
            kind="measurement",
            claim="The GPUs differ, and CUDA numbers them by speed where nvidia-smi numbers them by place.",
            share=0.0,
            evidence=told(seen, "CUDA_DEVICE_ORDER"),
            candidates=[Setting("env.CUDA_DEVICE_ORDER", "PCI_BUS_ID")],
            remedy="Set CUDA_DEVICE_ORDER=PCI_BUS_ID.",
        )


@rule("machine")
def alloc_conf_both_names(seen: Seen) -> Iterator[Finding]:
    """The allocator's options are given under both of their names, and differ.

    Sees: PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF are both set, to different values.

    Costs: options that one believes in force are not: the CUDA allocator reads the older name first.

    Wrong when: the part that differs does not matter.
    """
    new, old = seen.variable("PYTORCH_ALLOC_CONF"), seen.variable("PYTORCH_CUDA_ALLOC_CONF")
    if new is None or old is None or new == old:
        return
    yield Finding(
        id="alloc-conf-both-names",
        severity=weighed(seen, "medium"),
        kind="memory",
        claim="PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF are both set and differ; the former is read first.",
        share=NOT_MEASURED,
        evidence=told(seen, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
        where=place_of(seen, "PYTORCH_CUDA_ALLOC_CONF"),
        candidates=unset("PYTORCH_CUDA_ALLOC_CONF"),
        remedy="Keep PYTORCH_ALLOC_CONF alone, with the options that are meant.",
    )


@rule("machine")
def cudnn_v8_cache(seen: Seen) -> Iterator[Finding]:
    """torch keeps few of cuDNN's plans, or none.

    Sees: TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT is negative, which keeps none, or smaller than 100. The default is 10000;
    0 means no limit.

    Costs: host time: a convolution whose plan was forgotten has it made again.

    Wrong when: the network has few convolutions, or none.
    """
    value = seen.variable("TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT")
    limit = whole_number(value)
    if limit is None or limit == 0 or limit >= policy.SMALL_PLAN_CACHE:
        return
    parts = shares(seen)
    share, severity = bounded(seen, None if parts is None else parts.host, "medium")
    yield Finding(
        id="cudnn-v8-cache",
        severity=severity,
        claim="torch keeps none of cuDNN's plans." if limit < 0 else f"torch keeps only {limit} of cuDNN's plans.",
        share=share,
        evidence=told(seen, "TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT"),
        where=place_of(seen, "TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT"),
        candidates=unset("TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT"),
        remedy="Take it away; 10000 plans take about 2 GiB at the most.",
    )


@rule("machine", explains=["communication-exposed"])
def nccl_path_disabled(seen: Seen) -> Iterator[Finding]:
    """A path between GPUs is switched off.

    Sees: NCCL_P2P_DISABLE, NCCL_SHM_DISABLE or NCCL_IB_DISABLE is on, or NCCL_P2P_LEVEL is LOC.

    Costs: GPUs of one machine talk through host memory instead of NVLink or PCIe, or through sockets instead of shared
    memory; machines through sockets instead of InfiniBand. At most the exposed communication of a step.

    Wrong when: the path does not work on this machine, and hangs without the variable.
    """
    names = [name for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE") if is_on(seen.variable(name))]
    if (seen.variable("NCCL_P2P_LEVEL") or "").upper() in ("LOC", "0"):
        names.append("NCCL_P2P_LEVEL")
    if not names:
        return
    several = (known_number(seen, "gpu.count") or 2) > 1
    parts = shares(seen)
    otherwise: Severity = "medium" if several else "low"
    if several and "NCCL_P2P_DISABLE" in names and " NV" in str(known(seen, "gpu.topology")):
        otherwise = "high"
    share, severity = bounded(seen, None if parts is None else parts.communication, otherwise)
    yield Finding(
        id="nccl-path-disabled",
        severity=severity,
        claim=f"{in_words(names)} keeps NCCL off a path between GPUs.",
        share=share,
        evidence=[*told(seen, *names), *mentioned(seen, "gpu.topology")],
        where=place_of(seen, *names),
        candidates=unset(*names),
        remedy="Take them away and see by NCCL_DEBUG=INFO, once, which path is used.",
    )
