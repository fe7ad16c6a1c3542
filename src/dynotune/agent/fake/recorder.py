"""Record the history of a simulated GPU's allocator in torch's format. No address is used twice."""

from __future__ import annotations

import os
import sys
import threading
import weakref

from ..core import source_location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.program import Program

MOST_NOTES = 6
_GRANULE = 512
_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep


def on_device(value: Any) -> bool:
    """Tell whether the value is a tensor of the simulated device."""
    device = getattr(value, "fake_device", None)
    return device is not None and device.type == "cuda"


class Recorder:
    """Allocations and releases since the program's start.

    Args:
        workspace_bytes: workspace that cuBLAS takes for each handle.

    Attributes:
        live_bytes, peak_bytes: bytes that the program requested.
        notes: causes of uncertainty in the prediction. `facts`: facts that the prediction needs.
        memory_fraction: share of the device that the program allows itself.
    """

    def __init__(self, torch: Any, program: Program, workspace_bytes: int) -> None:
        self._torch, self._program, self._workspace_bytes = torch, program, workspace_bytes
        self.live_bytes = self.peak_bytes = 0
        self.notes: dict[str, None] = {}
        self.facts: dict[str, Any] = {"torch": str(torch.__version__), "convolves": False}
        self.memory_fraction = 1.0
        self.is_recording = False
        self._trace: list[dict[str, Any]] = []
        self._next, self._num_released = 1 << 40, 0
        self._live: dict[int, int] = {}  # bytes by address
        self._storages: dict[
            int, tuple[int, Any]
        ] = {}  # an address; the other field keeps the end of its lifetime
        self._workspaces: dict[int, int] = {}  # by thread
        self._stacks: dict[tuple[tuple[Any, int], ...], list[dict[str, Any]]] = {}
        self._lock = threading.RLock()

    def refuse(self, reason: str) -> str:
        """Record why there is no answer, before an exception with this reason reaches the program."""
        self._program.event({"event": "not_modelled", "reason": reason})
        return reason

    def read(self) -> None:
        """Note that the program reads an unknown value."""
        place = source_location.place() or "?"
        if len(self.notes) < MOST_NOTES:
            self.notes["a value that only the GPU would know was answered with a constant: %s" % place] = None

    # Allocations and releases

    def born(self, tensor: Any) -> None:
        """Note that an operator returned `tensor`; its storage may be new."""
        storage = tensor.untyped_storage()
        key, num_bytes = storage._cdata, storage.nbytes()
        if num_bytes and key not in self._storages:
            self._storages[key] = self._allocated(num_bytes), weakref.ref(storage, lambda _: self._died(key))

    def multiplies(self) -> None:
        """Give each thread that uses cuBLAS its own handle and workspace; the backward pass runs in its own
        thread."""
        handle = int(self._torch._C._current_graph_task_id() != -1)
        if handle not in self._workspaces:
            self._workspaces[handle] = self._allocated(self._workspace_bytes)

    def lends(self, sizes: tuple[int, ...]) -> None:
        """Note the buffers that an operator takes after its results, and returns when it ends."""
        for address in reversed([self._allocated(size) for size in sizes]):
            self._released(address)

    def empties_cache(self, *_: Any) -> None:
        with self._lock:
            self._trace.append({"action": "segment_free"})

    def _died(self, key: int) -> None:
        if (found := self._storages.pop(key, None)) is not None:
            self._released(found[0])

    def _allocated(self, num_bytes: int) -> int:
        with self._lock:
            address = self._next
            self._next += -(-num_bytes // _GRANULE) * _GRANULE
            self._live[address] = num_bytes
            self.live_bytes += num_bytes
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)
            frames = self._stack() if self.is_recording else []
            self._trace.append({"action": "alloc", "addr": address, "size": num_bytes, "frames": frames})
            return address

    def _released(self, address: int) -> None:
        with self._lock:
            num_bytes = self._live.pop(address)
            self.live_bytes -= num_bytes
            self._num_released += 1
            self._trace.append({"action": "free_completed", "addr": address, "size": num_bytes})

    def _stack(self) -> list[dict[str, Any]]:
        """Return Python's stack frames; in the backward pass, only the frames of functions that autograd
        calls."""
        found, frame = [], sys._getframe(2)
        # Between an operator's caller and this frame are the frames of torch's dispatcher.
        hidden = (_OWN, os.path.join(os.path.dirname(self._torch.__file__), "_"))
        while frame is not None and frame.f_code.co_name != "_engine_run_backward":
            if not frame.f_code.co_filename.startswith(hidden):
                found.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back  # type: ignore[assignment]
        key = tuple(found)
        if key not in self._stacks:
            names = (
                {"filename": code.co_filename, "line": line, "name": code.co_name} for code, line in found
            )
            self._stacks[key] = list(names)
        return self._stacks[key]

    # Answers of torch's allocator

    def address(self, tensor: Any) -> tuple[int, int]:
        """Return device and address of the tensor's storage; (-1, 0) if the tensor is sparse or not on the
        device."""
        try:
            found = self._storages.get(tensor.untyped_storage()._cdata)
        except NotImplementedError:
            return -1, 0
        return (-1, 0) if found is None else (0, found[0])

    def record(self, enabled: Any = "all", **_: Any) -> None:
        """Keep the stack of each allocation from now on."""
        self.is_recording = enabled is not None

    def stats(self, *_: Any, **__: Any) -> dict[str, int]:
        return {
            "active.all.allocated": self._num_released + len(self._live),
            "active.all.freed": self._num_released,
            "allocated_bytes.all.current": self.live_bytes,
            "reserved_bytes.all.current": self.live_bytes,
            "num_alloc_retries": 0,
        }

    def segments(self) -> list[dict[str, Any]]:
        """Return one allocator segment for each live block."""
        state = {"device": 0, "state": "active_allocated"}
        blocks = [
            {**state, "address": at, "size": size, "requested_size": size} for at, size in self._live.items()
        ]
        return [{**block, "total_size": block["size"], "blocks": [block]} for block in blocks]

    def snapshot(self, *_: Any) -> dict[str, Any]:
        return {"segments": self.segments(), "device_traces": [list(self._trace)]}

    def clear_workspaces(self) -> None:
        while self._workspaces:
            self._released(self._workspaces.popitem()[1])
