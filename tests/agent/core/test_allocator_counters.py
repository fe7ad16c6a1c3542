"""Counters of the allocator, which the program may reset."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest
import torch

from dynotune.agent.core import allocator_counters, observe
from dynotune.agent.facts.memory import Memory

GB = 1 << 30
PEAK_RESETS, SUM_RESETS = allocator_counters._OF_PEAKS, allocator_counters._OF_SUMS


class Allocator:
    """An allocator of one device, with torch's functions that read and reset its counters."""

    def __init__(self) -> None:
        self.bytes = self.peak_bytes = self.num_allocated = self.num_tries = self.num_device = 0
        resets = {
            **dict.fromkeys(PEAK_RESETS, self.reset_peaks),
            **dict.fromkeys(SUM_RESETS, self.reset_sums),
        }
        self.torch = SimpleNamespace(
            _C=SimpleNamespace(**resets),
            cuda=SimpleNamespace(
                is_initialized=lambda: True,
                device_count=lambda: 1,
                memory_stats=self.stats,
                memory_stats_as_nested_dict=self.nested,
                memory_allocated=lambda index: self.bytes,
                max_memory_allocated=lambda index: self.peak_bytes,
                get_device_properties=lambda index: SimpleNamespace(total_memory=80 * GB),
            ),
        )

    def takes(self, num_bytes: int, *, tries: int = 0) -> None:
        self.bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.bytes)
        self.num_allocated += 1
        self.num_device += 1
        self.num_tries += tries

    def frees(self, num_bytes: int) -> None:
        self.bytes -= num_bytes

    def reset_peaks(self, index: int) -> None:
        self.peak_bytes = self.bytes

    def reset_sums(self, index: int) -> None:
        self.num_allocated = self.num_tries = 0

    def nested(self, index: int) -> dict[str, object]:
        sizes = {"all": {"current": self.bytes, "peak": self.peak_bytes}}
        return {"allocated_bytes": sizes, "reserved_bytes": sizes}

    def stats(self, index: int) -> dict[str, int]:
        sizes = {"current": self.bytes, "peak": self.peak_bytes}
        return {
            **{f"allocated_bytes.all.{name}": size for name, size in sizes.items()},
            **{f"reserved_bytes.all.{name}": size for name, size in sizes.items()},
            "allocation.all.allocated": self.num_allocated,
            "num_alloc_retries": self.num_tries,
            "num_ooms": 0,
            "num_device_alloc": self.num_device,
        }


@pytest.fixture
def allocator(monkeypatch):
    monkeypatch.setattr(allocator_counters, "_peaks", {})
    monkeypatch.setattr(allocator_counters, "_sums", {})
    allocator = Allocator()
    allocator_counters.keep(allocator.torch)
    return allocator


@pytest.mark.parametrize("name", PEAK_RESETS)
def test_peaks_are_those_of_the_whole_process_when_the_program_resets_them(allocator, name):
    memory = Memory()
    memory.torch_is_here(allocator.torch)
    memory.begin()
    for size in (3 * GB, 30 * GB, 2 * GB):
        allocator.takes(size)
        allocator.frees(size)
        getattr(allocator.torch._C, name)(0)
    allocator.takes(GB)
    assert allocator.stats(0)["allocated_bytes.all.peak"] == GB, "as the program sees it"
    (found,) = memory.facts()["allocators"]
    assert (found["peak_allocated_bytes"], found["peak_reserved_bytes"]) == (30 * GB, 30 * GB)
    assert found["allocated_bytes"] == GB
    peaks = observe.memory(allocator.torch)
    assert (peaks["peak_device_bytes"], peaks["num_devices"]) == (30 * GB, 1)


@pytest.mark.parametrize("name", SUM_RESETS)
def test_sums_grow_when_the_program_resets_them(allocator, name):
    memory, fake = Memory(), allocator.torch
    memory.torch_is_here(fake)
    allocator.takes(GB, tries=5)
    memory.begin()
    tensors, blocks = (
        allocator_counters.num_device_tensors(fake),
        allocator_counters.device_allocations(fake),
    )
    for _ in range(3):
        allocator.takes(GB, tries=2)
        getattr(fake._C, name)(0)
    allocator.takes(GB)
    assert allocator.stats(0)["num_alloc_retries"] == 0, "as the program sees it"
    (found,) = memory.facts()["allocators"]
    assert (found["num_alloc_retries"], found["num_device_allocations"]) == (6, 4)
    assert allocator_counters.num_device_tensors(fake) - tensors == 4
    assert allocator_counters.device_allocations(fake) - blocks == 4


def test_reset_is_passed_on_when_the_device_is_not_used(allocator):
    allocator.torch.cuda.is_initialized = lambda: False
    allocator.takes(GB)
    allocator.frees(GB)
    for name in (*PEAK_RESETS, *SUM_RESETS):
        getattr(allocator.torch._C, name)(0)
    assert allocator.peak_bytes == allocator.num_allocated == 0
    assert allocator_counters._peaks == allocator_counters._sums == {}


def test_every_reset_of_torch_ends_in_a_function_that_is_kept():
    """Those of page-locked memory are another allocator's, whose counters nobody reads here."""
    doors = {name for name in dir(torch._C) if "reset" in name.lower() and ("Stats" in name)}
    doors = {name for name in doors if not name.startswith(("_mtia", "_xpu"))}
    assert doors <= {*PEAK_RESETS, *SUM_RESETS}
    for module in (torch.cuda.memory, getattr(torch.accelerator, "memory", None)):
        for name in getattr(module, "__all__", ()):
            if name.startswith("reset_") and "host" not in name:
                text = inspect.getsource(getattr(module, name))
                known = any(door in text for door in (*PEAK_RESETS, *SUM_RESETS))
                assert known or "reset_peak_memory_stats" in text, name
