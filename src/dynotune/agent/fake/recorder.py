"""Notes when storages on the device are born and die, in what phase of the program, and what they are for."""

from __future__ import annotations

import json
import os
import threading
import weakref
from importlib import import_module

from ..core import source_location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Event = Callable[[dict[str, Any]], None]

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
MOST_READS = 20
SCHEMA = "dynotune.allocations/1"


class Recorder:
    """The sequence of allocations and releases of one process.

    Attributes:
        events: `[number, bytes, phase, module, what]` of an allocation, `[number, phase]` of a release; phases, modules
            and `what` are indexes of `words`. `number` counts allocations.
        num_steps: of the program, so far as they were counted.
        roles: of allocations that turned out to be a parameter, a buffer, a gradient or an optimizer's state.
        reads: how often the program read a value that nobody knows, by place.
    """

    def __init__(self, torch: Any, folder: str, event: Event) -> None:
        self._torch, self._folder, self._event = torch, folder, event
        self._written = False
        self.events: list[list[int]] = []
        self.words: dict[str, int] = {}
        self.roles: dict[int, str] = {}
        self.reads: dict[str, int] = {}
        self.notes: dict[str, None] = {}
        self.live_bytes = self.peak_bytes = self.num_allocations = 0
        self.num_steps = 0
        self._live: dict[int, tuple[int, int, Any]] = {}  # by storage; the last keeps its end in sight
        self._modules: dict[int, list[Any]] = {}  # being called, by thread
        self._roots: Any = weakref.WeakSet()
        self._optimizers: Any = weakref.WeakSet()
        self._names: dict[int, str] = {}
        self._inside_optimizer = 0
        self._workspaces: set[int] = set()
        self._lock = threading.RLock()

    def refuse(self, reason: str) -> str:
        """Say why there is no answer, before an exception with this reason goes into the program."""
        self.write(reason)
        return reason

    def write(self, reason: str = "", *, at_exit: bool = False) -> None:
        """Write what was noted, or why it cannot be, once; the record names the file."""
        if self._written:
            return
        self._written = True
        self._give_roles()
        found = {
            "schema": SCHEMA,
            "torch": str(self._torch.__version__),
            "events": self.events,
            "words": list(self.words),
            "roles": {str(number): role for number, role in self.roles.items()},
            "reads": self.reads,
            "notes": list(self.notes),
            "num_steps": self.num_steps,
            "reason": reason,
        }
        name = "allocations-%d.json" % os.getpid()
        with open(os.path.join(self._folder, name), "w", encoding="utf-8") as file:
            json.dump(found, file)
        self._event({"event": "allocations", "name": name, "reason": reason, "at_exit": at_exit})

    # What happens

    def born(self, tensor: Any, what: str) -> None:
        """An operator gave `tensor`; its storage may be new."""
        storage = tensor.untyped_storage()
        key, num_bytes = storage._cdata, storage.nbytes()
        if num_bytes and key not in self._live:
            number = self.allocated(num_bytes, what)
            self._live[key] = number, num_bytes, weakref.ref(storage, lambda _: self._died(key))

    def holds(self, tensor: Any) -> bool:
        return tensor.untyped_storage()._cdata in self._live

    def allocated(self, num_bytes: int, what: str) -> int:
        with self._lock:
            number = self.num_allocations
            self.num_allocations += 1
            self.live_bytes += num_bytes
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)
            stack = self._modules.get(threading.get_ident())
            module = self._name(stack[-1]) if stack else ""
            self.events.append([number, num_bytes, self._word(self._phase()), self._word(module), self._word(what)])
            return number

    def released(self, number: int, num_bytes: int) -> None:
        with self._lock:
            self.live_bytes -= num_bytes
            self.events.append([number, self._word(self._phase())])

    def temporary(self, num_bytes: int, what: str) -> None:
        """A kernel takes memory of its own and gives it back."""
        if num_bytes > 0:
            self.released(self.allocated(num_bytes, what), num_bytes)

    def multiplies(self) -> None:
        """cuBLAS is asked: each thread that asks it has a handle, and so a workspace, of its own."""
        thread = threading.get_ident()
        if thread not in self._workspaces:
            self._workspaces.add(thread)
            self.allocated(0, "cublas workspace")

    def read(self) -> None:
        """The program reads a value that nobody knows."""
        place = source_location.place() or "?"
        if place in self.reads or len(self.reads) < MOST_READS:
            self.reads[place] = self.reads.get(place, 0) + 1

    def note(self, text: str) -> None:
        self.notes[text] = None

    def _died(self, key: int) -> None:
        found = self._live.pop(key, None)
        if found is not None:
            self.released(found[0], found[1])

    # Who uses it

    def watch(self) -> None:
        """Follow calls of modules and steps of optimizers."""
        module, optimizer = (import_module(name) for name in ("torch.nn.modules.module", "torch.optim.optimizer"))
        module.register_module_forward_pre_hook(self._enters)
        module.register_module_forward_hook(self._leaves, always_call=True)
        optimizer.register_optimizer_step_pre_hook(self._optimizer_begins)
        optimizer.register_optimizer_step_post_hook(self._optimizer_ends)

    def _enters(self, module: Any, args: Any) -> None:
        stack = self._modules.setdefault(threading.get_ident(), [])
        if not stack:
            self._roots.add(module)
        stack.append(module)
        if isinstance(module, self._torch.nn.RNNBase):
            self.note("recurrent layers run step by step here: what cuDNN keeps for backward is another amount")

    def _leaves(self, module: Any, args: Any, output: Any) -> None:
        stack = self._modules.get(threading.get_ident())
        if stack:
            stack.pop()

    def _optimizer_begins(self, optimizer: Any, *_: Any) -> None:
        self._inside_optimizer += 1
        self._optimizers.add(optimizer)

    def _optimizer_ends(self, optimizer: Any, *_: Any) -> None:
        self._inside_optimizer = max(0, self._inside_optimizer - 1)
        self._give_roles()

    def step_ended(self, num_steps: int) -> None:
        self._give_roles()
        self.num_steps = num_steps

    def _give_roles(self) -> None:
        """What lives now: gradients are there between backward and the next `zero_grad`."""
        for root in list(self._roots):
            for parameter in root.parameters():
                self._role(parameter, "parameter")
                self._role(parameter.grad, "gradient")
            for buffer in root.buffers():
                self._role(buffer, "buffer")
        for optimizer in list(self._optimizers):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._role(parameter, "parameter")
                    self._role(parameter.grad, "gradient")
            for state in list(optimizer.state.values()):
                for value in state.values() if isinstance(state, dict) else ():
                    self._role(value, "optimizer state")

    def _role(self, value: Any, role: str) -> None:
        if isinstance(value, self._torch.Tensor):
            found = self._live.get(value.untyped_storage()._cdata)
            if found is not None:
                self.roles.setdefault(found[0], role)

    def _name(self, module: Any) -> str:
        """The name by which a root has the module; its class until that is known."""
        if id(module) not in self._names:
            for root in list(self._roots):
                for name, inner in root.named_modules():
                    self._names[id(inner)] = "%s (%s)" % (name or "model", type(inner).__name__)
        return self._names.get(id(module), type(module).__name__)

    def _phase(self) -> str:
        if self._torch._C._current_graph_task_id() != -1:
            return BACKWARD
        return OPTIMIZER if self._inside_optimizer else FORWARD

    def _word(self, text: str) -> int:
        return self.words.setdefault(text, len(self.words))
