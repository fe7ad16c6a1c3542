"""Apply `loader.*`: arguments of torch's DataLoader.

At the start, one cover of `DataLoader.__init__` applies all loader settings to every loader that the program
builds, because the settings depend on each other: several need workers. Subclasses and frameworks that build
a loader from another loader's attributes call this constructor.

Within a run, loaders exist and cannot be changed, so a second loader stands in for each.
"""

from __future__ import annotations

import weakref

from ..core.worker_sharding import shards_by_worker
from .loader_router import NEEDS_WORKERS, router_of
from .site import Site, answer, cover_constructor, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from inspect import BoundArguments
    from typing import Any

    from ..core.annotations import Answer, Planned
    from ..core.program import Program

_NEED_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context")
_MAX_LOADERS = 64


class LoaderSite(Site):
    """Apply all `loader.*` settings: to the program's loaders, or to second loaders in their place."""

    is_switched = True
    acts_in_loaders = True
    draws_elsewhere = True

    def __init__(self, planned: list[Planned], program: Program, at_start: bool) -> None:
        super().__init__(planned, program, at_start)
        self._asked = {setting["site"]["argument"]: setting["value"] for setting in planned}
        self._built: list[tuple[weakref.ref[Any], dict[str, str]]] = []
        self._drawn: list[tuple[dict[str, Any], dict[str, str]]] = []
        self._router: Any = None if at_start else router_of(program)

    @property
    def num_queued(self) -> int:  # type: ignore[override]
        return int(self._router.num_queued(self._asked))

    @property
    def num_workers(self) -> int:  # type: ignore[override]
        return int(self._asked.get("num_workers", 0))

    def constructing(self) -> None:
        cover_constructor(self.torch.utils.data.DataLoader, self._rewrite, self._refused, self._remember)

    def cannot(self) -> str:
        """At the start, each loader is asked about when it is built."""
        return "" if self.at_start else str(self._router.cannot(self._asked))

    def has_already(self) -> bool:
        if self.at_start:
            return all(answer["ok"] for answer in self.read())
        return bool(self._router.has_already(self._asked))

    def on(self) -> None:
        if not self.at_start:
            self._router.turn_on(self._asked)

    def off(self) -> None:
        self._router.turn_off(self._asked)

    def check(self, is_on: bool) -> None:
        self._router.check()

    def _refused(self, reason: str) -> dict[str, str]:
        return dict.fromkeys(self._asked, reason) if reason else {}

    def _rewrite(self, bound: BoundArguments) -> dict[str, str]:
        """Change the arguments of one constructor call; map each argument that could not be changed to the
        reason."""
        arguments, parameters = bound.arguments, bound.signature.parameters
        refused: dict[str, str] = {}
        asked = dict(self._asked)
        given = arguments.get("num_workers", 0)
        reason = self._why_no_workers(arguments, given, asked.get("num_workers"))
        if reason:
            refused["num_workers"] = reason
            del asked["num_workers"]
        workers = asked.get("num_workers", given)
        for name in asked:
            if name not in parameters:
                refused[name] = "the DataLoader of this version of torch has no such argument"
            elif name in _NEED_WORKERS and not workers and asked[name] is not False:
                refused[name] = NEEDS_WORKERS % ("loader." + name)
        arguments.update((name, value) for name, value in asked.items() if name not in refused)
        if workers and not given and arguments.get("multiprocessing_context") is None:
            context = _context_of_new_workers()
            if context is not None:
                arguments["multiprocessing_context"] = context
        if given and not workers:
            # Without workers torch rejects these arguments, or fails an assertion at the first draw.
            for name in (*_NEED_WORKERS, "timeout"):
                arguments.pop(name, None)
        return refused

    def _why_no_workers(self, arguments: dict[str, Any], given: int, asked: int | None) -> str:
        dataset = arguments.get("dataset")
        if not asked or asked == given or not isinstance(dataset, self.torch.utils.data.IterableDataset):
            return ""
        if shards_by_worker(dataset, arguments.get("worker_init_fn")):
            return ""
        return (
            "%s is an IterableDataset that does not ask get_worker_info(): every worker would yield all of it"
            % type(dataset).__name__
        )

    def _remember(self, loader: Any, refused: dict[str, str]) -> None:
        self._built = [entry for entry in self._built if entry[0]() is not None][-_MAX_LOADERS:]
        self._built.append((weakref.ref(loader), refused))

    def on_loader(self, loader: Any) -> None:
        # accelerate draws from a wrapper around the constructed loader
        inner = getattr(loader, "base_dataloader", loader)
        refused = next((refused for ref, refused in self._built if ref() is inner), {})
        found = {name: _attribute(loader, name) for name in self._asked}
        if len(self._drawn) < _MAX_LOADERS:
            self._drawn.append((found, refused))

    def read_one(self, setting: Planned) -> Answer:
        name = setting["site"]["argument"]
        reasons: set[str] = set()
        if self.at_start:
            found = [text(attributes[name]) for attributes, _ in self._drawn]
            reasons = {refused[name] for _, refused in self._drawn if name in refused}
            witness = "%s of the loader%s drawn from" % (name, "s" if len(found) > 1 else "")
            nothing = "the program drew from no torch DataLoader"
        else:
            found = list(self._router.used(name))
            witness = "%s of the iterators that made the batches" % name
            nothing = "no batch was drawn with it"
        if not found:
            return answer(setting, None, witness, False, nothing)
        differs = any(value != text(setting["value"]) for value in found)
        if name == "pin_memory" and setting["value"] and not reasons and not self.torch.cuda.is_available():
            reasons = {"without a GPU nothing is pinned"}
        elif differs and not reasons:
            reasons = {"a loader's class does not pass its arguments on to torch's DataLoader"}
        detail = "; ".join(sorted(reasons))
        return answer(setting, ", ".join(sorted(set(found))), witness, not differs and not reasons, detail)


def _context_of_new_workers() -> str | None:
    """Return the start method for workers that the program did not request; None for Python's default.

    From Python 3.14 on the default is a fork server, whose workers run the program's main module again. A
    program written without workers may not be safe to run again, so its workers are forked, as before 3.14.
    """
    import multiprocessing

    default = multiprocessing.get_all_start_methods()[0]
    chosen = multiprocessing.get_start_method(allow_none=True) or default
    return "fork" if chosen == default == "forkserver" else None


def _attribute(loader: Any, name: str) -> Any:
    value = getattr(loader, name, None)
    if name == "multiprocessing_context" and value is not None and not isinstance(value, str):
        return value.get_start_method()
    return value
