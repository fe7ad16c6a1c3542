"""Find the optimizers, loaders and models of a program that runs.

They are found by following what the running functions and the program's modules hold, in pieces. To list all
objects of Python instead takes one call, which stops a program that has imported torch for 60 ms and more.
"""

from __future__ import annotations

import gc
import sys
import weakref
from threading import get_ident
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType

from ..core.interpreters import frames_of_threads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

MOST_OBJECTS = 20_000
"""Objects that are followed; the nearest come first."""
LONGEST = 10_000
"""Entries of a list or dict that are followed; longer ones hold data."""
_PLAIN = (
    str, bytes, bytearray, int, float, complex, bool, type(None), range,
    BuiltinFunctionType, CodeType, FrameType,
)  # fmt: skip
_LONG = (list, tuple, dict, set, frozenset)
_OF_OTHERS = {"torch", __name__.partition(".")[0], *getattr(sys, "stdlib_module_names", ())}
"""Packages whose modules hold nothing of the program's."""


class Living:
    """Objects of torch that the program has, at the time at which this is made.

    All are referred to weakly: a loader's workers end when the program drops its iterator.

    Args:
        pause: is called all the time, and lets the program run.

    `is_compiled`: whether the program has compiled code by torch.compile.
    """

    def __init__(self, torch: Any, pause: Callable[[], None]) -> None:
        data = torch.utils.data.dataloader
        fetchers = sys.modules["torch.utils.data._utils.fetch"]._BaseDatasetFetcher
        kinds = (torch.optim.Optimizer, data.DataLoader, torch.nn.Module, fetchers)
        found: list[list[weakref.ref[Any]]] = [[] for _ in kinds]
        inner: set[int] = set()
        leaves = torch.Tensor, data._BaseDataLoaderIter
        for thing in _held(_variables(leaves), leaves, pause):
            for kind, references in zip(kinds, found):
                if issubclass(type(thing), kind):
                    references.append(weakref.ref(thing))
            if issubclass(type(thing), torch.nn.Module):
                inner.update(map(id, vars(thing).get("_modules", {}).values()))
        self._optimizers, self._loaders, modules, self._fetchers = found
        self._roots = [reference for reference in modules if id(reference()) not in inner]
        self.is_compiled = _has_compiled()
        self._loader_class = data.DataLoader

    @property
    def optimizers(self) -> Iterator[Any]:
        return _alive(self._optimizers)

    @property
    def fetchers(self) -> Iterator[Any]:
        """What makes batches, in a worker of a loader or in the process that draws them."""
        return _alive(self._fetchers)

    @property
    def roots(self) -> Iterator[Any]:
        """Models that no other module contains."""
        return _alive(self._roots)

    def loader_of(self, iterator: Any) -> Any:
        """Return the loader of an iterator; if the program has dropped it, one with the fields that are left
        of it."""
        sampler = getattr(iterator, "_index_sampler", None)
        for loader in _alive(self._loaders):
            if getattr(loader, "_index_sampler", None) is sampler and loader.dataset is iterator._dataset:
                return loader
        return _restored(self._loader_class, iterator, sampler)


def _variables(leaves: tuple[type, ...]) -> list[Any]:
    """Return the variables of running functions, innermost first, and of the program's own modules."""
    found: list[Any] = []
    modules: dict[str, Any] = {"__main__": getattr(sys.modules.get("__main__"), "__dict__", {})}
    for thread, innermost in frames_of_threads().items():
        frame: FrameType | None = innermost if thread != get_ident() else None
        while frame is not None:
            found += [value for value in frame.f_locals.values() if not issubclass(type(value), leaves)]
            name = str(frame.f_globals.get("__name__"))
            if name.partition(".")[0] not in _OF_OTHERS:
                modules[name] = frame.f_globals
            frame = frame.f_back
    return [*found, *modules.values()]


def _held(roots: list[Any], leaves: tuple[type, ...], pause: Callable[[], None]) -> Iterator[Any]:
    """Yield what the roots hold, the nearest first. Empties `roots`: what was looked at is held no longer.

    `leaves`: classes of which nothing is held meanwhile; else the program's last reference would end here.
    """
    seen: set[int] = set()
    level = roots
    while level:
        following: list[Any] = []
        level.reverse()
        while level:
            thing = level.pop()
            pause()
            kind = type(thing)
            if id(thing) in seen or issubclass(kind, (type, ModuleType)):
                continue
            if len(seen) >= MOST_OBJECTS:
                return
            seen.add(id(thing))
            yield thing
            following += [
                one
                for one in _referents(thing)
                if type(one) not in _PLAIN and id(one) not in seen and not issubclass(type(one), leaves)
            ]
        level = following


def _referents(thing: Any) -> list[Any]:
    """Return what an object holds: of a module its parts and what the program has put into it, of a function
    what it encloses. Its hooks, and a function's variables, lead to nearly every object."""
    kind = type(thing)
    if kind is FunctionType:
        return gc.get_referents(*(thing.__closure__ or ()))
    if issubclass(kind, sys.modules["torch"].nn.Module):
        own = list(vars(thing).items())
        return [value for name, value in own if name == "_modules" or not name.startswith("_")]
    return [] if kind in _LONG and len(thing) > LONGEST else gc.get_referents(thing)


def _alive(references: list[weakref.ref[Any]]) -> Iterator[Any]:
    for reference in references:
        thing = reference()
        if thing is not None:
            yield thing


def _restored(loader_class: Any, iterator: Any, sampler: Any) -> Any:
    auto = bool(getattr(iterator, "_auto_collation", False))
    loader = object.__new__(loader_class)
    vars(loader).update(
        dataset=iterator._dataset,
        batch_sampler=sampler if auto else None,
        sampler=getattr(sampler, "sampler", sampler),
        batch_size=getattr(sampler, "batch_size", None),
        collate_fn=getattr(iterator, "_collate_fn", None),
        num_workers=int(getattr(iterator, "_num_workers", 0) or 0),
        prefetch_factor=getattr(iterator, "_prefetch_factor", None),
        pin_memory=bool(getattr(iterator, "_pin_memory", False)),
        pin_memory_device=getattr(iterator, "_pin_memory_device", "") or "",
        persistent_workers=bool(getattr(iterator, "_persistent_workers", False)),
        drop_last=bool(getattr(iterator, "_drop_last", False)),
        in_order=getattr(iterator, "_in_order", True),
        worker_init_fn=getattr(iterator, "_worker_init_fn", None),
        timeout=getattr(iterator, "_timeout", 0),
        _dataset_kind=getattr(iterator, "_dataset_kind", 0),
        _IterableDataset_len_called=None,
        _DataLoader__multiprocessing_context=None,
        _DataLoader__initialized=True,
    )
    return loader


def _has_compiled() -> bool:
    converted: Any = sys.modules.get("torch._dynamo.convert_frame")
    utils: Any = sys.modules.get("torch._dynamo.utils")
    counted = getattr(utils, "counters", {}).get("frames", {})
    return bool(getattr(converted, "FRAME_COUNTER", 0) or counted.get("total", 0))
