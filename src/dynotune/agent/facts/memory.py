"""Read amounts and counters at both ends of the window: device and resident memory, garbage, autograd's graph."""

from __future__ import annotations

import gc
import os
from time import thread_time

from ..core.annotations import Any
from ..core.writer import GARBAGE

LONG_S = 0.001


class Garbage:
    """Measure the processor time of Python's garbage collections, through `gc.callbacks`.

    Processor time leaves out waits: finalizers may wait for the device or a lock, which is no work of the collector.
    """

    def __init__(self) -> None:
        self._begin_s = 0.0
        self._in_step = 0
        self.reset()

    def install(self) -> None:
        if self._called not in gc.callbacks:
            gc.callbacks.append(self._called)

    def remove(self) -> None:
        if self._called in gc.callbacks:
            gc.callbacks.remove(self._called)

    def reset(self) -> None:
        self.num = self.num_oldest = 0
        self.total_s = self.longest_s = 0.0

    def flag(self) -> int:
        """Return GARBAGE if a significant garbage collection has ended since the last call."""
        flag, self._in_step = self._in_step, 0
        return flag

    def facts(self) -> dict[str, Any]:
        """Return the fields of `schema.observation.Collections`."""
        return {
            "num": self.num,
            "num_oldest": self.num_oldest,
            "total_s": self.total_s,
            "longest_s": self.longest_s,
            # Counting them takes as long as a collection, so it is done only for a program that had long collections.
            "num_objects": len(gc.get_objects()) if self.num_oldest else None,
        }

    def _called(self, phase: str, info: dict[str, int]) -> None:
        # An error here must not be raised, because it would be printed.
        if phase == "start":
            self._begin_s = thread_time()
            return
        took_s = thread_time() - self._begin_s
        oldest = info.get("generation") == 2
        self.num += 1
        self.num_oldest += oldest
        self.total_s += took_s
        self.longest_s = max(self.longest_s, took_s)
        if oldest or took_s > LONG_S:
            self._in_step = GARBAGE


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
        self._rss_before = _own_bytes()
        self._rss_levels = [self._rss_before]
        self._levels = {index: [stats["allocated_bytes.all.current"]] for index, stats in self._before.items()}

    def level(self) -> None:
        """Read the memory now in use; called a few times within the window, at a cost of tens of microseconds each."""
        self._rss_levels.append(_own_bytes())
        for index, levels in self._levels.items():
            levels.append(int(self._torch.cuda.memory_allocated(index)))

    def facts(self) -> dict[str, Any]:
        """Return the fields of `schema.observation.ProcessState`."""
        rss = _own_bytes()
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
        found = {index: cuda.memory_stats(index) for index in range(cuda.device_count())}
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


def _own_bytes() -> int:
    """Return resident memory in bytes without files and shared memory, in which workers' batches wait for their use."""
    with open("/proc/self/statm", encoding="ascii") as file:
        _, resident, shared = file.read().split()[:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


MOST_OBJECTS = 5_000_000
MOST_NODES = 100_000
"""Limit of counting; beyond it, either count takes some tenths of a second."""


def graphs(torch: Any, before: int | None) -> dict[str, int | None]:
    """Return fields of `schema.observation.ProcessState`, given the number of graph nodes at the window's begin.

    Between two steps a training loop keeps the graph of its last loss; a loop that stores losses keeps all graphs.
    """
    after = None if before is None or before >= MOST_NODES else num_nodes(torch)
    return {"graph_nodes_growth": None if before is None or after is None else after - before, "graph_nodes": after}


def num_nodes(torch: Any) -> int | None:
    """Count the graph nodes behind Python's tensors, at most MOST_NODES; None if Python has too many objects.

    The result is 0 if `torch` is None, because a program without torch has no tensors.
    """
    if torch is None:
        return 0
    objects = gc.get_objects()
    if len(objects) > MOST_OBJECTS:
        return None
    is_tensor: dict[type, bool] = {}
    ahead: list[Any] = []
    # A subclass of the program may run any code when asked.
    with torch._C.DisableTorchFunction():
        for one in objects:
            kind = type(one)
            if kind not in is_tensor:
                is_tensor[kind] = issubclass(kind, torch.Tensor)
            if is_tensor[kind] and one.grad_fn is not None:
                ahead.append(one.grad_fn)
    del objects
    # Keep them alive while counting, because the identity of a dead object may be reused.
    seen: dict[int, Any] = {}
    while ahead and len(seen) < MOST_NODES:
        node = ahead.pop()
        if id(node) not in seen:
            seen[id(node)] = node
            ahead.extend(following for following, _ in node.next_functions if following is not None)
    return len(seen)
