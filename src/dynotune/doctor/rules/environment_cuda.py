"""What the build of torch, the driver and CUDA's libraries do together, and workspaces."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dynotune.doctor import policy
from dynotune.doctor.machine import (
    NOT_MEASURED,
    gpus,
    known,
    no_gpu,
    place_of,
    shares,
    told,
    unset,
    version,
    weighed,
)
from dynotune.doctor.observation_view import Missing, Seen
from dynotune.doctor.registry import rule
from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Unknown

REGEX_FROM, REGEX_UNTIL = (2, 0), (2, 13)
"""Versions of torch that read CUBLAS_WORKSPACE_CONFIG with a regular expression at each fetch of a handle."""
PRODUCTS = frozenset(
    f"aten::{name}"
    for name in ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "_addmm_activation", "_scaled_mm", "_int_mm")
)


@rule("machine")
def driver_too_old(seen: Seen) -> Iterator[Finding]:
    """The driver is too old for the CUDA that torch was built with.

    Sees: the CUDA version of the torch build against the highest that the driver supports; a driver serves all minor
    versions of its major one.

    Costs: torch finds no GPU, and a program that falls back to the CPU runs there without a word.

    Wrong when: NVIDIA's forward-compatibility package is installed beside the driver.
    """
    if no_gpu(seen) or seen.fact("torch.cuda") is None:
        return
    if not seen.truth("torch.driver_ok"):
        yield Finding(
            id="driver-too-old",
            severity="high",
            claim=f"torch is built for CUDA {seen.text('torch.cuda')}, which the GPU's driver does not support.",
            share=NOT_MEASURED,
            evidence=[seen.mentions(name) for name in ("torch.version", "gpu.driver", "gpu.cuda_driver")],
            remedy="Install a newer driver, or a torch built for the CUDA that the driver supports.",
            commands=["nvidia-smi", "# the driver: from NVIDIA or the distribution; in a container, that of its host"],
        )


@rule("machine")
def torch_without_cuda(seen: Seen) -> Iterator[Finding]:
    """There is a GPU, and torch is built without CUDA.

    Sees: a visible GPU, and a torch in the command's interpreter that was built for the CPU.

    Costs: everything runs on the CPU.

    Wrong when: that is what the program is for.
    """
    if not gpus(seen) or seen.fact("torch.cuda") is not None:
        return
    torch_version = seen.text("torch.version")
    if "rocm" not in torch_version and "xpu" not in torch_version:
        yield Finding(
            id="torch-without-cuda",
            severity="high",
            claim=f"There is a GPU, and torch {torch_version} is built without CUDA.",
            share=NOT_MEASURED,
            evidence=[seen.mentions(name) for name in ("gpu.name", "torch.version", "python.executable")],
            remedy="Install a CUDA build: https://pytorch.org/get-started/locally/ names it for your driver.",
        )


@rule("machine", explains=["launch-bound", "host-bound"])
def cublas_env_regex(seen: Seen) -> Iterator[Finding]:
    """A variable costs host time at each matrix product.

    Sees: CUBLAS_WORKSPACE_CONFIG is set, and torch is 2.0 to 2.12: these read it with a regular expression whenever
    they fetch a cuBLAS handle. Of a watched command, the host's own time in matrix products bounds it.

    Costs: 50 µs of host time a product, and three times that with a bias, on a machine with an H200: two to four times
    the step of small models, nothing where products are large and the host is ahead of the GPU.

    Wrong when: deterministic results on several streams are wanted; then the variable is needed.
    """
    if seen.variable("CUBLAS_WORKSPACE_CONFIG") is None:
        return
    torch_version = seen.text("torch.version")
    if not REGEX_FROM <= version(torch_version)[:2] < REGEX_UNTIL:
        return
    wanted = known(seen, "live.deterministic_algorithms") is True
    bound, products = _host_share_of_products(seen)
    if bound is None:
        share: float | Unknown = NOT_MEASURED
        severity = weighed(seen, "low" if wanted else "medium")
    else:
        share, severity = bound, "low" if wanted else policy.severity(bound)
    yield Finding(
        id="cublas-env-regex",
        severity=severity,
        claim="CUBLAS_WORKSPACE_CONFIG costs host time at each matrix product.",
        share=share,
        evidence=[
            *told(seen, "CUBLAS_WORKSPACE_CONFIG"),
            seen.mentions("torch.version"),
            *products,
            *(["deterministic algorithms are asked for, which need it"] if wanted else []),
        ],
        where=place_of(seen, "CUBLAS_WORKSPACE_CONFIG"),
        candidates=unset("CUBLAS_WORKSPACE_CONFIG"),
        remedy="Take it away unless results must repeat bit by bit; torch 2.13 and later read it once.",
    )


def _host_share_of_products(seen: Seen) -> tuple[float | None, list[str]]:
    """Of a plain step, the host's own time in products, at most the device's idle time that the host causes.

    The recording slows the host, so its time in products is no less than in a plain step.
    """
    parts, trace = shares(seen), seen.observation.trace
    if parts is None or isinstance(trace, Unknown) or not trace.num_steps:
        return None, []
    found = [operator for operator in trace.operators if operator.name in PRODUCTS]
    host_s = sum(operator.self_s for operator in found) / trace.num_steps
    try:
        step_s = seen.timing.step_s
    except Missing:
        return None, []
    num = sum(operator.num for operator in found) / trace.num_steps
    told = f"{num:,.0f} products a step, {host_s * 1e3:.3g} ms of host time while recorded"
    return min(host_s / step_s, parts.host), [told]


@rule("machine")
def cublas_workspace_small(seen: Seen) -> Iterator[Finding]:
    """cuBLAS gets less workspace than torch would give it.

    Sees: CUBLAS_WORKSPACE_CONFIG names less than 8.125 MiB in all, as `:16:8` and `:0:0` do.

    Costs: algorithms that split a product along its inner dimension, the fast ones for small results, cannot be chosen.

    Wrong when: products are large, or memory is very short.
    """
    value = seen.variable("CUBLAS_WORKSPACE_CONFIG")
    size = _workspace_bytes(value or "")
    if size is None or size >= policy.DEFAULT_CUBLAS_WORKSPACE_BYTES:
        return
    yield Finding(
        id="cublas-workspace-small",
        severity=weighed(seen, "medium"),
        claim=f"CUBLAS_WORKSPACE_CONFIG leaves cuBLAS {size / 1024:,.4g} KiB of workspace; torch gives 8 MiB or more.",
        share=NOT_MEASURED,
        evidence=[*told(seen, "CUBLAS_WORKSPACE_CONFIG"), "sizes are in KiB: :SIZE:COUNT"],
        where=place_of(seen, "CUBLAS_WORKSPACE_CONFIG"),
        candidates=unset("CUBLAS_WORKSPACE_CONFIG"),
        remedy="Take it away, or use :4096:8 where results must repeat.",
    )


def _workspace_bytes(value: str) -> int | None:
    """`:4096:2:16:8` is 8.125 MiB; None for what torch does not understand, which it ignores."""
    pairs = re.findall(r":(\d{1,9}):(\d{1,9})", value)
    if not pairs or "".join(f":{size}:{count}" for size, count in pairs) != value:
        return None
    return sum(int(size) * int(count) for size, count in pairs) * 1024
