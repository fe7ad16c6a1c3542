"""`loader.*`: arguments of torch's DataLoader, for every loader the program builds.

One cover of `DataLoader.__init__` serves all of them, because they depend on each other: several mean
something only with workers. Subclasses, and frameworks that build a loader anew from the attributes of an old
one, end there.
"""

from __future__ import annotations

import functools
import inspect
import weakref

from ..core.worker_sharding import shards_by_worker
from .site import Site, answer, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..core.hooks import Event
    from .site import Answer, Planned

_NEED_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context")
_MAX_LOADERS = 64


class LoaderSite(Site):
    """All `loader.*` settings."""

    def __init__(self, planned: list[Planned], event: Event) -> None:
        super().__init__(planned, event)
        self._asked = {setting["site"]["argument"]: setting["value"] for setting in planned}
        self._built: list[tuple[weakref.ref[Any], dict[str, str]]] = []
        self._drawn: list[tuple[dict[str, Any], dict[str, str]]] = []
        self._torch: Any = None

    def after_torch(self, torch: Any) -> None:
        self._torch = torch
        loader_class = torch.utils.data.DataLoader
        original = loader_class.__init__
        signature = inspect.signature(original)

        @functools.wraps(original)
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            try:
                bound = signature.bind(loader, *args, **kwargs)
                refused = self._rewrite(bound.arguments, signature.parameters)
                args, kwargs = bound.args[1:], bound.kwargs
            except TypeError:
                refused = {}  # not a call that torch accepts: its own error is the right one
            except Exception as error:
                refused = dict.fromkeys(self._asked, "%s: %s" % (type(error).__name__, error))
            original(loader, *args, **kwargs)
            self._remember(loader, refused)

        loader_class.__init__ = __init__

    def _rewrite(self, arguments: dict[str, Any], parameters: Mapping[str, inspect.Parameter]) -> dict[str, str]:
        """Change the arguments of one construction; argument to reason for those that could not be."""
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
                refused[name] = "it needs num_workers above 0, and this loader has none"
        arguments.update((name, value) for name, value in asked.items() if name not in refused)
        if workers and not given and arguments.get("multiprocessing_context") is None:
            context = _context_of_new_workers()
            if context is not None:
                arguments["multiprocessing_context"] = context
        if given and not workers:
            # Without workers torch rejects these, or asserts at the first draw.
            for name in (*_NEED_WORKERS, "timeout"):
                arguments.pop(name, None)
        return refused

    def _why_no_workers(self, arguments: dict[str, Any], given: int, asked: int | None) -> str:
        dataset = arguments.get("dataset")
        if not asked or asked == given or not isinstance(dataset, self._torch.utils.data.IterableDataset):
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
        # accelerate draws from a wrapper around the loader that was built.
        inner = getattr(loader, "base_dataloader", loader)
        refused = next((refused for ref, refused in self._built if ref() is inner), {})
        found = {name: _attribute(loader, name) for name in self._asked}
        if len(self._drawn) < _MAX_LOADERS:
            self._drawn.append((found, refused))

    def readback(self) -> list[Answer]:
        return [self._read(setting, setting["site"]["argument"]) for setting in self.planned]

    def _read(self, setting: Planned, name: str) -> Answer:
        if not self._drawn:
            detail = "the program drew from no torch DataLoader"
            return answer(setting, None, "the loaders drawn from", False, detail)
        found = [text(attributes[name]) for attributes, _ in self._drawn]
        reasons = [reasons[name] for _, reasons in self._drawn if name in reasons]
        differ = [value for value in found if value != text(setting["value"])]
        if differ and not reasons:
            reasons = ["a loader's class does not pass its arguments on to torch's DataLoader"]
        if name == "pin_memory" and setting["value"] and not reasons and not self._torch.cuda.is_available():
            reasons = ["without a GPU nothing is pinned"]
        witness = "%s of the loader%s drawn from" % (name, "s" if len(found) > 1 else "")
        return answer(
            setting, ", ".join(sorted(set(found))), witness, not differ and not reasons, "; ".join(sorted(set(reasons)))
        )


def _context_of_new_workers() -> str | None:
    """Return how workers start that the program did not ask for; None for Python's own choice.

    From Python 3.14 on that choice is a server, whose workers run the program's main module once more. A program that
    was written without workers need not allow that: its workers are forked, as before 3.14.
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
