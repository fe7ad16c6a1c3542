"""Report settings and versions of torch and Python in the live process: the facts `live.*`, unprefixed."""

from __future__ import annotations

import gc
import sys

from .source_names import names_beside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_NO_TORCH = "the program did not import torch"
_NO_CUDA = "the process does not use CUDA"
_NOT_COMPILED = "torch.compile was not used"


class NotKnown(Exception):
    """Error: a fact is unavailable, for the reason in the message."""


def facts(torch: Any) -> dict[str, Any]:
    """Read each fact separately, so that a fact that this version of torch does not have affects no other
    fact.

    `torch`: the module; None if the program has not imported it.
    """
    found: dict[str, Any] = {"gc_enabled": gc.isenabled(), "gc_threshold": list(gc.get_threshold())}
    for name, ask in _ASKED.items():
        try:
            if torch is None:
                raise NotKnown(_NO_TORCH)
            found[name] = ask(torch)
        except NotKnown as error:
            found[name] = unknown(str(error))
        except Exception as error:
            found[name] = unknown("torch does not say: %s: %s" % (type(error).__name__, str(error)[:200]))
    opencv = sys.modules.get("cv2")
    if opencv is not None and hasattr(opencv, "getNumThreads"):
        found["cv2_num_threads"] = int(opencv.getNumThreads())
    if "tensorrt" in sys.modules:
        try:
            found["tensorrt_names"] = names_beside("tensorrt")
        except Exception as error:  # the file was edited since, or is not a module
            found["tensorrt_names"] = unknown(
                "the program cannot be read: %s: %s" % (type(error).__name__, error)
            )
    return found


def unknown(reason: str) -> dict[str, str]:
    """Write an unknown value in the form of `schema.facts.Unknown`."""
    return {"type": "unknown", "reason": reason}


def _with_cuda(ask: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def asked(torch: Any) -> Any:
        if not torch.cuda.is_initialized():
            raise NotKnown(_NO_CUDA)
        return ask(torch)

    return asked


def _precision(backends: Any, backend: Any, of_operation: Callable[[Any], Any]) -> str:
    try:
        # Ask for this first: after it is set, the older names raise.
        value = str(of_operation(backend).fp32_precision)
    except (AttributeError, AssertionError):
        return "tf32" if backend.allow_tf32 else "ieee"
    if value == "none":
        value = str(getattr(backends, "fp32_precision", "none"))
    return "ieee" if value == "none" else value


def _reduced(torch: Any) -> bool:
    value = torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    return bool(value[0] if isinstance(value, tuple) else value)


def _backend(torch: Any) -> str | None:
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return str(distributed.get_backend())


def _recompile_limit(torch: Any) -> int:
    config = _config("torch._dynamo.config")
    return int(config.recompile_limit if hasattr(config, "recompile_limit") else config.cache_size_limit)


def _config(name: str) -> Any:
    if name not in sys.modules:
        raise NotKnown(_NOT_COMPILED)
    return sys.modules[name]


_ASKED: dict[str, Callable[[Any], Any]] = {
    "torch_version": lambda torch: str(torch.__version__),
    "cuda_version": lambda torch: torch.version.cuda,
    "cudnn_version": _with_cuda(lambda torch: torch.backends.cudnn.version()),
    "nccl_version": _with_cuda(lambda torch: ".".join(map(str, torch.cuda.nccl.version()))),
    "arch_list": _with_cuda(lambda torch: list(torch.cuda.get_arch_list())),
    "compute_capability": _with_cuda(lambda torch: "%d.%d" % tuple(torch.cuda.get_device_capability())),
    "device_name": _with_cuda(lambda torch: torch.cuda.get_device_name()),
    "num_threads": lambda torch: int(torch.get_num_threads()),
    "num_interop_threads": lambda torch: int(torch.get_num_interop_threads()),
    "cudnn_enabled": lambda torch: bool(torch.backends.cudnn.enabled),
    "cudnn_benchmark": lambda torch: bool(torch.backends.cudnn.benchmark),
    "cudnn_benchmark_limit": lambda torch: torch.backends.cudnn.benchmark_limit,
    "cudnn_deterministic": lambda torch: bool(torch.backends.cudnn.deterministic),
    "deterministic_algorithms": lambda torch: bool(torch.are_deterministic_algorithms_enabled()),
    "deterministic_warn_only": lambda torch: bool(torch.is_deterministic_algorithms_warn_only_enabled()),
    "fill_uninitialized_memory": lambda torch: bool(torch.utils.deterministic.fill_uninitialized_memory),
    "matmul_fp32_precision": lambda torch: _precision(
        torch.backends, torch.backends.cuda.matmul, lambda own: own
    ),
    "conv_fp32_precision": lambda torch: _precision(
        torch.backends, torch.backends.cudnn, lambda cudnn: cudnn.conv
    ),
    "fp16_reduced_precision_reduction": _reduced,
    "fp16_accumulation": lambda torch: bool(torch.backends.cuda.matmul.allow_fp16_accumulation),
    "sdp_flash": lambda torch: bool(torch.backends.cuda.flash_sdp_enabled()),
    "sdp_mem_efficient": lambda torch: bool(torch.backends.cuda.mem_efficient_sdp_enabled()),
    "sdp_math": lambda torch: bool(torch.backends.cuda.math_sdp_enabled()),
    "sdp_cudnn": lambda torch: bool(torch.backends.cuda.cudnn_sdp_enabled()),
    "distributed_backend": _backend,
    "dynamo_recompile_limit": _recompile_limit,
    "inductor_caches_disabled": lambda torch: bool(_config("torch._inductor.config").force_disable_caches),
    "inductor_fx_graph_cache": lambda torch: bool(_config("torch._inductor.config").fx_graph_cache),
    "multiprocessing_sharing": lambda torch: str(torch.multiprocessing.get_sharing_strategy()),
}
