"""Report torch.compile's graphs, graph breaks and recompilations, with reasons, from torch's own counters."""

from __future__ import annotations

import logging
import re
import sys

from ..core.covers import covers
from ..core.source_location import function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_REASONS = 20
_MOST_LETTERS = 300
_NUMBER = re.compile(r"\d+")
_LIMIT = re.compile(r"(recompile|cache.?size).?limit", re.IGNORECASE)
_NO_GRAPHS = "skipping cudagraph"


class Compilations:
    """Listen to compilations from the program's start; `begin` marks the start of the timed window."""

    def __init__(self) -> None:
        self._limits: dict[str, None] = {}
        self._skips: dict[str, int] = {}
        self._modes: dict[str, None] = {}
        self._num_again = 0
        self._knows_ids = True
        self._num_begun = self._num_before = 0
        self._num_cudagraphs_before: int | None = None
        self._listeners = {
            "torch._dynamo": _Listener(self._dynamo_says),
            "torch._inductor": _Listener(self._inductor_says),
        }

    def torch_is_here(self, torch: Any) -> None:
        for name, listener in self._listeners.items():
            logging.getLogger(name).addHandler(listener)
        original = torch.compile

        @covers(torch, "compile")
        def compile(*args: Any, **kwargs: Any) -> Any:
            self._modes[_mode(kwargs)] = None
            return original(*args, **kwargs)

    def look_no_more(self) -> None:
        for name, listener in self._listeners.items():
            logging.getLogger(name).removeHandler(listener)

    def compilation_begins(self, *args: Any) -> None:
        """Note a compilation, from torch's callback; newer versions of torch pass an id, `FUNCTION/GRAPH`."""
        self._num_begun += 1
        what: Any = args[0] if args else None
        if not hasattr(what, "compile_id"):
            self._knows_ids = False
        elif str(getattr(what.callback_trigger, "name", "")) == "DYNAMO":
            self._num_again += not str(what.compile_id).endswith("/0")

    def begin(self) -> None:
        self._num_before = self._num_begun
        self._num_cudagraphs_before = _num_cudagraphs()

    def facts(self) -> dict[str, Any] | None:
        """Return the fields of `schema.compilation.Compilation`; None if nothing was compiled."""
        utils: Any = sys.modules.get("torch._dynamo.utils")
        if utils is None or not (self._num_begun or self._modes):
            return None
        counters = utils.counters
        broken = dict(counters.get("graph_break", {}))
        return {
            "num_graphs": int(counters.get("stats", {}).get("unique_graphs", 0)),
            "num_graph_breaks": sum(broken.values()),
            "num_recompilations": self._num_recompilations(),
            "num_compilations_in_window": self._num_begun - self._num_before,
            "breaks": _commonest(_places_of_breaks(utils) or broken),
            "recompilations": _commonest(_recompilations(utils)),
            "limit_reached": list(self._limits),
            "cudagraph_skips": _commonest(self._skips) + self._untold_skips(counters),
            "modes": list(self._modes),
            "skipped": _commonest(_given_up(counters)),
            "num_cudagraphs_in_window": self._num_cudagraphs(),
        }

    def _num_cudagraphs(self) -> int | None:
        before, after = self._num_cudagraphs_before, _num_cudagraphs()
        # If graphs run in another thread, or were dropped since, their numbers are meaningless.
        return after - before if before is not None and after is not None and after >= before else None

    def _num_recompilations(self) -> int:
        if self._knows_ids:
            return self._num_again
        counts = getattr(sys.modules.get("torch._dynamo.convert_frame"), "FRAME_COMPILE_COUNTER", {})
        # The attempt with which a function reaches the limit is counted too, and compiles nothing.
        return int(sum(num - 1 for num in counts.values())) - len(self._limits)

    def _untold_skips(self, counters: Any) -> list[str]:
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        num = int(counters.get("inductor", {}).get("cudagraph_skips", 0)) - sum(self._skips.values())
        # Without CUDA they are skipped silently, as they must be.
        return ["%dx no reason told" % num] if num > 0 and cuda is not None and cuda.is_initialized() else []

    def _dynamo_says(self, record: Any) -> None:
        if str(record.msg).startswith("torch._dynamo hit config."):
            self._limits[
                str(record.args[2]) if len(record.args) > 2 else _first_line(record.getMessage())
            ] = None

    def _inductor_says(self, record: Any) -> None:
        if str(record.msg).startswith(_NO_GRAPHS):
            reason = _first_line(record.getMessage()).partition(" due to ")[2]
            self._skips[reason] = self._skips.get(reason, 0) + 1


class _Listener(logging.Handler):
    """Pass torch's log records to a function, and print nothing."""

    def __init__(self, heard: Any) -> None:
        super().__init__(logging.WARNING)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._heard(record)
        except Exception:  # another version's wording; the counters still count
            pass


def _mode(kwargs: dict[str, Any]) -> str:
    backend = kwargs.get("backend") or "inductor"
    options = kwargs.get("options")
    graphs = isinstance(options, dict) and options.get("triton.cudagraphs")
    mode = kwargs.get("mode") or ("reduce-overhead" if graphs else "default")
    if backend != "inductor":
        return "backend %s" % (
            backend if isinstance(backend, str) else getattr(backend, "__name__", "of its own")
        )
    return mode if isinstance(mode, str) else "default"


def _given_up(counters: Any) -> dict[str, int]:
    """Count the reasons why torch gave up whole functions; graph breaks and limits are counted separately."""
    reasons = dict(counters.get("unimplemented", {}))
    return {reason: num for reason, num in reasons.items() if num > 0 and not _LIMIT.search(reason)}


def _num_cudagraphs() -> int | None:
    """Count the CUDA graphs that torch.compile recorded on this thread; None if torch does not report it."""
    trees: Any = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None:
        return 0
    try:
        managers = [each.tree_manager for each in trees.local.tree_manager_containers.values()]
        # `count(3)` gives 3 next, and cannot be read without advancing.
        return sum(
            int(_NUMBER.findall(repr(manager.graph_counter))[0])
            for manager in managers
            if manager is not None
        )
    except (AttributeError, IndexError):
        return None


def _places_of_breaks(utils: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for reason in list(getattr(utils, "graph_break_reasons", ())):
        if not getattr(reason, "graph_break", True):
            continue
        stack = list(getattr(reason, "user_stack", ()) or ())
        where = "%s:%s: " % (stack[-1].filename, stack[-1].lineno) if stack else ""
        text = where + _first_line(str(reason.reason))
        found[text] = found.get(text, 0) + 1
    return found


def _recompilations(utils: Any) -> dict[str, int]:
    """Count, for each reason, the graphs that did not fit a later call; numbers in a reason are ignored."""
    found: dict[str, int] = {}
    words: dict[str, str] = {}
    for code, reasons in list(getattr(utils, "guard_failures", {}).items()):
        told = set()
        # A line `0/3: tensor 'x' size mismatch …` concerns graph 0/3, followed by the source line of a guard.
        # Each recompilation lists all graphs so far, the latest first.
        lines = [_first_line(str(reason)).partition("  #")[0] for reason in reasons]
        if not any("/" in line.partition(": ")[0] for line in lines):
            lines = _one_each(lines)
        for line in lines:
            graph, _, text = line.partition(": ")
            if "/" not in graph or graph in told:
                continue
            told.add(graph)
            text = "%s: %s" % (function(code), text.strip())
            kind = words.setdefault(_NUMBER.sub("#", text), text)
            found[kind] = found.get(kind, 0) + 1
    return found


def _one_each(lines: list[str]) -> list[str]:
    """Return the first reason of each recompilation, with a graph number, because torch 2.4 gives no graph
    numbers.

    The log of the first recompilation lists one reason, the log of the second two reasons, and so on.
    """
    first: list[str] = []
    at = 0
    while at < len(lines):
        first.append("/%d: %s" % (len(first), lines[at]))
        at += len(first)
    return first


def _commonest(counts: dict[str, int]) -> list[str]:
    ordered = sorted(counts.items(), key=lambda item: -item[1])[:_MOST_REASONS]
    return ["%dx %s" % (num, _first_line(text)[:_MOST_LETTERS]) for text, num in ordered]


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
