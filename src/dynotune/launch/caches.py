"""Compile and kernel caches of an arm, so that the first arm does not pay for the second."""

from __future__ import annotations

import shutil
from pathlib import Path

from dynotune.schema.errors import CannotRunHere

_VARIABLES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
    "PYTORCH_KERNEL_CACHE_PATH": "jiterator",
}


def environment(folder: Path) -> dict[str, str]:
    """Variables that put every cache below `folder`, which is made.

    Raises:
        CannotRunHere: it cannot be made.
    """
    try:
        for name in _VARIABLES.values():
            (folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotRunHere(
            f"Cannot make the caches in {folder}: {error.strerror}.",
            hint="Free some space there, or name another folder with --run-dir.",
        ) from error
    return {variable: str(folder / name) for variable, name in _VARIABLES.items()}


def clear(folder: Path) -> None:
    """Make the caches cold.

    Raises:
        CannotRunHere: some of it is still there, so they would not be.
    """
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise CannotRunHere(
            f"Cannot empty the caches in {folder}: {error.strerror}.", hint="Measure with --caches warm."
        ) from error
