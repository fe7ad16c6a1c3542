"""Query the device without creating a CUDA context or breaking a graph capture."""

from __future__ import annotations

from .annotations import Any


def synchronise(torch: Any) -> None:
    """Wait for all devices that this process uses; a query to other devices would create a context there."""
    if _has_cuda(torch):
        cuda = torch.cuda
        for index in range(cuda.device_count()):
            if index == cuda.current_device() or cuda.max_memory_reserved(index):
                cuda.synchronize(index)


def is_capturing(torch: Any) -> bool:
    """Tell whether a CUDA graph is being captured; synchronising would then raise an error in the program."""
    return _has_cuda(torch) and bool(torch.cuda.is_current_stream_capturing())


def device_allocations(torch: Any) -> int | None:
    """Count the cudaMalloc calls of this process so far; None without CUDA."""
    if not _has_cuda(torch):
        return None
    stats = (torch.cuda.memory_stats(index) for index in range(torch.cuda.device_count()))
    return sum(int(device.get("num_device_alloc", 0)) for device in stats)


def free_memory(torch: Any, error: Exception) -> None:
    """Return unused blocks to the driver if the error is an out-of-memory error."""
    if _has_cuda(torch) and type(error).__name__ == "OutOfMemoryError":
        torch.cuda.empty_cache()


def _has_cuda(torch: Any) -> bool:
    return torch is not None and bool(torch.cuda.is_initialized())
