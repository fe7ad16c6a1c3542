"""Find the optimizers, loaders and models of a program that runs."""

from __future__ import annotations

import sys
import weakref

from ..core.living_objects import instances, note_frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class Living:
    """Objects of torch that the program has, at the time at which this is made.

    All are referred to weakly: a loader's workers end when the program drops its iterator.

    `is_compiled`: whether the program has compiled code by torch.compile.
    """

    def __init__(self, torch: Any) -> None:
        data = torch.utils.data.dataloader
        fetchers = sys.modules["torch.utils.data._utils.fetch"]._BaseDatasetFetcher
        kinds = (torch.optim.Optimizer, data.DataLoader, torch.nn.Module, fetchers)
        found: tuple[list[Any], ...] = tuple([] for _ in kinds)
        note_frozen()
        for thing in instances(*kinds):
            for kind, things in zip(kinds, found):
                if issubclass(type(thing), kind):
                    things.append(thing)
        modules = found[2]
        inner = {id(part) for module in modules for part in vars(module).get("_modules", {}).values()}
        self._optimizers, self._loaders, self._fetchers = map(_references, (*found[:2], found[3]))
        self._roots = _references([module for module in modules if id(module) not in inner])
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


def _references(things: list[Any]) -> list[weakref.ref[Any]]:
    return [weakref.ref(thing) for thing in things]


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
