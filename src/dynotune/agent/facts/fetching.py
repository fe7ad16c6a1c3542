"""Measure the cost of making batches.

Batches are made in a loader's workers or, without workers, in the process that draws them. Functions are
covered only in observed runs. Each process writes an event `fetching` twice a second, with counts since its
first batch, and a worker writes a last event when it ends.
"""

from __future__ import annotations

import functools
import importlib
import os
import threading
import weakref
from collections import ChainMap
from threading import get_ident
from time import perf_counter, process_time, thread_time

from ..core.covers import covers, replace
from ..core.errors import guarded
from .batch_costs import FIELDS, Counts
from .data_set import data_set_facts, num_distinct
from .decoding import Decoding
from .kernel_counters import bytes_read, faults, private_bytes
from .lines import Lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.util import Finalize
    from typing import Any

    from ..core.annotations import Event, Log
    from ..core.hooks import AfterImport

_EVENT_S = 0.5
# Workers of short epochs come and go, so a file for each would cost too much.
_MAX_WORKERS = 4
_SHORT_LIFE_S = 0.1
# Reading private memory walks all pages of the process: it may use this share of a core.
_PRIVATE_SHARE = 0.01


class Fetching:
    """Time torch's fetchers, collate functions, and known decoders inside fetchers."""

    def __init__(self, event: Event, log: Log) -> None:
        self._event = event
        self._log = log
        self._counts: dict[tuple[int, int, int], Counts] = {}
        self._inside: dict[int, Counts] = {}  # by thread: whether it makes a batch
        self._lines: Lines | None = None  # the number of a worker
        self._feeders: dict[int, Any] = {}  # threads that pass batches to another process
        self._torch: Any = None
        self._finalizers: list[Finalize] = []

    def look_no_more(self) -> None:
        """Write no event at this worker's end, and sample no lines."""
        while self._finalizers:
            self._finalizers.pop().cancel()
        if self._lines is not None:
            self._lines.end()

    def install(self, hooks: AfterImport) -> None:
        hooks.call("torch", self._cover_torch)
        Decoding(self._inside, self._log).install(hooks)

    # Covers

    def _cover_torch(self, torch: Any) -> None:
        self._torch = torch
        loaders: Any = importlib.import_module("torch.utils.data.dataloader")
        kinds = loaders._DatasetKind
        original = kinds.create_fetcher

        @covers(kinds, "create_fetcher")
        def create_fetcher(*args: Any, **kwargs: Any) -> Any:
            fetcher = original(*args, **kwargs)
            guarded(self._log, "fetcher", self.cover_fetcher, torch, fetcher)
            return fetcher

    def cover_fetcher(self, torch: Any, fetcher: Any) -> None:
        dataset, collate = fetcher.dataset, fetcher.collate_fn
        worker = torch.utils.data.get_worker_info()
        if worker is not None and worker.id >= _MAX_WORKERS:
            return
        key = os.getpid(), id(dataset), id(getattr(collate, "__code__", collate))
        counts = self._counts.get(key)
        if counts is None:
            clock = thread_time if worker is None else process_time
            counts = self._counts[key] = Counts(data_set_facts(torch, dataset, collate), worker, clock)
            if worker is not None:
                from multiprocessing.util import Finalize

                threads: ChainMap[int, Any] = ChainMap(self._inside, self._feeders)
                self._lines = Lines(among=threads)
                self._lines.begin()
                at_end = functools.partial(self._worker_ends, counts)
                self._finalizers.append(Finalize(None, at_end, exitpriority=100))
        replace(fetcher, "collate_fn", self._timed_collate(collate, counts))
        replace(fetcher, "fetch", self._timed_fetch(torch, fetcher, counts))

    def _timed_fetch(self, torch: Any, fetcher: Any, counts: Counts) -> Callable[..., Any]:
        inside, clock = self._inside, counts.clock
        # Avoid a reference cycle: the data set must die with its fetcher, not at garbage collection.
        # A fetch of the fetcher's own is the program's, and takes no fetcher.
        own = vars(fetcher).get("fetch")
        original, reference = own or type(fetcher).fetch, weakref.ref(fetcher)

        @functools.wraps(original)
        def fetch(*args: Any, **kwargs: Any) -> Any:
            thread = get_ident()
            inside[thread] = counts
            num_faults, system_s = faults()
            cpu_s, begin_s = clock(), perf_counter()
            try:
                batch = original(*args, **kwargs) if own else original(reference(), *args, **kwargs)
            finally:
                inside.pop(thread, None)
            try:
                end_s, spent_s = perf_counter(), clock() - cpu_s
                num_faults_now, system_s_now = faults()
                counts.num_faults += num_faults_now - num_faults
                counts.system_s += system_s_now - system_s
                self._fetched(counts, begin_s, end_s, spent_s)
                if counts.num == 1:
                    counts.facts["num_distinct"] = num_distinct(torch, batch)
            except Exception as error:
                self._log("fetch", error)
            return batch

        return fetch

    def _timed_collate(self, original: Callable[..., Any], counts: Counts) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def collate(*args: Any, **kwargs: Any) -> Any:
            begin_s = perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                counts.collate_s += perf_counter() - begin_s

        return collate

    # Reports

    def _fetched(self, counts: Counts, begin_s: float, end_s: float, cpu_s: float) -> None:
        if not counts.num:
            counts.begin_s = begin_s
        took_s = end_s - begin_s
        counts.num += 1
        counts.fetch_s += took_s
        counts.cpu_s += cpu_s
        counts.longest_s = max(counts.longest_s, took_s)
        if end_s - counts.said_s >= _EVENT_S:
            self._say(counts, end_s)

    def _say(self, counts: Counts, now_s: float) -> None:
        from multiprocessing import parent_process  # see `core.fetch_delay`

        counts.said_s = now_s
        for thread in threading.enumerate():
            if thread.name == "QueueFeederThread":
                self._feeders[thread.ident or 0] = None
        if counts.worker is not None:
            self._read_private(counts, now_s)
        parent = parent_process()
        self._event(
            {
                "event": "fetching",
                "at_s": now_s,
                "drawn_by": os.getpid() if counts.worker is None or parent is None else parent.pid,
                "worker": None if counts.worker is None else counts.worker.id,
                "num_workers": 0 if counts.worker is None else counts.worker.num_workers,
                "num_threads": None if counts.worker is None else int(self._torch.get_num_threads()),
                **{name: getattr(counts, name) for name in FIELDS},
                "decoders": sorted(counts.decoders),
                "parts": [] if self._lines is None else self._lines.parts(),
                **{name: num - counts.bytes_before.get(name, 0) for name, num in bytes_read().items()},
                **counts.facts,
            }
        )
        counts.longest_s = 0.0  # of the time since the last event

    def _read_private(self, counts: Counts, now_s: float) -> None:
        counts.private_bytes = None
        if now_s >= counts.private_due_s:
            begin_s = process_time()
            counts.private_bytes = private_bytes()
            counts.private_due_s = now_s + (process_time() - begin_s) / _PRIVATE_SHARE

    def _worker_ends(self, counts: Counts) -> None:
        now_s = perf_counter()
        if counts.num and now_s - counts.begin_s >= _SHORT_LIFE_S:
            self._say(counts, now_s)
