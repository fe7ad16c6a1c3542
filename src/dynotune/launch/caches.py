"""Compile and kernel caches of an arm, so that the first arm does not pay for the second."""

from __future__ import annotations

import shutil
from pathlib import Path

_VARIABLES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
    "PYTORCH_KERNEL_CACHE_PATH": "jiterator",
}


def environment(folder: Path) -> dict[str, str]:
    """Variables that put every cache below `folder`, which is made."""
    for name in _VARIABLES.values():
        (folder / name).mkdir(parents=True, exist_ok=True)
    return {variable: str(folder / name) for variable, name in _VARIABLES.items()}


def clear(folder: Path) -> None:
    """Make the caches cold."""
    shutil.rmtree(folder, ignore_errors=True)
