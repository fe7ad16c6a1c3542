"""Record the state of the program once, when its timed window has ended: everything except timing.

Each part of the state is recorded separately. A part that fails is left out, and the record gives the reason.
"""

from __future__ import annotations

import resource

from . import live
from .compile import Compilations
from .costly_calls import Calls
from .garbage import Garbage
from .graph import graphs, num_nodes
from .lines import Lines
from .loaders import Loaders
from .memory import Memory
from .models import Models
from .optimizers import Optimizers
from .threads import Threads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.annotations import Key, Log


class State:
    """The parts of the program's state, and the times at which each part is read.

    `lists_objects`: whether facts may list all objects of Python, which stops a program for 60 ms and more.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._torch: Any = None
        self.loaders = Loaders(log)
        self.models = Models(log)
        self.optimizers = Optimizers()
        self.garbage = Garbage()
        self.compilations = Compilations()
        self._calls = Calls(log)
        self.lists_objects = True
        self._num_nodes: int | None = None
        self._memory = Memory()
        self._threads = Threads()
        self._lines = Lines()
        self._failed: dict[str, str] = {}

    def torch_is_here(self, torch: Any, profiler: Any) -> None:
        """Begin after torch is imported; `profiler` watches the program's own sessions of torch's
        profiler."""
        self._torch, self._calls.profiler = torch, profiler
        self.garbage.install()
        for part in (
            self.loaders,
            self.models,
            self.optimizers,
            self.compilations,
            self._calls,
            self._memory,
        ):
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
        self._num_nodes = self._try("graphs", num_nodes, self._torch) if self.lists_objects else None
        self._try("memory", self._memory.begin)
        self._try("calls", self._calls.begin)
        self.compilations.begin()
        self.garbage.install()  # if the program never imports torch, nothing did so before
        self.garbage.reset()
        # Start the sampler last, because it keeps a core busy.
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
        self._try("compilation", self.compilations.look_no_more)
        self._try("lines", self._lines.end)

    def fields(self, is_counted: Callable[[Key], bool]) -> dict[str, Any]:
        """Return the fields of the event `state`; a missing field failed and is listed in `failed`."""
        found: dict[str, Any] = {"peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        # First, read the facts that the others would change.
        lines = self._try("lines", self._lines.facts)
        threads = self._try("threads", self._threads.facts) or {}
        collections = self._try("collections", self.garbage.facts)
        memory = self._try("memory", self._memory.facts) or {}
        nodes = self._try("graphs", graphs, self._torch, self._num_nodes) if self.lists_objects else {}
        optimizers = self._try("optimizers", self.optimizers.facts)
        updated = self._try("optimizers", self.optimizers.parameters) or set()
        models = self._try("models", self.models.facts, bool(optimizers), updated)
        parts = {
            "threads": lines,
            "moments": self._try("lines", self._lines.moments),
            "collections": collections,
            **memory,
            **(nodes or {}),
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
        found = self._try("live facts", live.facts, self._torch) or {}
        found.update(self._try("calls", self._calls.facts) or {})
        found["autocast_dtypes"] = sorted(self.models.autocast_dtypes)
        found["grad_scaler"] = self.optimizers.scales
        found["zero_grad_sets_none"] = self.optimizers.zero_grad_sets_none
        found["zero_grad_place"] = self.optimizers.zero_grad_place
        found["unsynced_reads"] = live.unknown(
            "copies to the host are not followed in the process, as that costs in every step; the trace "
            "may tell"
        )
        return {"live." + name: value for name, value in found.items()}

    def _try(self, part: str, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            self._failed[part] = "%s: %s" % (type(error).__name__, str(error)[:200])
            self._log(part, error)
            return None
