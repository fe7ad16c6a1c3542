"""What the program is like, said once, when its window has ended: everything that is not timing.

Each part looks at one thing. A part that fails is left out, and the reader is told that and why.
"""

from __future__ import annotations

import resource

from ..core.annotations import Any, Callable, Key, Log
from . import live as state_torch
from .calls import Calls
from .compile import Compilations
from .lines import Lines
from .loaders import Loaders
from .memory import Garbage, Memory, graphs, num_nodes
from .models import Models
from .optimizers import Optimizers
from .threads import Threads


class State:
    """The parts, and when each of them looks."""

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
        """`profiler` tells of the program's own sessions of torch's profiler."""
        self._torch, self._calls.profiler = torch, profiler
        self.garbage.install()
        for part in (self.loaders, self.models, self.optimizers, self.compilations, self._calls, self._memory):
            self._try(type(part).__name__, part.torch_is_here, torch)

    def compilation_begins(self, *args: Any) -> None:
        """What a graph could see has to be as it will stay."""
        self._try("optimizers", self.optimizers.look_no_more)
        self._try("compilation", self.compilations.compilation_begins, *args)

    def window_begins(self, step: Callable[[], int]) -> None:
        """From here on nothing is looked at, but what is counted; `step` tells the number of the step."""
        self._try("models", self.models.look_no_more)
        self._try("loaders", self.loaders.look_no_more)
        self._try("optimizers", self.optimizers.look_no_more)
        self._num_nodes = self._try("graphs", num_nodes, self._torch)
        self._try("memory", self._memory.begin)
        self._try("calls", self._calls.begin)
        self.compilations.begin()
        self.garbage.install()  # where the program imports no torch, nothing did so before
        self.garbage.reset()
        # Last: what looks at the program here keeps a core busy by itself.
        self._try("threads", self._threads.begin)
        self._try("lines", self._lines.begin, step)

    def level(self) -> None:
        """Within the window, at a few of its steps."""
        self._try("memory", self._memory.level)

    def leave(self) -> None:
        """This process works for another one."""
        self.garbage.remove()
        self.models.look_no_more()
        self._try("loaders", self.loaders.look_no_more)

    def fields(self, is_counted: Callable[[Key], bool]) -> dict[str, Any]:
        """Of the event `state`; what is absent, failed: see `failed`."""
        found: dict[str, Any] = {"peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        # First what the rest would change.
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
