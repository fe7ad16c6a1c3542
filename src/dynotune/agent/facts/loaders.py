"""Describe each of the program's DataLoaders once: the loader's arguments when it begins, and one of its
batches."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping, Sequence

from ..core import source_location
from ..core.covers import covers, uncover
from ..core.tensors import class_name, described, length_of, name_of
from ..core.worker_sharding import shards_by_worker
from .padding import Padding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.annotations import Key, Log

_MOST_LOADERS = 32


class _Loader:
    """A loader; several loaders with the same arguments, created at the same place in the code, count as one
    loader."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.keys: set[Key] = set()
        self.num_begun = 0
        self.batch: dict[str, Any] | None = None
        self.padding = Padding()
        self.iterator: weakref.ref[Any] | None = None

    def num_drawn(self) -> int | None:
        iterator = self.iterator() if self.iterator is not None else None
        # Batches that an earlier iterator had ready are gone together with that iterator.
        return int(iterator._num_yielded) if iterator is not None and self.num_begun == 1 else None


class Loaders:
    """The loaders that gave batches so far, in the order in which the loaders began."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._torch: Any = None
        self._iterator: Any = None
        self._cover: Any = None
        self._met: dict[tuple[Any, ...], _Loader] = {}
        self._by_key: dict[Key, _Loader] = {}

    def torch_is_here(self, torch: Any) -> None:
        self._torch = torch
        self._iterator = torch.utils.data.dataloader._BaseDataLoaderIter

    def begun(self, key: Key, loader: Any) -> None:
        """Note that an iterator of the loader is created or restarted."""
        facts = _arguments(self._torch, loader, source_location.place())
        entry = self._met.get(identity := tuple(map(str, facts.values())))
        if entry is None:
            if len(self._met) >= _MOST_LOADERS:
                return
            entry = self._met[identity] = _Loader(facts)
        entry.num_begun += 1
        entry.keys.add(key)
        self._by_key[key] = entry
        if entry.batch is None and self._cover is None:
            self._cover_next()

    def facts(self, is_counted: Callable[[Key], bool]) -> list[dict[str, Any]]:
        """Return the fields of `schema.loader.Loader`; the loaders whose batches the steps use come first."""
        entries = sorted(self._met.values(), key=lambda entry: not any(map(is_counted, entry.keys)))
        context = (
            self._torch.multiprocessing.get_start_method(allow_none=True) if self._torch is not None else None
        )
        found = []
        for entry in entries:
            fields = {**entry.facts, **(entry.batch or {}), "num_begun": entry.num_begun}
            fields["num_drawn"], fields["padding"] = entry.num_drawn(), entry.padding.facts()
            if fields["num_workers"] and not fields["context"]:
                fields["context"] = context
            found.append(fields)
        return found

    def _cover_next(self) -> None:
        """Cover further draws until each loader has given a batch, and enough batches to show the loader's
        padding."""
        iterator, original = self._iterator, self._iterator.__next__

        @covers(iterator, "__next__")
        def __next__(self_: Any) -> Any:
            batch = original(self_)
            try:
                self._drawn(self_, batch)
            except Exception as error:
                self._log("batch", error)
                self.look_no_more()
            return batch

        self._cover = __next__

    def _drawn(self, iterator: Any, batch: Any) -> None:
        named = getattr(iterator, "_dynotune", None)
        entry = self._by_key.get(named[0]) if named else None
        if entry is None or (entry.batch is not None and entry.padding.done):
            return
        if entry.batch is None:
            entry.iterator = weakref.ref(iterator)
            # Whether torch's `pin_memory` has an effect on this object.
            pinnable = isinstance(batch, (self._torch.Tensor, Mapping, Sequence)) or hasattr(
                batch, "pin_memory"
            )
            entry.batch = {"batch": described(self._torch, batch), "batch_is_pinnable": pinnable}
        entry.padding.look(self._torch, batch)
        if all(other.batch is not None and other.padding.done for other in self._met.values()):
            self.look_no_more()

    def look_no_more(self) -> None:
        if self._cover is not None and self._iterator.__next__ is self._cover:
            uncover(self._iterator, "__next__", self._cover)
            self._cover = None


def _arguments(torch: Any, loader: Any, where: str) -> dict[str, Any]:
    get = functools.partial(getattr, loader)
    data = torch.utils.data
    dataset = loader.dataset
    is_iterable = isinstance(dataset, data.IterableDataset)
    batch_sampler = get("batch_sampler", None)
    usual = batch_sampler is None or type(batch_sampler) is data.BatchSampler
    context = get("multiprocessing_context", None)
    return {
        "name": class_name(loader),
        "dataset": class_name(dataset),
        "sampler": class_name(get("sampler", None) if usual else batch_sampler),
        "collate": name_of(get("collate_fn", None)),
        "num_items": length_of(dataset),
        # An iterable loader would note that its length was asked for, and warn about it later.
        "num_batches": None if is_iterable else length_of(loader),
        "batch_size": _whole(get("batch_size", None) or getattr(batch_sampler, "batch_size", None)),
        "num_workers": _whole(get("num_workers", 0)) or 0,
        "pin_memory": bool(get("pin_memory", False)),
        "pin_memory_device": str(get("pin_memory_device", "") or ""),
        "persistent_workers": bool(get("persistent_workers", False)),
        "prefetch_factor": _whole(get("prefetch_factor", None)),
        "in_order": get("in_order", None),
        "drop_last": get("drop_last", None),
        "context": context.get_start_method() if hasattr(context, "get_start_method") else None,
        "is_iterable": is_iterable,
        "splits_by_worker": shards_by_worker(dataset, get("worker_init_fn", None)) if is_iterable else None,
        "place": {"function": where},
    }


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int) else None
