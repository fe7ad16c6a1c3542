"""The torch build, the driver and CUDA's libraries, and their workspaces."""

from dynotune.doctor import machine
from dynotune.doctor.bounds import host_share
from dynotune.doctor.declaration import Judgement, Judgements, machine_rule
from dynotune.doctor.observation_view import ObservationView, or_else
from dynotune.schema.facts import Unknown

REGEX_FROM, REGEX_UNTIL = (2, 0), (2, 13)
"""Versions of torch that read CUBLAS_WORKSPACE_CONFIG with a regular expression at each fetch of a handle."""
PRODUCTS = frozenset(
    f"aten::{name}"
    for name in ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "_addmm_activation", "_scaled_mm", "_int_mm")
)


@machine_rule()
def driver_too_old(view: ObservationView) -> Judgements:
    if machine.no_gpu(view) or view.fact("torch.cuda") is None:
        return
    if not view.truth("torch.driver_ok"):
        yield Judgement(
            severity="high",
            claim=f"torch is built for CUDA {view.text('torch.cuda')}, which the GPU's driver does not support.",
            evidence=[view.mentions(name) for name in ("torch.version", "gpu.driver", "gpu.cuda_driver")],
        )


@machine_rule()
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


@machine_rule()
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


def _host_share_of_products(view: ObservationView) -> tuple[float | None, list[str]]:
    """Return the host's own time in products as a share of a plain step, with evidence; None if it is not known."""
    trace = view.observation.trace
    share = or_else(lambda: host_share(view, PRODUCTS.__contains__), None)
    if share is None or isinstance(trace, Unknown) or not trace.num_steps:
        return None, []
    products = [row for row in trace.operators if row.name in PRODUCTS]
    num, host_s = sum(row.num for row in products), sum(row.self_s for row in products)
    each_ms = host_s / trace.num_steps * 1e3
    return share, [f"{num / trace.num_steps:,.0f} products per step, {each_ms:.3g} ms of host time while recorded"]
