"""Environment variables that slow a program down, and the torch build, the driver and CUDA's workspaces."""

from dynotune.doctor import machine, policy
from dynotune.doctor.bounds import host_share
from dynotune.doctor.declaration import Judgement, Judgements, machine_rule
from dynotune.doctor.hot_lines import steps_thread
from dynotune.doctor.observation_view import ObservationView, or_else
from dynotune.schema.diagnosis import Severity
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting

PATHS = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE")
REGEX_FROM, REGEX_UNTIL = (2, 0), (2, 13)
"""Versions of torch that read CUBLAS_WORKSPACE_CONFIG with a regular expression at each fetch of a handle."""
PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "addmv",
        "mv",
        "dot",
        "_addmm_activation",
        "_scaled_mm",
        "_int_mm",
    )
)


@machine_rule(family="environment")
def omp_threads_1(view: ObservationView) -> Judgements:
    by_variable = (view.variable("OMP_NUM_THREADS") or "").strip() == "1"
    on_cpu = not isinstance(view.observation.processes, Unknown) and not view.uses_cuda
    threads = view.number_or_none("live.num_threads")
    if not (threads in (None, 1) if by_variable else on_cpu and threads == 1):
        return
    ranks = machine.whole_number(view.variable("LOCAL_WORLD_SIZE")) or 1
    if not isinstance(view.observation.processes, Unknown):
        ranks = max(ranks, len(view.observation.processes))
    cores = int(view.number("host.num_cores")) // ranks
    spare = _spare_cores(view, cores, ranks)
    if cores <= 1 or (spare is not None and spare < policy.SPARE_CORE):
        return
    more = cores - 1 if spare is None else min(spare, cores - 1)
    parts = machine.shares(view)
    bound = parts.device * (1 - 1 / (1 + more)) if parts is not None and on_cpu else None
    severity: Severity = "medium" if on_cpu or machine.no_gpu(view) else "low"
    what = "OMP_NUM_THREADS is 1" if by_variable else "torch is set to use one thread"
    # The variable has no effect if a library calls torch.set_num_threads.
    each = Setting("host.num_threads", cores) if on_cpu else Setting("env.OMP_NUM_THREADS", str(cores))
    remedy = "Set it to the cores that each rank may use, less its loader workers."
    if on_cpu:
        remedy += " A call of torch.set_num_threads in the program or a library overrides it."
    yield Judgement(
        severity=severity if bound is None else policy.severity(bound),
        claim=f"{what}: operators on the CPU use one core of {cores}.",
        share=machine.measured(bound),
        variables=["OMP_NUM_THREADS"],
        evidence=[f"{cores} cores for each process", *view.fact_evidence("live.num_threads")],
        candidates=[each],
        remedy=remedy,
    )


def _spare_cores(view: ObservationView, cores: int, ranks: int) -> float | None:
    """Return how many cores of a rank are idle while the thread of its steps runs; None if that is not known.

    While that thread waits, its own core is idle, too, but no thread of an operator would use it.
    """
    used = machine.cores_in_use(view)
    if used is None:
        return None
    cpu_s = or_else(lambda: steps_thread(view).cpu_s, None)
    waits = or_else(lambda: max(0.0, 1.0 - (cpu_s or 0.0) / view.timing.window_s), 0.0)
    return cores - used / ranks - (0.0 if cpu_s is None else waits)


@machine_rule(family="environment")
def tf32_env_override(view: ObservationView) -> Judgements:
    parts = machine.shares(view)
    if (view.variable("NVIDIA_TF32_OVERRIDE") or "").strip() == "0":
        bound = None if parts is None else min(view.lost("fp32-matmul-no-tf32", "amp-absent"), parts.device)
        yield Judgement(
            otherwise="medium",
            claim="NVIDIA_TF32_OVERRIDE=0 forbids TF32, even if the program allows it.",
            share=machine.measured(bound),
            variables=["NVIDIA_TF32_OVERRIDE"],
            remedy="Unset it, so that the program's own settings hold. Results change in their last digits.",
        )
    elif machine.is_on(view.variable("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")):
        yield Judgement(
            severity="low",
            kind="correctness",
            claim=(
                "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE allows TF32 in matrix products, even if the program "
                "does not."
            ),
            share=0.0,
            variables=["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"],
            remedy="Allow TF32 in the program instead, where readers see it.",
        )


@machine_rule(family="environment")
def device_order(view: ObservationView) -> Judgements:
    if view.variable("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or machine.no_gpu(view):
        return
    differ = view.fact_or_none("gpu.order_known") is False
    if not differ:
        several = range(int(view.number("gpu.count")))
        differ = len({view.text(f"gpu{at or ''}.name") for at in several}) > 1
    if differ:
        yield Judgement(severity="low", evidence=view.variable_evidence("CUDA_DEVICE_ORDER"))


@machine_rule(family="environment")
def alloc_conf_both_names(view: ObservationView) -> Judgements:
    new, old = view.variable("PYTORCH_ALLOC_CONF"), view.variable("PYTORCH_CUDA_ALLOC_CONF")
    if new is None or old is None or new == old:
        return
    yield Judgement(
        otherwise="medium",
        share=machine.NOT_MEASURED,
        evidence=view.variable_evidence("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
        where=view.place_of_variable("PYTORCH_CUDA_ALLOC_CONF"),
    )


@machine_rule(family="environment", candidates=machine.unset(*PATHS, "NCCL_P2P_LEVEL"))
def nccl_path_disabled(view: ObservationView) -> Judgements:
    names = [name for name in PATHS if machine.is_on(view.variable(name))]
    if (view.variable("NCCL_P2P_LEVEL") or "").upper() in ("LOC", "0"):
        names.append("NCCL_P2P_LEVEL")
    if not names:
        return
    several = (view.number_or_none("gpu.count") or 2) > 1
    otherwise: Severity = "medium" if several else "low"
    if several and "NCCL_P2P_DISABLE" in names and " NV" in str(view.fact_or_none("gpu.topology")):
        otherwise = "high"
    yield Judgement(
        otherwise=otherwise,
        claim=f"{machine.in_words(names)} keeps NCCL off a path between GPUs.",
        share=machine.part_of_step(view, "communication"),
        variables=names,
        evidence=view.fact_evidence("gpu.topology"),
    )


@machine_rule(family="environment")
def driver_too_old(view: ObservationView) -> Judgements:
    if machine.no_gpu(view) or view.fact("torch.cuda") is None:
        return
    if not view.truth("torch.driver_ok"):
        yield Judgement(
            severity="high",
            claim=(
                f"torch is built for CUDA {view.text('torch.cuda')}, which the GPU's driver does not support."
            ),
            evidence=[view.mentions(name) for name in ("torch.version", "gpu.driver", "gpu.cuda_driver")],
        )


@machine_rule(family="environment")
def torch_without_cuda(view: ObservationView) -> Judgements:
    if not machine.gpus(view) or view.fact("torch.cuda") is not None:
        return
    torch_version = view.text("torch.version")
    if "rocm" not in torch_version and "xpu" not in torch_version:
        yield Judgement(
            severity="high",
            claim=f"There is a GPU, and torch {torch_version} is built without CUDA.",
            evidence=[view.mentions(name) for name in ("gpu.name", "torch.version", "python.executable")],
        )


@machine_rule(family="environment")
def cublas_env_regex(view: ObservationView) -> Judgements:
    if view.variable("CUBLAS_WORKSPACE_CONFIG") is None:
        return
    torch_version = view.text("torch.version")
    if not REGEX_FROM <= machine.version(torch_version) < REGEX_UNTIL:
        return
    wanted = view.fact_or_none("live.deterministic_algorithms") is True
    bound, products = _host_share_of_products(view)
    yield Judgement(
        severity="low" if wanted else None,
        otherwise="medium",
        share=machine.measured(bound),
        variables=["CUBLAS_WORKSPACE_CONFIG"],
        evidence=[
            view.mentions("torch.version"),
            *products,
            *(["deterministic algorithms are on, and they need this variable"] if wanted else []),
        ],
    )


@machine_rule(family="environment")
def kineto_daemon_on(view: ObservationView) -> Judgements:
    if view.variable("KINETO_USE_DAEMON") is None or view.variable("TEARDOWN_CUPTI") == "1":
        return
    yield Judgement(
        severity="low",
        share=Unknown(
            "nothing is lost until the daemon asks for a profile, and dynotune does not see whether it did"
        ),
        variables=["KINETO_USE_DAEMON", "TEARDOWN_CUPTI"],
        candidates=[],
    )


def _host_share_of_products(view: ObservationView) -> tuple[float | None, list[str]]:
    """Return the host's own time in matrix products as a share of an unrecorded step, with evidence; None if
    it is not known."""
    trace = view.observation.trace
    share = or_else(lambda: host_share(view, PRODUCTS.__contains__), None)
    if share is None or isinstance(trace, Unknown) or not trace.num_steps:
        return None, []
    products = [row for row in trace.operators if row.name in PRODUCTS]
    num, host_s = sum(row.num for row in products), sum(row.self_s for row in products)
    each_ms = host_s / trace.num_steps * 1e3
    return share, [
        f"{num / trace.num_steps:,.0f} matrix products per step, {each_ms:.3g} ms of host time when recorded"
    ]
