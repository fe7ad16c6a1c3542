"""Decide from facts whether driver, GPU and this build of torch are compatible."""

import re
from collections.abc import Sequence

from dynotune.probe.gpu_code import gpu_archs
from dynotune.schema.facts import Facts, Missing, Unknown, needed, or_unknown

NAMES = ("torch.driver_ok", "torch.runs_natively")

FIRST_MINOR_COMPATIBLE = 11
"""From CUDA 11 on, a driver runs every build of its own major version."""


def facts(known: Facts) -> Facts:
    """Return facts `torch.driver_ok` and `torch.runs_natively`; None for a build without CUDA.

    `known`: must have `torch.cuda`, `torch.arch_list`, `gpu.cuda_driver` and `gpu.compute_capability`.
    """
    if known.get("torch.cuda", "") is None:
        return dict.fromkeys(NAMES, None)
    return {"torch.driver_ok": _driver_ok(known), "torch.runs_natively": _runs_natively(known)}


@or_unknown()
def _driver_ok(known: Facts) -> bool:
    return driver_supports(_text(known, "gpu.cuda_driver"), _text(known, "torch.cuda"))


def driver_supports(driver: str, build: str) -> bool:
    """Tell whether a driver for CUDA version `driver` runs a program built with CUDA version `build`, such as
    `13.0`.

    Source: https://docs.nvidia.com/deploy/cuda-compatibility/
    """
    has, needs = _version(driver), _version(build)
    return has[0] >= needs[0] if needs[0] >= FIRST_MINOR_COMPATIBLE else has >= needs


@or_unknown()
def _runs_natively(known: Facts) -> bool:
    capability, archs = _text(known, "gpu.compute_capability"), needed(known.get("torch.arch_list"))
    if not isinstance(archs, list):
        raise Missing(Unknown("torch.arch_list is not known"))
    return covers([str(arch) for arch in archs], capability)


def covers(archs: Sequence[str], capability: str) -> bool:
    """Tell whether `archs` has machine code for a GPU of `capability` (`9.0`): same major, and no higher
    minor version.

    `sm_90a` runs on exactly 9.0. `sm_100f` runs on its family, as plain machine code does. `compute_90` is
    PTX.
    """
    sm = gpu_archs.sm_of(capability)
    codes = [code for arch in archs if (code := gpu_archs.named(arch)) is not None]
    return any(code.form == "machine" and gpu_archs.runs(code, sm) for code in codes)


def _text(known: Facts, name: str) -> str:
    value = needed(known.get(name))
    if not isinstance(value, str):
        raise Missing(Unknown(f"{name} is not known"))
    return value


def _version(text: str) -> tuple[int, ...]:
    return (*(int(part) for part in re.findall(r"\d+", text)[:2]), 0)
