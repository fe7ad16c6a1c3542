"""Record the spans of the program's start: imports, CUDA's start, construction of models, weights,
compilation.

Each span is an event with a name, a begin and an end on one clock. The parent divides the time, including
nested spans. Only spans of the main thread are recorded, and compilations, for which the main thread waits.
Covered functions look unchanged to other code, and no compiled graph contains a cover.

An account of the whole run also has the imports inside imports, by package, the loading of libraries, and the
capture of CUDA graphs.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import os
import sys
import time
import types
import weakref
from threading import get_ident
from time import perf_counter

from ..core.covers import covers, on_compilations, uncover
from ..core.errors import guarded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.annotations import Event, Log
    from ..core.hooks import AfterImport

LEAST_S = 0.0002
"""Shorter spans are not recorded."""
MOST_SPANS, MOST_OF_AN_ACCOUNT = 3000, 10_000
IMPORTLIB_FILE = "<frozen importlib._bootstrap>"
NOT_COUNTED_FILE = __file__ + " (importlib._bootstrap)"


def _not_counted(method: Any) -> Any:
    """Let `warnings.warn(..., stacklevel=2)` in covered functions name the program's line, not the cover's.

    Python skips frames whose file name has both words of importlib's own. The compiler recognises importlib's
    files by the first letter of the name, so it still traces covered functions.
    """
    method.__code__ = _renamed(method.__code__)
    return method


def _renamed(code: types.CodeType) -> types.CodeType:
    inner = tuple(_renamed(each) if isinstance(each, types.CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=NOT_COUNTED_FILE, co_consts=inner)


class StartupSpans:
    """Record spans from the agent's first line on.

    `begun_s`: time at which that line ran. `whole`: whether the spans are for an account of the whole run.
    """

    def __init__(self, begun_s: float, event: Event, log: Log, *, whole: bool = False) -> None:
        self._begun_s, self._event, self._log = begun_s, event, log
        self._whole = whole
        self._thread = get_ident()
        self._open: list[str] = []
        self._room = MOST_OF_AN_ACCOUNT if whole else MOST_SPANS
        self._unknown: dict[str, str] = {}
        self._building: Any = None
        self._compiling_since: float | None = None
        self._construction: tuple[Any, str, Any] | None = None

    def install(self, hooks: AfterImport) -> None:
        """Watch imports from now on, and other phases once their modules are available; the agent has
        started."""
        self._guard("imports", self._cover_imports)
        if self._whole:
            self._guard("library_load", self._cover_extensions)
            hooks.call("ctypes", lambda module: self._guard("library_load", self._cover_libraries, module))
        hooks.call(
            "torch._dynamo.callback", lambda module: self._later("compile", self._watch_compilations, module)
        )
        load_file = functools.partial(self._cover, name="load_file", phase="weights")
        hooks.call("safetensors.torch", lambda module: self._later("weights", load_file, module))
        hooks.call(
            "transformers.modeling_utils",
            lambda module: self._later("weights", self._cover_pretrained, module),
        )
        self._guard("process", self._tell_process)
        self._record("agent", self._begun_s, perf_counter())

    def _tell_process(self) -> None:
        """Record when the kernel started this process, which it counts in ticks since boot."""
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME) - perf_counter()
        self._event(
            {"event": "starting_process", "started_s": ticks / os.sysconf("SC_CLK_TCK") - since_boot_s}
        )

    def torch_is_here(self, torch: Any) -> None:
        self._guard("cuda", self._cover_cuda, torch)
        self._guard("weights", self._cover_weights, torch)
        self._guard("model_build", self._cover_construction, torch.nn.Module)
        if self._whole:
            self._guard("graph_capture", self._cover_capture, torch)
        self._event({"event": "starting", "unknown": self._unknown})

    def root_met(self) -> None:
        """Note that an outermost module is about to be called for the first time."""
        self._event({"event": "root", "at_s": perf_counter()})

    def end(self) -> None:
        """Record no further spans."""
        self._room = 0

    # Spans

    def _begin(self, phase: str, name: str = "") -> bool:
        """Tell whether a span of `phase` begins: in the main thread, and not inside a span that includes the
        phase.

        `name`: the module's, for an import. An account of the whole run has imports of other packages inside
        imports.
        """
        if self._room <= 0 or get_ident() != self._thread:
            return False
        if name and self._whole:
            phase = _package_of(name)
            if self._open and self._open[-1] == phase:
                return False
        elif phase in self._open or (self._open and phase in ("imports", "compiler_import")):
            return False
        self._open.append(phase)
        return True

    def _end(self, phase: str, begin_s: float, name: str = "") -> None:
        end_s = perf_counter()
        opened = _package_of(name) if name and self._whole else phase
        for at in range(len(self._open) - 1, -1, -1):
            if self._open[at] == opened:
                del self._open[at]
                break
        self._record(phase, begin_s, end_s, name)

    def _record(self, phase: str, begin_s: float, end_s: float, name: str = "") -> None:
        if end_s - begin_s < LEAST_S or self._room <= 0:
            return
        self._room -= 1
        self._event({"event": "span", "phase": phase, "begin_s": begin_s, "end_s": end_s, "name": name})

    @_not_counted
    def _within(self, phase: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._begin(phase):
            return function(*args, **kwargs)
        begin_s = perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            self._end(phase, begin_s)

    def _guard(self, phase: str, function: Callable[..., object], *args: Any) -> None:
        """Guard a cover: if a function cannot be covered, its spans are unknown, and the program does not
        notice."""
        try:
            function(*args)
        except Exception as error:
            self._unknown[phase] = "%s: %s" % (type(error).__name__, error)
            self._log("starting: " + phase, error)

    def _later(self, phase: str, function: Callable[..., object], module: Any) -> None:
        """Guard a cover like `_guard`, in a module that may be imported after torch."""
        before = dict(self._unknown)
        self._guard(phase, function, module)
        if self._unknown != before:
            self._event({"event": "starting", "unknown": self._unknown})

    @_not_counted
    def _cover(self, owner: Any, name: str, phase: str) -> None:
        original = getattr(owner, name)
        is_compiling: Callable[[], bool] = sys.modules["torch"].compiler.is_compiling

        @covers(owner, name)
        def covered(*args: Any, **kwargs: Any) -> Any:
            # A model may be moved inside compiled code; for the compiler this is a constant.
            if is_compiling():
                return original(*args, **kwargs)
            return self._within(phase, original, *args, **kwargs)

    # Imports

    def _cover_imports(self) -> None:
        """Cover the importlib function that Python looks up by name for each module that is not loaded
        yet."""
        bootstrap: Any = importlib._bootstrap
        original = bootstrap._find_and_load

        def _find_and_load(name: str, import_: Any) -> Any:
            phase = _phase_of(name)
            if not self._begin(phase, name):
                return original(name, import_)
            begin_s = perf_counter()
            try:
                return original(name, import_)
            finally:
                self._end(phase, begin_s, name)

        # Python leaves importlib's own frames out of tracebacks, and warnings do not point to them.
        _find_and_load.__code__ = _find_and_load.__code__.replace(co_filename=IMPORTLIB_FILE)
        _find_and_load.__module__ = original.__module__
        _find_and_load.__qualname__ = original.__qualname__
        _find_and_load.__annotations__ = {}
        bootstrap._find_and_load = _find_and_load

    def _cover_extensions(self) -> None:
        """Cover importlib's function that has the linker load a module's library and what it depends on."""
        loader: Any = importlib.machinery.ExtensionFileLoader
        original = loader.create_module

        def create_module(self_: Any, spec: Any) -> Any:
            if not self._begin("library_load"):
                return original(self_, spec)
            begin_s = perf_counter()
            try:
                return original(self_, spec)
            finally:
                self._end("library_load", begin_s)

        create_module.__code__ = create_module.__code__.replace(co_filename=IMPORTLIB_FILE)
        loader.create_module = functools.wraps(original)(create_module)

    @_not_counted
    def _cover_libraries(self, ctypes: Any) -> None:
        """Cover the loading of libraries by ctypes, as by `torch.ops.load_library`."""
        original = ctypes.CDLL.__init__

        @covers(ctypes.CDLL, "__init__")
        def __init__(self_: Any, *args: Any, **kwargs: Any) -> None:
            self._within("library_load", original, self_, *args, **kwargs)

    # Torch

    @_not_counted
    def _cover_cuda(self, torch: Any) -> None:
        """Cover CUDA's start until CUDA has started; Python and C++ look up the covered functions by name."""
        owners = [(torch.cuda, "_lazy_init"), (torch._C, "_cuda_getDeviceCount")]
        covered: list[tuple[Any, str, Any]] = []

        def cover(owner: Any, name: str) -> None:
            original = getattr(owner, name)

            @covers(owner, name)
            def starts(*args: Any, **kwargs: Any) -> Any:
                try:
                    return self._within("cuda_start", original, *args, **kwargs)
                finally:
                    if torch.cuda.is_initialized() and "cuda_start" not in self._open:
                        for each in covered:
                            uncover(*each)

            covered.append((owner, name, starts))

        for owner, name in owners:
            if hasattr(owner, name):
                cover(owner, name)

    def _cover_weights(self, torch: Any) -> None:
        self._cover(torch.serialization, "load", "weights")
        torch.load = torch.serialization.load
        module = torch.nn.Module
        self._cover(module, "load_state_dict", "weights")
        for name in ("to", "cuda"):
            self._cover(module, name, "to_device")

    def _cover_capture(self, torch: Any) -> None:
        """Cover the block in which a CUDA graph is captured, which may be left in another call."""
        capture: Any = torch.cuda.graphs.graph
        enter, leave = capture.__enter__, capture.__exit__
        begun_s: dict[int, float] = {}  # by identity of the block; other threads may capture meanwhile

        @covers(capture, "__enter__")
        def __enter__(self_: Any) -> Any:
            if self._begin("graph_capture"):
                begun_s[id(self_)] = perf_counter()
            return enter(self_)

        @covers(capture, "__exit__")
        def __exit__(self_: Any, *args: Any) -> Any:
            try:
                return leave(self_, *args)
            finally:
                begin_s = begun_s.pop(id(self_), None)
                if begin_s is not None:
                    self._end("graph_capture", begin_s)

    @_not_counted
    def _cover_pretrained(self, module: Any) -> None:
        model = module.PreTrainedModel
        original = model.__dict__["from_pretrained"].__func__

        @functools.wraps(original)
        def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
            return self._within("weights", original, cls, *args, **kwargs)

        model.from_pretrained = classmethod(from_pretrained)

    def _cover_construction(self, module: Any) -> None:
        """Cover construction: an outermost constructor calls `Module.__init__` first; Python reports its
        return."""
        monitoring: Any = getattr(sys, "monitoring", None)
        if monitoring is None:
            self._unknown["model_build"] = "Python before 3.12 does not tell when a constructor returns"
            return
        tool = next((number for number in (4, 3) if monitoring.get_tool(number) is None), None)
        if tool is None:
            self._unknown["model_build"] = "other tools take all places of sys.monitoring"
            return
        monitoring.use_tool_id(tool, "dynotune")
        monitoring.register_callback(tool, monitoring.events.PY_RETURN, self._constructor_returned)
        self._tool, self._monitoring = tool, monitoring
        original = module.__init__

        @covers(module, "__init__")
        def __init__(self_: Any, *args: Any, **kwargs: Any) -> None:
            original(self_, *args, **kwargs)
            if get_ident() == self._thread:
                guarded(self._log, "starting: model_build", self._constructing, self_, sys._getframe(1))

        self._construction = module, "__init__", __init__

    def _constructing(self, made: Any, frame: Any) -> None:
        if self._building is not None and not self._building.holds(frame):
            # It raised, so it never returns.
            self._building = None
            self._open.remove("model_build")
        if self._building is None:
            self._constructor_begins(made, frame)

    def _constructor_begins(self, made: Any, frame: Any) -> None:
        codes = {getattr(vars(each).get("__init__"), "__code__", None) for each in type(made).__mro__}
        outermost = None
        for _ in range(10):
            if frame is None:
                break
            if frame.f_code in codes:
                outermost = frame
            frame = frame.f_back
        if outermost is not None and self._begin("model_build"):
            self._building = _Building(made, outermost)
            self._monitoring.set_local_events(self._tool, outermost.f_code, self._monitoring.events.PY_RETURN)

    def _constructor_returned(self, code: Any, offset: int, value: object) -> None:
        building = self._building
        if building is None or building.frame_id != id(sys._getframe(1)):
            return
        self._building = None
        self._monitoring.set_local_events(self._tool, code, 0)
        self._end("model_build", building.begin_s)

    # Compilation

    def _watch_compilations(self, callback: Any) -> None:
        on_compilations(callback, self._register)

    def _register(self, handler: Any) -> None:
        handler.register_end_callback(self._compilation_ends)
        handler.register_start_callback(self._compilation_begins)

    def _compilation_begins(self, *args: Any) -> None:
        if self._compiling_since is None:
            self._compiling_since = perf_counter()
            self._open.append("compile")
            if self._construction is not None:
                uncover(*self._construction)

    def _compilation_ends(self, *args: Any) -> None:
        begin_s, self._compiling_since = self._compiling_since, None
        if begin_s is None:
            return
        self._end("compile", begin_s)
        guarded(
            self._log, "starting: compiled", lambda: self._event({"event": "compiled", **_compiler_counts()})
        )


class _Building:
    """A constructor that is running. Only its frame's id is kept: a frame would keep objects alive after an
    error."""

    def __init__(self, made: Any, frame: Any) -> None:
        self._made = weakref.ref(made)
        self.frame_id = id(frame)
        self.begin_s = perf_counter()

    def holds(self, frame: Any) -> bool:
        """Tell whether the current frame is inside the constructor; the frame's id may be reused later."""
        while frame is not None and self._made() is not None:
            if id(frame) == self.frame_id:
                return True
            frame = frame.f_back
        return False


def _phase_of(module: str) -> str:
    """Return an import's phase. Parts of torch belong to torch's phase, except the compiler, imported on
    demand."""
    if module == "torch":
        return "torch_import"
    if module.startswith(("torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx", "triton")):
        return "compiler_import"
    return "imports"


def _package_of(module: str) -> str:
    """Return the package of a module, in a form that is no phase."""
    return "import " + module.partition(".")[0]


def _compiler_counts() -> dict[str, Any]:
    """Return the compiler's counts so far: hits in the compiler's caches, and number of processes that
    compile."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    config: Any = sys.modules.get("torch._inductor.config")
    counters = getattr(utils, "counters", {})
    inductor, autograd = dict(counters.get("inductor", {})), dict(counters.get("aot_autograd", {}))
    counted = {name: int(inductor[name]) for name in inductor if name.startswith("fxgraph_cache_")}
    counted.update({name: int(autograd[name]) for name in autograd if name.startswith("autograd_cache_")})
    return {"counts": counted, "compile_threads": getattr(config, "compile_threads", None)}
