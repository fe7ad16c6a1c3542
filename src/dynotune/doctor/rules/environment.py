"""Environment variables that slow a program down, left over from debugging or set by a library."""

from __future__ import annotations

from dynotune.doctor import policy
from dynotune.doctor.declaration import Judgement, Judgements, machine_rule
from dynotune.doctor.hot_lines import steps_thread
from dynotune.doctor.machine import (
    NOT_MEASURED,
    fact_evidence,
    fact_or_none,
    in_words,
    is_on,
    no_gpu,
    number_or_none,
    place_of_variable,
    severity_on_gpu,
    share_and_severity,
    shares,
    unset,
    variable_evidence,
    whole_number,
)
from dynotune.doctor.observation_view import Missing, ObservationView
from dynotune.schema.diagnosis import Severity
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting

PATHS = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE")


@machine_rule(
    title="Every kernel launch waits for the kernel's end.",
    sees="CUDA_LAUNCH_BLOCKING is set, and not to 0.",
    costs="host and GPU take turns: all of the GPU's idle time that the host causes. The variable is for finding the "
    "kernel that fails.",
    wrong_when="kernels are so long that the host never gets far ahead of the GPU.",
    candidates=unset("CUDA_LAUNCH_BLOCKING"),
    explains=["host-bound", "launch-bound", "sync-per-step"],
)
def launch_blocking_on(view: ObservationView) -> Judgements:
    if not is_on(view.variable("CUDA_LAUNCH_BLOCKING")):
        return
    parts = shares(view)
    share, severity = share_and_severity(view, None if parts is None else parts.host + parts.transfer, "high")
    yield Judgement(
        severity=severity,
        claim="CUDA_LAUNCH_BLOCKING makes the program wait for the end of every kernel.",
        share=share,
        variables=["CUDA_LAUNCH_BLOCKING"],
        remedy="Unset it. Set it only to find the kernel that fails.",
    )


@machine_rule(
    title="torch's caching allocator is off.",
    sees="PYTORCH_NO_CUDA_MEMORY_CACHING is set. Any value switches the cache off, even 0.",
    costs="each allocation and each release becomes a call to the driver, and releases wait for the GPU. A step takes "
    "many times its usual time. The bound is all of the GPU's idle time that the host causes.",
    wrong_when="a memory checker needs it.",
    candidates=unset("PYTORCH_NO_CUDA_MEMORY_CACHING"),
    explains=["alloc-retries", "pinned-alloc-slow", "empty-cache-in-loop", "host-bound"],
)
def no_memory_caching_on(view: ObservationView) -> Judgements:
    if view.variable("PYTORCH_NO_CUDA_MEMORY_CACHING") is None:
        return
    parts = shares(view)
    share, severity = share_and_severity(view, None if parts is None else parts.host, "high")
    yield Judgement(
        severity=severity,
        claim="PYTORCH_NO_CUDA_MEMORY_CACHING makes each allocation a call to the driver.",
        share=share,
        variables=["PYTORCH_NO_CUDA_MEMORY_CACHING"],
        remedy="Unset it. A value of 0 switches the cache off, too.",
    )


@machine_rule(
    title="Operators on the CPU run in one thread although there are more cores.",
    sees="OMP_NUM_THREADS is 1 and each process may use more than one core. torchrun sets the variable if it is unset "
    "and several processes start; Ultralytics sets it, too. Or: a model on the CPU runs in one thread of torch.",
    costs="operators on the CPU run on one core. For a model on the CPU, the bound is the part of the operators' time "
    "that cores could take over which had nothing to do while its thread ran. For a model on the GPU, the cost is in "
    "collation and augmentation in the main process.",
    wrong_when="operators are too small to be split, or other processes keep the cores busy.",
    candidates=["host.num_threads", "env.OMP_NUM_THREADS"],
)
def omp_threads_1(view: ObservationView) -> Judgements:
    by_variable = (view.variable("OMP_NUM_THREADS") or "").strip() == "1"
    on_cpu = not isinstance(view.observation.processes, Unknown) and not view.uses_cuda
    threads = number_or_none(view, "live.num_threads")
    if not (threads in (None, 1) if by_variable else on_cpu and threads == 1):
        return
    ranks = whole_number(view.variable("LOCAL_WORLD_SIZE")) or 1
    if not isinstance(view.observation.processes, Unknown):
        ranks = max(ranks, len(view.observation.processes))
    cores = int(view.number("host.num_cores")) // ranks
    spare = _spare_cores(view, cores, ranks)
    if cores <= 1 or (spare is not None and spare < policy.SPARE_CORE):
        return
    more = cores - 1 if spare is None else min(spare, cores - 1)
    parts = shares(view)
    bound = parts.device * (1 - 1 / (1 + more)) if parts is not None and on_cpu else None
    otherwise: Severity = "medium" if on_cpu or no_gpu(view) else "low"
    share, severity = share_and_severity(view, bound, otherwise)
    what = "OMP_NUM_THREADS is 1" if by_variable else "torch was told to use one thread"
    # The variable has no effect if a library calls torch.set_num_threads.
    each = Setting("host.num_threads", cores) if on_cpu else Setting("env.OMP_NUM_THREADS", str(cores))
    yield Judgement(
        severity=otherwise if bound is None else severity,
        claim=f"{what}: operators on the CPU use one core of {cores}.",
        share=share,
        variables=["OMP_NUM_THREADS"],
        evidence=[f"{cores} cores for each process", *fact_evidence(view, "live.num_threads")],
        candidates=[each],
        remedy="Set it to the cores that each rank may use, less its loader workers."
        + " A call of torch.set_num_threads in the program or a library overrides it." * on_cpu,
    )


def _spare_cores(view: ObservationView, cores: int, ranks: int) -> float | None:
    """Return how many cores of a rank have nothing to do while its steps' thread runs; None if that is not known.

    While that thread waits, its own core is free, too, and no thread of an operator would use it.
    """
    used, by_others = (number_or_none(view, f"window.{whose}_cpu_s_per_s") for whose in ("tree", "others"))
    if used is None:
        return None
    free = cores - (used + max(0.0, by_others or 0.0)) / ranks
    try:
        thread, window_s = steps_thread(view), view.timing.window_s
    except Missing:
        return free
    return free - (0.0 if thread.cpu_s is None else max(0.0, 1.0 - thread.cpu_s / window_s))


@machine_rule(
    title="There are few hardware queues, or more are asked for than exist.",
    sees="CUDA_DEVICE_MAX_CONNECTIONS is below 8, its default, or above 32, the maximum.",
    costs="work on streams that share a queue waits for the other streams' work.",
    wrong_when="the program relies on the order that a single queue gives, as tensor parallelism in Megatron's style "
    "does.",
    candidates=unset("CUDA_DEVICE_MAX_CONNECTIONS"),
)
def max_connections(view: ObservationView) -> Judgements:
    value = view.variable("CUDA_DEVICE_MAX_CONNECTIONS")
    number = whole_number(value)
    if value is None or (number is not None and 8 <= number <= 32):
        return
    yield Judgement(
        severity="low",
        claim=f"CUDA_DEVICE_MAX_CONNECTIONS is {value}; the default is 8, the most is 32.",
        variables=["CUDA_DEVICE_MAX_CONNECTIONS"],
        remedy="Leave it at 1 if tensor parallelism needs it. Unset it otherwise.",
    )


@machine_rule(
    title="A variable overrides the program's TF32 settings.",
    sees="NVIDIA_TF32_OVERRIDE=0, which forbids TF32 in all libraries, or TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, which "
    "allows it in matrix products.",
    costs="if TF32 is forbidden, float32 products and convolutions run without tensor cores: at most their time. If it "
    "is allowed, results have a mantissa of ten bits although the program did not ask for it.",
    wrong_when="the variable is set on purpose, to compare results.",
    candidates=unset("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
    explains=["fp32-matmul-no-tf32"],
)
def tf32_env_override(view: ObservationView) -> Judgements:
    forbidden = view.variable("NVIDIA_TF32_OVERRIDE")
    allowed = view.variable("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
    if forbidden is not None and forbidden.strip() == "0":
        parts = shares(view)
        bound = None if parts is None else min(view.lost("fp32-matmul-no-tf32", "amp-absent"), parts.device)
        share, severity = share_and_severity(view, bound, "medium")
        yield Judgement(
            severity=severity,
            claim="NVIDIA_TF32_OVERRIDE=0 forbids TF32, even if the program allows it.",
            share=share,
            variables=["NVIDIA_TF32_OVERRIDE"],
            remedy="Unset it, so that the program's own settings hold. Results change in their last digits.",
        )
    elif is_on(allowed):
        yield Judgement(
            severity="low",
            kind="correctness",
            claim="TORCH_ALLOW_TF32_CUBLAS_OVERRIDE allows TF32 in matrix products, even if the program does not.",
            share=0.0,
            variables=["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"],
            remedy="Allow TF32 in the program instead, where readers see it.",
        )


@machine_rule(
    title="CUDA numbers GPUs of several models by speed.",
    sees="visible GPUs of different models while CUDA_DEVICE_ORDER is not PCI_BUS_ID.",
    costs="no time. `cuda:0` is not GPU 0 of nvidia-smi, so the wrong GPU may be measured or shared.",
    wrong_when="GPUs are chosen by UUID.",
    candidates=[Setting("env.CUDA_DEVICE_ORDER", "PCI_BUS_ID")],
)
def device_order(view: ObservationView) -> Judgements:
    if view.variable("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or no_gpu(view):
        return
    count = view.observation.facts.get("gpu.count")
    differ = isinstance(count, Unknown) and "CUDA_DEVICE_ORDER" in count.reason
    if not differ:
        several = range(int(view.number("gpu.count")))
        differ = len({view.text(f"gpu{at or ''}.name") for at in several}) > 1
    if differ:
        yield Judgement(
            severity="low",
            kind="measurement",
            claim="The GPUs differ, and CUDA numbers them by speed, nvidia-smi by PCI address.",
            evidence=variable_evidence(view, "CUDA_DEVICE_ORDER"),
            remedy="Set CUDA_DEVICE_ORDER=PCI_BUS_ID, so that both number them alike.",
        )


@machine_rule(
    title="The allocator's options are set under both of their names, with different values.",
    sees="PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF are both set, to different values.",
    costs="some options do not take effect: the CUDA allocator reads PYTORCH_CUDA_ALLOC_CONF, the older name, first.",
    wrong_when="the options that differ do not matter.",
    candidates=unset("PYTORCH_CUDA_ALLOC_CONF"),
)
def alloc_conf_both_names(view: ObservationView) -> Judgements:
    new, old = view.variable("PYTORCH_ALLOC_CONF"), view.variable("PYTORCH_CUDA_ALLOC_CONF")
    if new is None or old is None or new == old:
        return
    yield Judgement(
        severity=severity_on_gpu(view, "medium"),
        kind="memory",
        claim="PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF are both set and differ. torch reads the former first.",
        share=NOT_MEASURED,
        evidence=variable_evidence(view, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
        where=place_of_variable(view, "PYTORCH_CUDA_ALLOC_CONF"),
        remedy="Keep only PYTORCH_ALLOC_CONF, with the options that you want.",
    )


@machine_rule(
    title="torch keeps few of cuDNN's plans, or none.",
    sees="TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT is negative, which keeps no plans, or below 100. The default is 10000; 0 "
    "means no limit.",
    costs="host time: torch makes the plan of a convolution again if it was dropped.",
    wrong_when="the network has few convolutions, or none.",
    candidates=unset("TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT"),
)
def cudnn_v8_cache(view: ObservationView) -> Judgements:
    value = view.variable("TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT")
    limit = whole_number(value)
    if limit is None or limit == 0 or limit >= policy.SMALL_PLAN_CACHE:
        return
    parts = shares(view)
    share, severity = share_and_severity(view, None if parts is None else parts.host, "medium")
    yield Judgement(
        severity=severity,
        claim="torch keeps none of cuDNN's plans." if limit < 0 else f"torch keeps only {limit} of cuDNN's plans.",
        share=share,
        variables=["TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT"],
        remedy="Unset it. The default of 10000 plans takes at most about 2 GiB.",
    )


@machine_rule(
    title="A communication path between GPUs is off.",
    sees="NCCL_P2P_DISABLE, NCCL_SHM_DISABLE or NCCL_IB_DISABLE is on, or NCCL_P2P_LEVEL is LOC.",
    costs="GPUs of one machine exchange data through host memory instead of NVLink or PCIe, or through sockets instead "
    "of shared memory. Machines use sockets instead of InfiniBand. The bound is the exposed communication of a step.",
    wrong_when="the path does not work on this machine, and the program hangs without the variable.",
    candidates=unset(*PATHS, "NCCL_P2P_LEVEL"),
    explains=["communication-exposed", "ddp-bucket-cap"],
)
def nccl_path_disabled(view: ObservationView) -> Judgements:
    names = [name for name in PATHS if is_on(view.variable(name))]
    if (view.variable("NCCL_P2P_LEVEL") or "").upper() in ("LOC", "0"):
        names.append("NCCL_P2P_LEVEL")
    if not names:
        return
    several = (number_or_none(view, "gpu.count") or 2) > 1
    parts = shares(view)
    otherwise: Severity = "medium" if several else "low"
    if several and "NCCL_P2P_DISABLE" in names and " NV" in str(fact_or_none(view, "gpu.topology")):
        otherwise = "high"
    share, severity = share_and_severity(view, None if parts is None else parts.communication, otherwise)
    yield Judgement(
        severity=severity,
        claim=f"{in_words(names)} keeps NCCL off a path between GPUs.",
        share=share,
        variables=names,
        evidence=[*fact_evidence(view, "gpu.topology")],
        remedy="Unset them, and check once with NCCL_DEBUG=INFO which path NCCL uses.",
    )
