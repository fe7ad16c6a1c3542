"""Query torch without side effects: the device, without creating a CUDA context, and autocast around a
`forward`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_FUNCTIONS = 12


def synchronise(torch: Any) -> None:
    """Wait for all devices that this process uses; a query to other devices would create a context there."""
    if has_cuda(torch):
        cuda = torch.cuda
        for index in range(cuda.device_count()):
            if index == cuda.current_device() or cuda.max_memory_reserved(index):
                cuda.synchronize(index)


def is_capturing(torch: Any) -> bool:
    """Tell whether a CUDA graph is being captured; synchronising would then raise an error in the program."""
    return has_cuda(torch) and bool(torch.cuda.is_current_stream_capturing())


def free_memory(torch: Any, error: Exception) -> None:
    """Return unused blocks to the driver if the error is an out-of-memory error."""
    if has_cuda(torch) and type(error).__name__ == "OutOfMemoryError":
        torch.cuda.empty_cache()


def has_cuda(torch: Any) -> bool:
    """Tell whether this process uses CUDA; a query to CUDA before would create a context."""
    return torch is not None and bool(torch.cuda.is_initialized())


def autocast_inside_forward(torch: Any, module: Any) -> str | None:
    """Return the dtype of the autocast that a decorator or accelerate put around `forward`; None without one.

    The functions around `forward` are read, and not called.
    """
    kind = torch.amp.autocast_mode.autocast
    queue = [vars(module).get("forward") or type(module).forward]
    for number in range(_MOST_FUNCTIONS):
        if number >= len(queue):
            return None
        function = getattr(queue[number], "__func__", queue[number])
        for value in _held_by(function):
            if isinstance(value, kind):
                dtype = getattr(value, "fast_dtype", None)
                if getattr(value, "_enabled", False) and dtype is not None:
                    return str(dtype).replace("torch.", "")
            elif callable(value) and not isinstance(value, type) and value not in queue:
                queue.append(value)
    return None


def _held_by(function: Any) -> list[Any]:
    """List the values that a wrapper refers to: the closure of a function, or the attributes of a wrapper
    object."""
    held = [getattr(function, "__wrapped__", None)]
    for cell in getattr(function, "__closure__", None) or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:  # not bound yet
            continue
    code = getattr(function, "__code__", None)
    if code is None and not hasattr(function, "parameters"):
        held.extend(getattr(function, "__dict__", {}).values())
    return [value for value in held if value is not None]
