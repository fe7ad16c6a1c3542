"""Report the identity of this process, changes to its environment variables, and its use of resources."""

from __future__ import annotations

import os
import re
import resource
import sys

from .allocator_counters import peak_allocated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from .annotations import Event, Log

# Variables that change how PyTorch programs run; their changes are recorded with the code that made them.
_WATCHED = (
    "CUBLAS",
    "CUDA_",
    "CUDNN",
    "DISABLE_CUPTI_",
    "GOMP_",
    "HF_",
    "KINETO_",
    "KMP_",
    "LD_PRELOAD",
    "MALLOC_",
    "MKL_",
    "NCCL_",
    "NUMEXPR_",
    "NVIDIA_",
    "OMP_",
    "OPENBLAS_",
    "PYTORCH_",
    "TEARDOWN_CUPTI",
    "TORCH",
    "TRITON_",
    "VECLIB_",
    "WORLD_SIZE",
    "DYNOTUNE_NOTHING",
)
_MAX_CHANGES = 200


def process() -> dict[str, Any]:
    """Return facts of this interpreter, for its first event."""
    with open("/proc/self/cmdline", "rb") as file:
        argv = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    return {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "argv": argv,
        "executable": sys.executable,
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "rank": number("RANK"),
        "world_size": number("WORLD_SIZE"),
    }


def memory(torch: Any) -> dict[str, int]:
    """Return memory peaks so far in bytes, and the number of devices in use. Reads counters only, without
    waiting."""
    peaks = {"peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if torch is not None and torch.cuda.is_initialized():
        of_each = [peak_allocated(torch, index) for index in range(torch.cuda.device_count())]
        peaks.update(peak_device_bytes=sum(of_each), num_devices=sum(map(bool, of_each)))
    return peaks


def owned(torch: Any, roots: list[Any], optimizers: list[Any]) -> dict[str, list[Any]]:
    """Return the tensors of modules and optimizers, by their purpose."""
    weights = [weight for root in roots for weight in root.parameters()]
    weights += [weight for one in optimizers for group in one.param_groups for weight in group["params"]]
    weights = list({id(weight): weight for weight in weights}.values())
    states = [state for one in optimizers for state in list(one.state.values()) if isinstance(state, dict)]
    return {
        "weights": weights,
        "gradients": [weight.grad for weight in weights if weight.grad is not None],
        "optimizer": [
            held for state in states for held in list(state.values()) if isinstance(held, torch.Tensor)
        ],
        "buffers": [buffer for root in roots for buffer in root.buffers()],
    }


def out_of_memory(torch: Any, roots: list[Any], optimizers: list[Any]) -> dict[str, Any] | None:
    """Return the failed allocation that ends the process, and device bytes by use; None for another end."""
    error = getattr(sys, "last_value", None)
    kind = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
    if not isinstance(error, kind):
        return None
    held = owned(torch, roots, optimizers).items()
    sizes = {
        use: sum(t.numel() * t.element_size() for t in found if t.device.type == "cuda")
        for use, found in held
    }
    return {"message": str(error), "held": sizes}


class EnvironmentWatch:
    """Watch environment variables: record each change with name, value, and the program's line that made the
    change.

    The audit event precedes the change and does not cover `setenv` in C code, so this class only observes.
    """

    def __init__(self, event: Event, is_kept: Callable[[str], bool], log: Log) -> None:
        self._event, self._log = event, log
        self._is_kept = is_kept
        self._num_changes = 0
        self._temporary: list[str] = []

    def install(self) -> None:
        sys.addaudithook(self._hook)

    def _hook(self, name: str, args: tuple[Any, ...]) -> None:
        if name != "os.putenv" and name != "os.unsetenv":
            if name == "tempfile.mkdtemp" and len(self._temporary) < _MAX_CHANGES:
                self._temporary.append(os.fspath(args[0]))
            return
        try:
            variable = os.fsdecode(args[0])
            if self._num_changes < _MAX_CHANGES and variable.startswith(_WATCHED):
                value = os.fsdecode(args[1]) if name == "os.putenv" else None
                # Libraries write values that they have read, so the first writer is the one who set the
                # value.
                if value != os.environ.get(variable):
                    self._num_changes += 1
                    self._record(variable, value)
        except Exception as error:  # an error here would be raised in the program
            self._log("environment", error)

    def _record(self, variable: str, value: str | None) -> None:
        """Record a variable's change with the innermost frame outside the agent and the standard library's
        `os`."""
        frame: FrameType | None = sys._getframe(2)
        own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        while frame is not None and (
            frame.f_code.co_filename == os.__file__
            or frame.f_code.co_filename.startswith((own, "<frozen os"))
            or frame.f_globals.get("__name__") in ("_collections_abc", "collections.abc")
        ):
            frame = frame.f_back
        self._event(
            {
                "event": "environment",
                "name": variable,
                "value": value,
                "file": frame.f_code.co_filename if frame else "",
                "line": frame.f_lineno if frame else 0,
                "function": frame.f_code.co_name if frame else "",
                "kept": bool(self._is_kept(variable)),
                "fresh": value is not None and self._is_fresh(value),
            }
        )

    def _is_fresh(self, folder: str) -> bool:
        """Tell whether the folder belongs to this run alone: temporary, or named after this process."""
        names = folder.split("/")
        temporary = any((folder + "/").startswith(path + "/") for path in self._temporary)
        return temporary or any(str(os.getpid()) in re.split(r"\D+", name) for name in names)


def number(name: str) -> int | None:
    """Return an environment variable's value as a number; None if the value is not a number."""
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else None
