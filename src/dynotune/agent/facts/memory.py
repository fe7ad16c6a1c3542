"""Read the device memory and the resident memory of this process at both ends of the window."""

from __future__ import annotations

from ..core.allocator_counters import memory_stats
from .kernel_counters import resident_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Memory:
    """Growth of device and host memory within the timed window."""

    def __init__(self) -> None:
        self._torch: Any = None
        self._before: dict[int, dict[str, int]] = {}
        self._rss_before = 0
        self._rss_levels: list[int] = []
        self._levels: dict[int, list[int]] = {}

    def torch_is_here(self, torch: Any) -> None:
        self._torch = torch

    def begin(self) -> None:
        self._before = self._allocators()
        self._rss_before = resident_bytes()
        self._rss_levels = [self._rss_before]
        self._levels = {
            index: [stats["allocated_bytes.all.current"]] for index, stats in self._before.items()
        }

    def level(self) -> None:
        """Read the memory now in use; called a few times within the window, at a cost of tens of microseconds
        each."""
        self._rss_levels.append(resident_bytes())
        for index, levels in self._levels.items():
            levels.append(int(self._torch.cuda.memory_allocated(index)))

    def facts(self) -> dict[str, Any]:
        """Return the fields of `schema.observation.ProcessState`."""
        rss = resident_bytes()
        return {
            "allocators": [self._allocator(index, after) for index, after in self._allocators().items()],
            "rss_growth_bytes": rss - self._rss_before,
            "rss_levels_bytes": [*self._rss_levels, rss],
        }

    def _allocators(self) -> dict[int, dict[str, int]]:
        """Return allocator counters of the devices that this process uses, without waiting for a device."""
        cuda = getattr(self._torch, "cuda", None)
        if cuda is None or not cuda.is_initialized():
            return {}
        found = {index: memory_stats(self._torch, index) for index in range(cuda.device_count())}
        return {index: stats for index, stats in found.items() if stats.get("reserved_bytes.all.peak", 0)}

    def _allocator(self, index: int, after: dict[str, int]) -> dict[str, Any]:
        before, levels = self._before.get(index, {}), self._levels.get(index, [])

        def level(name: str) -> int:
            return int(after.get(name, 0))

        def growth(name: str) -> int:
            return level(name) - int(before.get(name, 0))

        return {
            "device": index,
            "total_bytes": int(self._torch.cuda.get_device_properties(index).total_memory),
            "allocated_bytes": level("allocated_bytes.all.current"),
            "allocated_growth_bytes": growth("allocated_bytes.all.current"),
            "reserved_bytes": level("reserved_bytes.all.current"),
            "peak_allocated_bytes": level("allocated_bytes.all.peak"),
            "peak_reserved_bytes": level("reserved_bytes.all.peak"),
            "num_alloc_retries": growth("num_alloc_retries"),
            "num_ooms": growth("num_ooms"),
            "num_device_allocations": growth("num_device_alloc"),
            "num_device_frees": growth("num_device_free"),
            "allocated_levels_bytes": [*levels, level("allocated_bytes.all.current")] if levels else [],
        }
