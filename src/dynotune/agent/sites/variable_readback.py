"""Read back environment variables: the value as C code sees it, and what took effect in torch and CUDA."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LOADING_MODES = {1: "EAGER", 2: "LAZY"}


def c_getenv(name: str) -> str | None:
    """Return an environment variable as C code sees it; None if the variable is not set."""
    import ctypes

    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    value: bytes | None = getenv(os.fsencode(name))
    return None if value is None else os.fsdecode(value)


def seen_effect(name: str, asked: str) -> tuple[str, str] | None:
    """Return the value that took effect, in the setting's notation, and its source; None while unknown."""
    try:
        if name == "TORCHINDUCTOR_COMPILE_THREADS":
            return _compile_threads()
        if name == "CUDA_MODULE_LOADING" and asked in _LOADING_MODES.values():
            return _module_loading()
        return None
    except (AttributeError, OSError):  # in another version of torch, only the variable itself is known
        return None


def _compile_threads() -> tuple[str, str] | None:
    config: Any = sys.modules.get("torch._inductor.config")
    threads = getattr(config, "compile_threads", None)
    return None if threads is None else (str(threads), "torch._inductor.config.compile_threads")


def _module_loading() -> tuple[str, str] | None:
    """Ask the CUDA driver how it loads modules.

    It is asked after torch has started CUDA, because the question must not start CUDA.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    import ctypes

    mode = ctypes.c_int()
    if ctypes.CDLL("libcuda.so.1").cuModuleGetLoadingMode(ctypes.byref(mode)) != 0:
        return None
    found = _LOADING_MODES.get(mode.value)
    return None if found is None else (found, "cuModuleGetLoadingMode")
