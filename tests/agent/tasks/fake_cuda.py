"""torch.cuda on a machine without one: tensors of the CPU stand for the device's, and `SnapshotMade` for its
allocator.

Each new storage is an allocation with the stack it was made from, and its end a release, seen at the next
operator. As on a device, the backward pass has no stack of Python.
"""

from __future__ import annotations

import copy

from dynotune.agent.tasks import record_memory

from ...trace.snapshot_made import SnapshotMade

TOTAL_BYTES = 1 << 30


class FakeCuda:
    """Puts itself in the place of torch.cuda; use `with fake.mode():` around what runs on the device."""

    def __init__(self, torch, monkeypatch, *, agent=record_memory, backend="native", records_itself=False):
        self.torch = torch
        self.made = SnapshotMade(is_expandable=True)
        self.num_allocs = self.num_frees = 0
        self.is_recording, self.workspace = records_itself, None
        self.emptied = 0
        self._alive = {}
        stand_ins = {
            "is_initialized": lambda: True,
            "is_current_stream_capturing": lambda: False,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "synchronize": lambda *_: None,
            "max_memory_allocated": lambda *_: 0,
            "max_memory_reserved": lambda *_: self.reserved(),
            "memory_reserved": lambda *_: self.reserved(),
            "memory_stats": lambda *_: self.stats(),
            "mem_get_info": lambda *_: (TOTAL_BYTES - self.reserved() - (100 << 20), TOTAL_BYTES),
            "memory_snapshot": lambda: self.made.data()["segments"],
            "get_per_process_memory_fraction": lambda *_: 1.0,
            "empty_cache": self._empty_cache,
            "memory.get_allocator_backend": lambda: backend,
            "memory._record_memory_history": self._record,
            "memory._snapshot": lambda: copy.deepcopy(self.made.data()),
        }
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(f"torch.cuda.{name}", stand_in)
        monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: self.is_recording, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", self._clear, raising=False)
        monkeypatch.setattr(agent, "_address", self._address)

    def hold_workspace(self, size):
        """As cuBLAS does at its first product."""
        self.workspace = self._alloc(size, [])

    def mode(self):
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils._pytree import tree_leaves

        fake = self

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                output = function(*args, **(kwargs or {}))
                fake.sweep()
                for tensor in tree_leaves(output):
                    if isinstance(tensor, fake.torch.Tensor):
                        fake.meet(tensor)
                return output

        return Mode()

    def meet(self, tensor):
        """A tensor of the device."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._alive or not storage.nbytes():
            return
        from torch.multiprocessing.reductions import StorageWeakRef

        in_backward = self.torch._C._current_graph_task_id() != -1
        frames = [] if in_backward else self._stack()
        self._alive[storage.data_ptr()] = StorageWeakRef(storage), self._alloc(storage.nbytes(), frames)

    def sweep(self):
        for pointer, (storage, address) in list(self._alive.items()):
            if storage.expired():
                del self._alive[pointer]
                self.made.free(address)
                self.num_frees += 1

    def reserved(self):
        return sum(block.size for segment in self.made.segments for block in segment.blocks)

    def stats(self):
        self.sweep()
        return {
            "active.all.allocated": self.num_allocs,
            "active.all.freed": self.num_frees,
            "reserved_bytes.all.current": self.reserved(),
        }

    def _alloc(self, size, frames):
        self.num_allocs += 1
        return self.made.alloc(size, frames)

    def _stack(self):
        profiler = self.torch._C._profiler
        raw = profiler.gather_traceback(python=True, script=False, cpp=False)
        own = (__file__, "/torch/utils/_python_dispatch.py")
        return [
            frame for frame in profiler.symbolize_tracebacks([raw])[0] if not frame["filename"].endswith(own)
        ]

    def _address(self, tensor):
        if tensor.layout is not self.torch.strided or type(tensor).__name__ in (
            "FakeTensor",
            "FunctionalTensor",
        ):
            return -1, 0  # another test's, as an export leaves them: it has no storage
        known = self._alive.get(tensor.untyped_storage().data_ptr())
        return (0, known[1]) if known else (-1, 0)

    def _record(self, enabled="all", **_):
        self.is_recording = enabled is not None
        self.made.events.clear()
        self.made.levels.clear()

    def _clear(self):
        if self.workspace is not None:
            self.made.free(self.workspace)
            self.num_frees += 1
            self.workspace = None

    def _empty_cache(self):
        self.emptied += 1
        self.made.empty_cache()
