"""Read the counters of torch's allocator as if the program had never reset them.

A trainer resets peaks at each epoch or step, to print its own. The allocator belongs to the process, and so
does what is kept here.
"""

from __future__ import annotations

from .covers import covers
from .device import has_cuda

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# All functions of torch that reset counters of a device end in one of these.
_OF_PEAKS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
_OF_SUMS = ("_cuda_resetAccumulatedMemoryStats", "_accelerator_resetAccumulatedStats")

_peaks: dict[int, dict[str, int]] = {}
"""By device, the largest peaks before the last reset."""
_sums: dict[int, dict[str, int]] = {}
"""By device, what the last reset took from sums, such as numbers of allocations."""


def keep(torch: Any) -> None:
    """From now on, keep what the program resets."""
    for name in _OF_PEAKS:
        if hasattr(torch._C, name):
            _cover_reset(torch, name, _keep_peaks)
    for name in _OF_SUMS:
        if hasattr(torch._C, name):
            _cover_reset(torch, name, _keep_sums)


def memory_stats(torch: Any, index: int) -> dict[str, int]:
    """Return `torch.cuda.memory_stats` of the device, with the peaks and sums since the process began."""
    found = dict(torch.cuda.memory_stats(index))
    for name, peak in _peaks.get(index, {}).items():
        found[name] = max(found.get(name, 0), peak)
    for name, lost in _sums.get(index, {}).items():
        found[name] = found.get(name, 0) + lost
    return found


def peak_allocated(torch: Any, index: int) -> int:
    """Return the device's `max_memory_allocated` (bytes) since the process began."""
    kept = _peaks.get(index, {}).get("allocated_bytes.all.peak", 0)
    return max(int(torch.cuda.max_memory_allocated(index)), kept)


def device_allocations(torch: Any) -> int | None:
    """Count the cudaMalloc calls of this process so far; None without CUDA."""
    if not has_cuda(torch):
        return None
    stats = (memory_stats(torch, index) for index in range(torch.cuda.device_count()))
    return sum(int(device.get("num_device_alloc", 0)) for device in stats)


def num_device_tensors(torch: Any) -> int:
    """Count the blocks of device memory that tensors have asked for so far; 0 without CUDA."""
    if not has_cuda(torch):
        return 0
    stats = (memory_stats(torch, index) for index in range(torch.cuda.device_count()))
    return sum(int(device.get("allocation.all.allocated", 0)) for device in stats)


def _cover_reset(torch: Any, name: str, kept: Any) -> None:
    reset = getattr(torch._C, name)

    @covers(torch._C, name)
    def resets(index: int) -> Any:
        if not has_cuda(torch):
            return reset(index)
        return kept(torch, index, reset)


def _keep_peaks(torch: Any, index: int, reset: Any) -> Any:
    # Flattening all counters would take longer, and a program may reset them at each step.
    counters = torch.cuda.memory_stats_as_nested_dict(index)
    known = _peaks.setdefault(index, {})
    for name in ("allocated_bytes", "reserved_bytes"):
        key, peak = name + ".all.peak", counters.get(name, {}).get("all", {}).get("peak", 0)
        known[key] = max(known.get(key, 0), int(peak))
    return reset(index)


def _keep_sums(torch: Any, index: int, reset: Any) -> Any:
    before = memory_stats(torch, index)
    answer = reset(index)
    after = torch.cuda.memory_stats(index)
    _sums[index] = {
        name: value - after.get(name, 0)
        for name, value in before.items()
        if not name.endswith((".current", ".peak"))
    }
    return answer
