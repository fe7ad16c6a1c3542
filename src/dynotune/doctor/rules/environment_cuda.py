"""The torch build, the driver and CUDA's libraries, and their workspaces."""

from __future__ import annotations

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


@machine_rule(
    title="The driver is too old for torch's CUDA version.",
    sees="the CUDA version of the torch build against the highest that the driver supports. A driver serves all minor "
    "versions of its major version.",
    costs="torch finds no GPU. A program that falls back to the CPU does so silently.",
    wrong_when="NVIDIA's forward-compatibility package is installed beside the driver.",
)
def driver_too_old(view: ObservationView) -> Judgements:
    if machine.no_gpu(view) or view.fact("torch.cuda") is None:
        return
    if not view.truth("torch.driver_ok"):
        yield Judgement(
            severity="high",
            claim=f"torch is built for CUDA {view.text('torch.cuda')}, which the GPU's driver does not support.",
            evidence=[view.mentions(name) for name in ("torch.version", "gpu.driver", "gpu.cuda_driver")],
            remedy="Install a newer driver, or a torch built for the CUDA that the driver supports.",
            commands=[
                "nvidia-smi",
                "# the driver: from NVIDIA or the distribution; a container uses its host's driver",
            ],
        )


@machine_rule(
    title="There is a GPU, and torch is built without CUDA.",
    sees="a visible GPU, and a torch build for the CPU in the command's interpreter.",
    costs="everything runs on the CPU.",
    wrong_when="the program is meant to run on the CPU.",
)
def torch_without_cuda(view: ObservationView) -> Judgements:
    if not machine.gpus(view) or view.fact("torch.cuda") is not None:
        return
    torch_version = view.text("torch.version")
    if "rocm" not in torch_version and "xpu" not in torch_version:
        yield Judgement(
            severity="high",
            claim=f"There is a GPU, and torch {torch_version} is built without CUDA.",
            evidence=[view.mentions(name) for name in ("gpu.name", "torch.version", "python.executable")],
            remedy="Install a CUDA build: https://pytorch.org/get-started/locally/ names it for your driver.",
        )


@machine_rule(
    title="CUBLAS_WORKSPACE_CONFIG costs host time at each matrix product.",
    sees="CUBLAS_WORKSPACE_CONFIG is set, and torch is 2.0 to 2.12. These versions read it with a regular expression "
    "whenever they fetch a cuBLAS handle.",
    costs="at most the host's own time in matrix products. On a machine with an H200: 50 µs a product, 150 µs with a "
    "bias. That made steps of small models two to four times as long. It costs nothing if the host is ahead.",
    wrong_when="results must repeat although several streams are used.",
    candidates=machine.unset("CUBLAS_WORKSPACE_CONFIG"),
    explains=["launch-bound", "host-bound"],
)
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
            *(["deterministic algorithms are on, which need it"] if wanted else []),
        ],
        remedy="Unset it unless results must repeat bit by bit. torch 2.13 and later read it only once.",
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
    return share, [f"{num / trace.num_steps:,.0f} products a step, {each_ms:.3g} ms of host time while recorded"]
