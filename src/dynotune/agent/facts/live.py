"""Report the settings and versions of torch and Python in the live process: the facts `live.*`, without the prefix.

`Calls` counts calls within the timed window that cost more than expected (emptying caches, pinning memory, anomaly
detection), and records where the program runs torch's profiler.
"""

from __future__ import annotations

import ast
import gc
import linecache
import os
import sys

from ..core import source_location
from ..core.annotations import Any, Callable, Log
from ..core.covers import covers
from ..core.profiler_session import PastSessions
from ..core.source_location import WHOSE_USER, whose

_NO_TORCH = "the program did not import torch"
_NO_CUDA = "the process does not use CUDA"
_NOT_COMPILED = "torch.compile was not used"
_MOST_NAMES = 2000


class NotKnown(Exception):
    """Error: a fact is unavailable, for the reason in the message."""


def facts(torch: Any) -> dict[str, Any]:
    """Read each fact separately, so that a fact that this version of torch does not have affects no other fact.

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
            found["tensorrt_names"] = _names_beside("tensorrt")
        except Exception as error:  # the file was edited since, or is not a module
            found["tensorrt_names"] = unknown("the program cannot be read: %s: %s" % (type(error).__name__, error))
    return found


def _names_beside(package: str) -> list[str]:
    """Find names in attributes, keywords and imports of the user's modules: `infer.py:12 config.max_workspace_size`.

    Each name is listed once, with the first source line that uses the name.
    """
    found: dict[str, str] = {}
    for module in list(sys.modules.values()):
        file = str(getattr(module, "__file__", ""))
        if not file.endswith(".py") or whose(compile("", file, "exec"), vars(module)) != WHOSE_USER:
            continue
        if package not in (text := "".join(linecache.getlines(file))):
            continue
        nodes = [one for one in ast.walk(ast.parse(text)) if isinstance(one, (ast.Attribute, ast.keyword, ast.alias))]
        for line, node in sorted(((getattr(one, "lineno", 0), one) for one in nodes), key=lambda pair: pair[0]):
            owner: Any = getattr(node, "value", None) if isinstance(node, ast.Attribute) else None
            names: Any = [getattr(owner, "attr", getattr(owner, "id", ""))]
            names += [getattr(node, part, None) for part in ("attr", "arg", "name")]
            if len(found) < _MOST_NAMES:
                found.setdefault(".".join(filter(None, names)), "%s:%d" % (os.path.basename(file), line))
    return [place + " " + name for name, place in found.items()]


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
    "matmul_fp32_precision": lambda torch: _precision(torch.backends, torch.backends.cuda.matmul, lambda own: own),
    "conv_fp32_precision": lambda torch: _precision(torch.backends, torch.backends.cudnn, lambda cudnn: cudnn.conv),
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


class _Counted:
    def __init__(self) -> None:
        self.num = 0
        self.num_before = 0
        self.place = ""

    @property
    def num_in_window(self) -> int:
        return self.num - self.num_before


class Calls:
    """Count costly calls from the program's start; `begin` marks the start of the timed window."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._torch: Any = None
        self._empty_cache, self._pin_memory, self._anomaly = _Counted(), _Counted(), _Counted()
        self.profiler: Any = None  # a ProgramsProfiler, set before torch is imported
        self._num_before = 0
        self._past = PastSessions()

    def torch_is_here(self, torch: Any) -> None:
        self._torch = torch
        is_compiling = torch.compiler.is_compiling
        self._count(torch.cuda, "empty_cache", self._empty_cache, is_compiling)
        torch.cuda.memory.empty_cache = torch.cuda.empty_cache
        self._count(torch, "set_anomaly_enabled", self._anomaly, is_compiling, _is_enabled)
        self._cover_pin_memory(torch)

    def begin(self) -> None:
        for counted in (self._empty_cache, self._pin_memory, self._anomaly):
            counted.num_before = counted.num
        if self._torch is not None:
            self._num_before = self.profiler.num_begun - self.profiler.in_the_way()
            self._past = self.profiler.past

    def facts(self) -> dict[str, Any]:
        """Return the facts `live.*` without the prefix; without torch the program made no such calls."""
        torch, profiler = self._torch, self.profiler
        anomalous = torch is not None and bool(torch.is_anomaly_enabled())
        profiled = torch is not None and (profiler.num_begun > self._num_before or profiler.in_the_way())
        return {
            "empty_cache_calls": self._empty_cache.num_in_window,
            "empty_cache_place": self._empty_cache.place,
            "pin_memory_calls": self._pin_memory.num_in_window,
            "pin_memory_place": self._pin_memory.place,
            "anomaly_mode": anomalous or self._anomaly.num_in_window > 0,
            "anomaly_place": self._anomaly.place,
            "profiler_place": (profiler.place or "elsewhere") if profiled else "",
            "profiled_sessions": self._past.num,
            "profiled_place": self._past.place,
            "profiled_activities": sorted(self._past.activities),
            "profiled_teardown": self._past.takes_cupti_down,
        }

    def _count(
        self,
        owner: Any,
        name: str,
        counted: _Counted,
        is_compiling: Callable[[], bool],
        counts: Callable[..., bool] = lambda *args, **kwargs: True,
    ) -> None:
        original = getattr(owner, name)

        @covers(owner, name)
        def function(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            result = original(*args, **kwargs)
            if counts(*args, **kwargs):
                counted.num += 1
                counted.place = source_location.line()
            return result

    def _cover_pin_memory(self, torch: Any) -> None:
        original, counted = torch.Tensor.pin_memory, self._pin_memory
        is_tracing = getattr(torch.compiler, "is_dynamo_compiling", lambda: False)

        @covers(torch.Tensor, "pin_memory")
        def pin_memory(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            # In a trace, this folds to the method that torch.compile knows by its name.
            if is_tracing():
                return tensor.pin_memory(*args, **kwargs)
            result = original(tensor, *args, **kwargs)
            # Ignore pinning of batches by a loader, in whatever thread.
            if sys._getframe(1).f_globals.get("__name__") != "torch.utils.data._utils.pin_memory":
                counted.num += 1
                counted.place = source_location.line()
            return result


def _is_enabled(mode: Any = False, *args: Any, **kwargs: Any) -> bool:
    return bool(mode or kwargs.get("enabled"))
