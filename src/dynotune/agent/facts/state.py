"""Record the state of the program once, when its timed window has ended: everything except timing.

Each part of the state is recorded separately. A part that fails is left out, and the record gives the reason.
"""

from __future__ import annotations

import importlib
import resource
import weakref

from ..core import source_location
from ..core.annotations import Any, Callable, Key, Log
from ..core.covers import covers, uncover
from ..core.tensors import class_name
from . import live as state_torch
from .compile import Compilations
from .lines import Lines
from .live import Calls
from .loaders import Loaders
from .memory import Garbage, Memory, graphs, num_nodes
from .models import Models
from .threads import Threads

_MOST_OPTIMIZERS = 16


class Optimizers:
    """Optimizers that have stepped so far. Their covers are removed before the window and before a compilation."""

    def __init__(self) -> None:
        self._met: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._scaled: set[int] = set()
        self._covers: list[tuple[Any, str, Any]] = []
        self.zero_grad_sets_none: bool | None = None
        self.zero_grad_place = ""

    @property
    def scales(self) -> bool:
        return bool(self._scaled)

    def torch_is_here(self, torch: Any) -> None:
        optimizers: Any = importlib.import_module("torch.optim.optimizer")
        scaler = torch.amp.grad_scaler.GradScaler
        self._cover_zero_grad(optimizers.Optimizer, torch.compiler.is_compiling)
        self._cover_scaler(scaler)

    def stepped(self, optimizer: Any) -> None:
        """Note that the optimizer has just stepped; called until the step is found, and later for new optimizers."""
        known = self._met.get(id(optimizer))
        if (known is None or known[0]() is not optimizer) and len(self._met) < _MOST_OPTIMIZERS:
            self._met[id(optimizer)] = weakref.ref(optimizer), source_location.place()

    def look_no_more(self) -> None:
        while self._covers:
            uncover(*self._covers.pop())

    def parameters(self) -> set[int]:
        alive = [optimizer for ref, _ in self._met.values() if (optimizer := ref()) is not None]
        return {id(each) for optimizer in alive for group in optimizer.param_groups for each in group["params"]}

    def facts(self) -> list[dict[str, Any]]:
        """Return the fields of `schema.observation.Optimizer`."""
        alive = [(number, optimizer, where) for number, (ref, where) in self._met.items() if (optimizer := ref())]
        return [self._describe(number, optimizer, where) for number, optimizer, where in alive]

    def _describe(self, number: int, optimizer: Any, where: str) -> dict[str, Any]:
        groups = optimizer.param_groups
        first = groups[0] if groups else {}
        parameters = [parameter for group in groups for parameter in group["params"]]
        return {
            "name": class_name(optimizer),
            **{name: _truth(first.get(name)) for name in ("foreach", "fused")},
            "groups_differ": len({(group.get("foreach"), group.get("fused")) for group in groups}) > 1,
            "num_tensors": len(parameters),
            "devices": sorted({str(parameter.device) for parameter in parameters}),
            "scaled": number in self._scaled,
            "place": {"function": where},
        }

    def _cover_zero_grad(self, kind: Any, is_compiling: Callable[[], bool]) -> None:
        original = kind.zero_grad

        @covers(kind, "zero_grad")
        def zero_grad(optimizer: Any, set_to_none: bool = True) -> Any:
            if self.zero_grad_sets_none is None and not is_compiling():
                self.zero_grad_sets_none, self.zero_grad_place = bool(set_to_none), source_location.line()
                uncover(kind, "zero_grad", zero_grad)
            return original(optimizer, set_to_none)

        self._covers.append((kind, "zero_grad", zero_grad))

    def _cover_scaler(self, kind: Any) -> None:
        original = kind.step

        @covers(kind, "step")
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(scaler, "_enabled", False):
                self._scaled.add(id(getattr(optimizer, "optimizer", optimizer)))
            return original(scaler, optimizer, *args, **kwargs)

        self._covers.append((kind, "step", step))


def _truth(value: Any) -> bool | None:
    return None if value is None else bool(value)


class State:
    """The parts of the program's state, and the times at which each part is read."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._torch: Any = None
        self.loaders = Loaders(log)
        self.models = Models(log)
        self.optimizers = Optimizers()
        self.garbage = Garbage()
        self.compilations = Compilations()
        self._calls = Calls(log)
        self._num_nodes: int | None = None
        self._memory = Memory()
        self._threads = Threads()
        self._lines = Lines()
        self._failed: dict[str, str] = {}

    def torch_is_here(self, torch: Any, profiler: Any) -> None:
        """Begin after torch is imported; `profiler` watches the program's own sessions of torch's profiler."""
        self._torch, self._calls.profiler = torch, profiler
        self.garbage.install()
        for part in (self.loaders, self.models, self.optimizers, self.compilations, self._calls, self._memory):
            self._try(type(part).__name__, part.torch_is_here, torch)

    def compilation_begins(self, *args: Any) -> None:
        """Stop changing everything that a compiled graph could depend on."""
        self._try("optimizers", self.optimizers.look_no_more)
        self._try("compilation", self.compilations.compilation_begins, *args)

    def window_begins(self, step: Callable[[], int]) -> None:
        """From now on, count events instead of recording them; `step()` returns the present step's number."""
        self._try("models", self.models.look_no_more)
        self._try("loaders", self.loaders.look_no_more)
        self._try("optimizers", self.optimizers.look_no_more)
        self._num_nodes = self._try("graphs", num_nodes, self._torch)
        self._try("memory", self._memory.begin)
        self._try("calls", self._calls.begin)
        self.compilations.begin()
        self.garbage.install()  # if the program never imports torch, nothing did so before
        self.garbage.reset()
        # Last, because the sampler itself keeps a core busy.
        self._try("threads", self._threads.begin)
        self._try("lines", self._lines.begin, step)

    def level(self) -> None:
        """Read the memory in use within the window, at a few of the window's steps."""
        self._try("memory", self._memory.level)

    def leave(self) -> None:
        """Stop recording, because this process works for another process."""
        self.garbage.remove()
        self.models.look_no_more()
        self._try("loaders", self.loaders.look_no_more)

    def fields(self, is_counted: Callable[[Key], bool]) -> dict[str, Any]:
        """Return the fields of the event `state`; a missing field failed and is listed in `failed`."""
        found: dict[str, Any] = {"peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        # First, read the facts that the others would change.
        lines = self._try("lines", self._lines.facts)
        threads = self._try("threads", self._threads.facts) or {}
        collections = self._try("collections", self.garbage.facts)
        memory = self._try("memory", self._memory.facts) or {}
        nodes = self._try("graphs", graphs, self._torch, self._num_nodes) or {}
        optimizers = self._try("optimizers", self.optimizers.facts)
        updated = self._try("optimizers", self.optimizers.parameters) or set()
        models = self._try("models", self.models.facts, bool(optimizers), updated)
        parts = {
            "threads": lines,
            "moments": self._try("lines", self._lines.moments),
            "collections": collections,
            **memory,
            **nodes,
            "optimizers": optimizers,
            "models": models,
            "loaders": self._try("loaders", self.loaders.facts, is_counted),
            "compilation": self._try("compilation", self.compilations.facts),
            "live": {**self._live(), **{"live." + name: value for name, value in threads.items()}},
        }
        found.update((name, part) for name, part in parts.items() if part is not None)
        found["failed"] = self._failed
        return found

    def _live(self) -> dict[str, Any]:
        live = self._try("live facts", state_torch.facts, self._torch) or {}
        live.update(self._try("calls", self._calls.facts) or {})
        live["autocast_dtypes"] = sorted(self.models.autocast_dtypes)
        live["grad_scaler"] = self.optimizers.scales
        live["zero_grad_sets_none"] = self.optimizers.zero_grad_sets_none
        live["zero_grad_place"] = self.optimizers.zero_grad_place
        live["unsynced_reads"] = state_torch.unknown(
            "copies to the host are not followed in the process, as that costs in every step; the trace may tell"
        )
        return {"live." + name: value for name, value in live.items()}

    def _try(self, part: str, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            self._failed[part] = "%s: %s" % (type(error).__name__, str(error)[:200])
            self._log(part, error)
            return None
