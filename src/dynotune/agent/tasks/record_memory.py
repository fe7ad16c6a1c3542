"""Record the caching allocator's actions within a few steady steps, and the owner of each allocated block.

The allocator itself records Python's stacks, which also show the module whose forward was running: while
steps are recorded, each module is called through a separate function whose code has the module's path as its
name. The method needs no timing or counting, works in every thread, and covers recomputed forwards. The
purpose of a block (a weight, a gradient) follows from the addresses of the tensors that the program has
between two steps.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import pickle
from time import perf_counter
from types import FunctionType

from ..core.allocator_counters import memory_stats
from ..core.device import synchronise
from ..core.errors import guarded
from ..core.living_objects import instances
from ..core.observe import number, owned
from ..core.tensors import class_name, tensors_in
from .task import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..core.program import Program

MODULE_FILE = "<dynotune module>"
"""File name of the functions through which modules are called; `trace.snapshot.stacks` looks for it."""
MOST_EVENTS = 400_000
MOST_MODULES = 20_000


class RecordMemory(Task):
    """Record the allocator's actions in `num_steps` steps."""

    event = "allocations"
    needs_torch = True
    _first = _samples_before = _most_samples = 0
    _last_s = 0.0
    _is_recording = _trains = False

    def __init__(self, program: Program, order: dict[str, Any]) -> None:
        super().__init__(program, order)
        self._tried = functools.partial(guarded, program.log, self.event)
        self._num_steps = max(1, int(order.get("num_steps") or 1))
        self._undo: list[Callable[[], None]] = []
        self._devices: dict[int, dict[str, Any]] = {}
        self._outputs: set[int] = set()
        self._step_s: list[float] = []
        self._facts: dict[str, Any] = {"autocast": False, "grad_enabled": None}
        self._notes: list[str] = []

    def begin(self, num_steps: int) -> int:
        torch = self.program.torch
        if reason := self._why_not():
            self.give_up(reason)
            return num_steps
        synchronise(torch)
        used = [index for index in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(index)]
        self._devices.update({index: {"device": index, "marks": [], "owners": []} for index in used})
        if self.program.num_compilations:
            self._notes.append("modules are unknown: calls of a program that compiles are left unchanged")
        else:
            self._cover_modules()
            self._cover_optimizers()
        torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=MOST_EVENTS)
        self._is_recording = True
        self._mark("begin")
        self._tell_owners()
        self._tell_kept()  # objects that only garbage collection would release are gone at the end
        self._first, self._samples_before = num_steps, self.program.steps.num_samples
        self._last_s = perf_counter()
        return num_steps + 1

    def step_ended(self, num_steps: int) -> int:
        synchronise(self.program.torch)
        self._step_s.append(perf_counter() - self._last_s)
        self._mark("step")
        num_samples = self.program.steps.num_samples
        self._most_samples = max(self._most_samples, num_samples - self._samples_before)
        self._samples_before = num_samples
        if len(self._step_s) >= self._num_steps:
            self._stop()
        self._last_s = perf_counter()
        return num_steps + 1

    def clean_up(self) -> None:
        if self._is_recording:
            self._is_recording = False
            self.program.torch.cuda.memory._record_memory_history(enabled=None)
        while self._undo:
            self._tried(self._undo.pop())

    # Obstacles

    def _why_not(self) -> str:
        torch = self.program.torch
        if not torch.cuda.is_initialized():
            return "the program uses no CUDA device"
        if not any(map(torch.cuda.memory_reserved, range(torch.cuda.device_count()))):
            return "the program has no memory of a device from torch"
        backend = torch.cuda.memory.get_allocator_backend()
        if backend != "native":
            return (
                "the program's allocator is %s, which keeps no history; only torch's native one does"
                % backend
            )
        if torch._C._cuda_isHistoryEnabled():
            return (
                "the program records the allocator's history itself: give what it writes to dynotune "
                "memory FILE"
            )
        return ""

    # Recording

    def _stop(self) -> None:
        torch = self.program.torch
        self._tell_owners()
        self._tell_kept()
        # Read the counters first; taking the snapshot allocates nothing on the device.
        for device in self._devices.values():
            stats = memory_stats(torch, device["device"])
            free, total = torch.cuda.mem_get_info(device["device"])
            device.update(num_events=_position(stats), reserved_bytes=stats["reserved_bytes.all.current"])
            device.update(free_bytes=int(free), total_bytes=int(total))
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
        self._is_recording = False
        self._tell_workspaces()
        rank = self.program.ranks().get("rank", number("RANK"))
        stem = "memory-%s-task%d" % ("pid%d" % os.getpid() if rank is None else "rank%d" % rank, self.id)
        optimizers = list(self.program.steps.optimizers)
        weights = [weight for root in self.program.roots.alive() for weight in root.parameters()]
        largest = max(weights, key=lambda weight: weight.numel(), default=None)
        limit = getattr(torch.cuda, "get_per_process_memory_fraction", None)
        # Further data that findings about memory need.
        self._facts["fused"] = (optimizers[0].param_groups or [{}])[0].get("fused") if optimizers else None
        self._facts["dtype"] = None if largest is None else str(largest.dtype).replace("torch.", "")
        self._facts["memory_fraction"] = None if limit is None else limit()
        if self.program.pretended is not None:
            self._notes += self.program.pretended.notes
            self._facts.update(self.program.pretended.facts)
        fields: dict[str, Any] = {
            "schema": "dynotune.memory_owners/1",
            "devices": list(self._devices.values()),
            "trains": self._trains,
            "num_samples": self._most_samples or None,
            "step_s": self._step_s,
            "facts": self._facts,
            "notes": self._notes,
        }
        files = {"file": stem + ".pickle", "owners": stem + ".json"}
        for name, raw in zip(
            files.values(), (pickle.dumps(snapshot, protocol=4), json.dumps(fields).encode())
        ):
            with open(os.path.join(self.program.folder, name), "wb") as file:
                file.write(raw)
        self.complete(**files, first_step=self._first, pid=os.getpid(), rank=rank)

    def _mark(self, name: str) -> None:
        for index, device in self._devices.items():
            device["marks"].append([name, _position(memory_stats(self.program.torch, index))])

    # Owners of blocks

    def _tell_owners(self) -> None:
        found = owned(self.program.torch, self.program.roots.alive(), list(self.program.steps.optimizers))
        self._trains = self._trains or bool(found["gradients"])
        for role, tensors in found.items():
            self._tell(role, tensors)

    def _tell_kept(self) -> None:
        kind = self.program.torch.Tensor
        # Skip classes that misreport what they are.
        self._tell("kept", instances(kind))

    def _tell(self, role: str, tensors: Iterable[Any]) -> None:
        at: dict[int, int] = {}
        with self.program.torch._C.DisableTorchFunction():
            for tensor in tensors:
                index, address = self._address(tensor)
                if index in self._devices and address:
                    if index not in at:
                        at[index] = _position(memory_stats(self.program.torch, index))
                    self._devices[index]["owners"].append([role, address, at[index]])

    def _address(self, tensor: Any) -> tuple[int, int]:
        pretended = self.program.pretended
        return _address(tensor) if pretended is None else pretended.address(tensor)

    def _tell_workspaces(self) -> None:
        """Identify cuBLAS's workspaces by releasing them; matrix products allocate them again at the same
        place."""
        torch = self.program.torch
        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        # A captured graph may use these workspaces.
        if clear is None or self.program.replays_graphs:
            self._notes.append("workspaces of cuBLAS cannot be distinguished from other memory here")
            return
        held = []
        for _ in range(2):
            segments = [
                (one["device"], block) for one in torch.cuda.memory_snapshot() for block in one["blocks"]
            ]
            held.append({(at, one["address"]) for at, one in segments if one["state"] == "active_allocated"})
            clear()
        gone = held[0] - held[1]
        for device in self._devices.values():
            found = [address for index, address in gone if index == device["device"]]
            device["owners"] += [["workspaces", address, device["num_events"]] for address in found]
        if gone:
            self._tried(self._multiply)

    def _multiply(self) -> None:
        """Multiply matrices in this thread and in the backward pass, whose thread has its own cuBLAS
        handle."""
        torch = self.program.torch
        weight = next(weight for root in self.program.roots.alive() for weight in root.parameters())
        with torch.enable_grad(), torch.inference_mode(False), torch.autocast("cuda", enabled=False):
            one = weight.detach().new_ones((32, 32), dtype=torch.float32).requires_grad_(self._trains)
            product = one @ one
            if self._trains:
                product.sum().backward()

    # Covers, during the recorded steps only

    def _cover_modules(self) -> None:
        kind = self.program.torch.nn.Module
        original = kind._call_impl
        runners: dict[int, Callable[..., Any]] = {}
        for root in self.program.roots.alive():
            prefix = class_name(root).rpartition(".")[2]
            for _, (name, module) in zip(range(MOST_MODULES), root.named_modules()):
                runners[id(module)] = _named(_run, prefix + ("." + name if name else ""))
            runners[id(root)] = functools.partial(self._run_root, runners[id(root)])

        def _call_impl(self: Any, *args: Any, **kwargs: Any) -> Any:
            runner = runners.get(id(self))
            return original(self, *args, **kwargs) if runner is None else runner(original, self, args, kwargs)

        kind._call_impl = cover = _named(_call_impl, "")

        def uncover() -> None:
            runners.clear()  # if another cover is on top of it, it stays and passes calls on
            if kind._call_impl is cover:
                kind._call_impl = original

        self._undo.append(uncover)

    def _run_root(self, runner: Any, call: Any, module: Any, args: Any, kwargs: Any) -> Any:
        self._tried(self._before_root, args, kwargs)
        output = runner(call, module, args, kwargs)
        self._tried(self._after_root, output)
        return output

    def _before_root(self, args: Any, kwargs: Any) -> None:
        torch, facts = self.program.torch, self._facts
        self._mark("forward")
        facts["grad_enabled"] = bool(facts["grad_enabled"] or torch.is_grad_enabled())
        facts["autocast"] = bool(facts["autocast"] or torch.is_autocast_enabled("cuda"))
        found = [t for t in tensors_in(torch, (args, kwargs)) if t.grad_fn is None and not t.requires_grad]
        # Outputs of a module are no inputs of the program, although the next module (a loss) gets them.
        self._tell("inputs", [t for t in found if self._address(t)[1] not in self._outputs])

    def _after_root(self, output: Any) -> None:
        self._mark("forward_end")
        self._outputs.update(self._address(tensor)[1] for tensor in tensors_in(self.program.torch, output))

    def _before_update(self, optimizer: Any) -> None:
        self._trains = True
        self._mark("update")
        self._tell("gradients", owned(self.program.torch, [], [optimizer])["gradients"])

    def _cover_optimizers(self) -> None:
        optimizers: Any = importlib.import_module("torch.optim.optimizer")
        # No hook after it: a step may have ended inside the loop over the hooks, which must not change during
        # the loop.
        register = optimizers.register_optimizer_step_pre_hook
        self._undo.append(register(lambda optimizer, *_: self._tried(self._before_update, optimizer)).remove)


def _run(call: Any, module: Any, args: Any, kwargs: Any) -> Any:
    return call(module, *args, **kwargs)


def _named(function: Any, name: str) -> Any:
    """Return `function` under another name, which recorded stacks show."""
    code = function.__code__.replace(co_filename=MODULE_FILE, co_name=name)
    if hasattr(code, "co_qualname"):
        code = code.replace(co_qualname=name)
    return FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)


def _position(stats: dict[str, Any]) -> int:
    """Return how many blocks were allocated and freed so far, counted as in the allocator's history."""
    return int(stats["active.all.allocated"]) + int(stats["active.all.freed"])


def _address(tensor: Any) -> tuple[int, int]:
    """Return device and address of the tensor's storage; (-1, 0) if the storage is not on a CUDA device."""
    try:
        local = getattr(tensor, "_local_tensor", tensor)
        if local.device.type != "cuda":
            return -1, 0
        return int(local.device.index), int(local.untyped_storage().data_ptr())
    except Exception:  # a tensor of its own class
        return -1, 0
