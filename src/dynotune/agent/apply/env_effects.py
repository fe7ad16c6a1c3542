"""What environment variables came to in this process, where whoever reads them tells."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    Effect = Optional[tuple[str, str]]

_LOADING_MODES = {1: "EAGER", 2: "LAZY"}


def seen_effect(name: str, asked: str) -> Effect:
    """What the variable came to, written as it is set, and who says so; None where nobody says (yet)."""
    try:
        if name == "TORCHINDUCTOR_COMPILE_THREADS":
            return _compile_threads()
        return _module_loading() if name == "CUDA_MODULE_LOADING" and asked in _LOADING_MODES.values() else None
    except (AttributeError, OSError):  # of another version: then the variable itself is what is known
        return None


def _compile_threads() -> Effect:
    config: Any = sys.modules.get("torch._inductor.config")
    threads = getattr(config, "compile_threads", None)
    return None if threads is None else (str(threads), "torch._inductor.config.compile_threads")


def _module_loading() -> Effect:
    """Asked only once torch has started CUDA: the driver knows it by then, and a question starts nothing."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    import ctypes

    mode = ctypes.c_int()
    if ctypes.CDLL("libcuda.so.1").cuModuleGetLoadingMode(ctypes.byref(mode)) != 0:
        return None
    found = _LOADING_MODES.get(mode.value)
    return None if found is None else (found, "cuModuleGetLoadingMode")
