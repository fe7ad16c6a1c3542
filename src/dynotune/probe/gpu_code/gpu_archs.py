"""Decide which GPU runs which code, by NVIDIA's rules of compatibility between architectures.

- Machine code runs on its own compute capability, and on later minor versions of the same major version.
- The driver compiles PTX for the PTX's own capability and every later one.
- `a` code runs on exactly its own capability, as PTX and as machine code. `f` code runs on its family: later
  minor versions that would run its machine code.
- Integrated GPUs (Jetson) and other GPUs do not run each other's machine code.

Sources: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility,
https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc/#gpu-feature-list, torch.cuda.DEVICE_REQUIREMENT
"""

import re
from collections import Counter
from collections.abc import Iterable

from dynotune.schema.device_code import (
    Code,
    Container,
    ContainerVerdict,
    Gpu,
    LibraryVerdict,
    Suffix,
    Verdict,
)
from dynotune.schema.errors import UsageError

INTEGRATED = frozenset({53, 62, 72, 87, 101})
"""Architectures of Jetson up to Orin; Thor was 101 before CUDA 13 changed it to 110."""
RENAMED = {101: 110}

LARGEST_EMPTY_PTX_BYTES = 72
"""PTX up to this size has three directives and no function: NVIDIA's libraries have such PTX of 56 and 68
bytes, and nvcc makes 94 bytes of `__global__ void k(){}`."""

# The minor version of PTX equals that of CUDA, except in CUDA 12.
# https://docs.nvidia.com/cuda/parallel-thread-execution/#release-notes
_PTX_MAJOR = {11: 7, 12: 8, 13: 9}
_PTX_MINOR_OF_CUDA_12 = (0, 1, 2, 3, 4, 5, 5, 6, 7, 8)


def sm_of(compute_capability: str) -> int:
    """Return `9.0` as 90, `12.1` as 121. Raises UsageError: the text is not a compute capability."""
    found = re.fullmatch(r"(?:sm_|compute_)?(\d{1,2})\.?(\d)", compute_capability.strip())
    if found is None or int(found[1]) == 0:
        raise UsageError(
            f"{compute_capability} is not a compute capability.",
            hint=(
                "For example 9.0 (H200) or 12.0 (RTX 5090); https://developer.nvidia.com/cuda-gpus lists "
                "them."
            ),
        )
    return int(found[1]) * 10 + int(found[2])


def named(arch: str) -> Code | None:
    """Return the code named `sm_90a` or `compute_120`, with size 0; None for another name."""
    found = re.fullmatch(r"(sm|compute)_(\d{2,3})([af]?)", arch)
    if found is None:
        return None
    suffix: Suffix = "a" if found[3] == "a" else "f" if found[3] == "f" else ""
    return Code("machine" if found[1] == "sm" else "ptx", int(found[2]), suffix, 0, 0)


def runs(code: Code, sm: int) -> bool:
    """Tell whether a GPU of architecture `sm` runs this code; PTX counts if the driver can compile it."""
    if code.form == "machine":
        return _machine_code_runs(code, sm)
    if code.form != "ptx":
        return False
    if code.suffix == "a":
        return _same(code.sm, sm)
    return code.sm <= sm and (code.suffix != "f" or _machine_code_runs(code, sm))


def _machine_code_runs(code: Code, sm: int) -> bool:
    if code.suffix == "a" or code.sm in INTEGRATED or sm in INTEGRATED:
        return _same(code.sm, sm)
    return code.sm // 10 == sm // 10 and code.sm <= sm


def _same(one: int, other: int) -> bool:
    return RENAMED.get(one, one) == RENAMED.get(other, other)


def newest_ptx(cuda: str) -> tuple[int, int] | None:
    """Return the newest PTX version that a driver for CUDA `cuda` (`13.0`) compiles; None if `cuda` is
    unknown."""
    major, minor = (int(part) for part in (*cuda.split("."), "0")[:2])
    if major == 12:
        minor = _PTX_MINOR_OF_CUDA_12[min(minor, len(_PTX_MINOR_OF_CUDA_12) - 1)]
    return (_PTX_MAJOR[major], minor) if major in _PTX_MAJOR else None


def container_verdict(container: Container, sm: int) -> tuple[ContainerVerdict, Code | None]:
    """Return whether a GPU runs or compiles a container's code, and the used code; None if no code is usable.

    The driver takes machine code that runs on the GPU, else the newest PTX that it can compile.
    """
    fitting = [code for code in container if runs(code, sm)]
    machine = [code for code in fitting if code.form == "machine"]
    if machine:
        return "native", max(machine, key=_precedence)
    if fitting:
        chosen = max(fitting, key=_precedence)
        return ("empty" if chosen.code_bytes <= LARGEST_EMPTY_PTX_BYTES else "jit"), chosen
    forms = {code.form for code in container}
    # A code of an unknown kind may be one that this GPU runs.
    return "unknown" if "other" in forms else "cannot" if forms & {"machine", "ptx"} else "empty", None


def _precedence(code: Code) -> tuple[int, str]:
    return code.sm, code.suffix


def verdict(containers: Iterable[Container], gpu: Gpu) -> Verdict:
    """Return whether a GPU runs or compiles the code in the containers of one library."""
    sm = sm_of(gpu.compute_capability)
    newest = None if gpu.cuda_driver is None else newest_ptx(gpu.cuda_driver)
    num = Counter[str]()
    ptx_bytes = 0
    for container in containers:
        found, code = container_verdict(container, sm)
        if found == "jit" and code is not None:
            if newest is not None and code.ptx_version is not None and code.ptx_version > newest:
                found = "cannot"
                num["too_new"] += 1
            else:
                ptx_bytes += code.code_bytes
        num[found] += 1
    return Verdict(
        compute_capability=gpu.compute_capability,
        verdict=_of_library(num),
        ptx_bytes=ptx_bytes,
        **{f"num_{name}": count for name, count in num.items()},
    )


def _of_library(num: Counter[str]) -> LibraryVerdict:
    """Judge a library, and report separately the containers whose code the GPU cannot run.

    NVIDIA's libraries keep kernels for one GPU in separate containers that other GPUs never call.
    """
    if num["jit"]:
        return "jit"
    if num["unknown"]:
        return "unknown"
    if num["native"]:
        return "partial" if num["cannot"] else "native"
    return "cannot" if num["cannot"] else "empty"
