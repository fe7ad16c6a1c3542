"""Measure the cost of making batches: in a loader's workers or, without workers, in the process that draws them.

Functions are covered only in observed runs. Each process writes an event `fetching` twice a second, with counts since
its first batch, and a worker writes a last event when it ends. The process that draws pinned batches writes `pinning`.
"""

from __future__ import annotations

import functools
import importlib
import os
import threading
import weakref
from collections import ChainMap
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from threading import get_ident
from time import perf_counter, process_time, thread_time

from ..core.annotations import AfterImport, Any, Callable, Event, Log, Sequence
from ..core.covers import covers
from ..core.errors import guarded
from ..core.tensors import length_of, name_of, tensors_in
from .lines import Lines

_NUM_VALUES = 4096
_MAX_DEPTH = 3


def data_set_facts(torch: Any, dataset: Any, collate: Any) -> dict[str, Any]:
    """Describe a data set and its collate function: names, places and contents. No reference to either is kept."""
    inner = _innermost(dataset)
    is_iterable = isinstance(dataset, torch.utils.data.IterableDataset)
    return {
        "dataset": name_of(dataset),
        "collate": name_of(collate),
        "num_items": None if is_iterable else length_of(dataset),
        "items_at": _place(getattr(type(inner), "__getitem__", None) or getattr(type(inner), "__iter__", None)),
        "collate_at": _place(collate),
        "num_objects": _num_objects(dataset),
    }


def num_distinct(torch: Any, batch: Any) -> int | None:
    """Count distinct values in the first part of one plane of the largest floating-point tensor of 3 or more axes."""
    on_host = (each for each in tensors_in(torch, batch) if each.device.type == "cpu" and each.numel())
    found = [each for each in on_host if each.dim() >= 3 and each.is_floating_point()]
    if not found:
        return None
    plane = max(found, key=lambda each: int(each.numel()))
    while plane.dim() > 2:
        plane = plane[0]
    return len(set(plane.reshape(-1)[:_NUM_VALUES].tolist()))


def _innermost(dataset: Any) -> Any:
    """Return the data set inside a Subset or a similar wrapper."""
    for _ in range(_MAX_DEPTH):
        inner = vars(dataset).get("dataset") if hasattr(dataset, "__dict__") else None
        if inner is None:
            break
        dataset = inner
    return dataset


def _place(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(function, "__code__"):
        function = getattr(function, "__func__", None) or getattr(type(function), "__call__", None)
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    return "%s(%d): %s" % (os.path.basename(code.co_filename), code.co_firstlineno, code.co_name)


def _num_objects(dataset: Any, depth: int = _MAX_DEPTH) -> int:
    """Estimate the number of objects in a data set's containers: length times the number in the first element."""
    total = 0
    for value in list(vars(dataset).values()) if hasattr(dataset, "__dict__") else []:
        if isinstance(value, (list, tuple, dict, set)):
            total += _num_inside(value, depth)
        elif depth and hasattr(value, "__dict__") and hasattr(type(value), "__getitem__"):
            total += _num_objects(value, depth - 1)  # a data set inside a Subset
    return total


def _num_inside(value: Any, depth: int) -> int:
    if not value:
        return 0
    first = next(iter(value.values() if isinstance(value, dict) else value))
    inside = _num_inside(first, depth - 1) if depth and isinstance(first, (list, tuple, dict, set)) else 0
    return len(value) * (1 + inside)


_EVENT_S = 0.5
# Workers of short epochs come and go, so a file for each would cost too much.
_MAX_WORKERS = 4
_SHORT_LIFE_S = 0.1
# Reading private memory walks all pages of the process: it may use this share of a core.
_PRIVATE_SHARE = 0.01
_MOST_FILES = 16
# Module, then its functions that decode, or that resize and convert, which data of the final size need not.
_DECODERS = {
    "PIL.ImageFile": ("ImageFile.load",),
    "PIL.Image": ("Image.convert", "Image.resize", "Image.thumbnail"),
    "cv2": ("imread", "imdecode", "resize", "cvtColor"),
    "torchvision.io": ("decode_image", "decode_jpeg", "decode_png", "decode_webp", "read_image"),
    "turbojpeg": ("TurboJPEG.decode",),
    "simplejpeg": ("decode_jpeg",),
    "imageio.v2": ("imread",),
    "imageio.v3": ("imread",),
    "skimage.io": ("imread",),
    "torchaudio": ("load",),
    "soundfile": ("read",),
    "librosa": ("load",),
}


_TOLD = ("begin_s", "num", "fetch_s", "collate_s", "decode_s", "cpu_s", "longest_s", "decoded", "private_bytes")


class Counts:
    """Number and times (s) of the batches that one data set and collate function made in this process."""

    def __init__(self, facts: dict[str, Any], worker: Any, clock: Callable[[], float]) -> None:
        self.facts, self.worker, self.clock = facts, worker, clock
        self.begin_s = self.said_s = perf_counter()
        self.num, self.fetch_s, self.longest_s, self.cpu_s, self.collate_s, self.decode_s = 0, 0.0, 0.0, 0.0, 0.0, 0.0
        self.decoders: set[str] = set()
        self.decoded: list[str] = []  # some of the files
        self.private_bytes: int | None = None
        self.private_due_s = 0.0
        self.bytes_before = _bytes_read()


class Fetching:
    """Time torch's fetchers, collate functions, known decoders inside fetchers, and pinning of memory."""

    def __init__(self, event: Event, log: Log) -> None:
        self._event, self._log = event, log
        self._counts: dict[tuple[int, int, int], Counts] = {}
        self._inside: dict[int, Counts] = {}  # by thread: whether it makes a batch
        self._lines: Lines | None = None  # the number of a worker
        self._feeders: dict[int, Any] = {}  # threads that pass batches to another process
        self._decoding: set[int] = set()
        self._pinning: set[int] = set()
        self._torch: Any = None
        self._pin_num, self._pin_s, self._pin_said_s = 0, 0.0, perf_counter()

    def install(self, hooks: AfterImport) -> None:
        hooks.call("torch", self._cover_torch)
        for module, names in _DECODERS.items():
            hooks.call(module, functools.partial(self._cover_decoders, module, names))

    # Covers

    def _cover_torch(self, torch: Any) -> None:
        self._torch = torch
        loaders: Any = importlib.import_module("torch.utils.data.dataloader")
        kinds = loaders._DatasetKind
        original = kinds.create_fetcher

        @covers(kinds, "create_fetcher")
        def create_fetcher(*args: Any, **kwargs: Any) -> Any:
            fetcher = original(*args, **kwargs)
            guarded(self._log, "fetcher", self._cover_fetcher, torch, fetcher)
            return fetcher

        self._cover_pinning(importlib.import_module("torch.utils.data._utils.pin_memory"))

    def _cover_fetcher(self, torch: Any, fetcher: Any) -> None:
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
                threads: ChainMap[int, Any] = ChainMap(self._inside, self._feeders)
                self._lines = Lines(among=threads)
                self._lines.begin()
                Finalize(None, functools.partial(self._worker_ends, counts), exitpriority=100)
        fetcher.collate_fn = self._timed_collate(collate, counts)
        fetcher.fetch = self._timed_fetch(torch, fetcher, counts)

    def _timed_fetch(self, torch: Any, fetcher: Any, counts: Counts) -> Callable[..., Any]:
        inside, clock = self._inside, counts.clock
        # Avoid a reference cycle: the data set must die with its fetcher, not at garbage collection.
        original, reference = type(fetcher).fetch, weakref.ref(fetcher)

        @functools.wraps(original)
        def fetch(*args: Any, **kwargs: Any) -> Any:
            thread = get_ident()
            inside[thread] = counts
            cpu_s, begin_s = clock(), perf_counter()
            try:
                batch = original(reference(), *args, **kwargs)
            finally:
                inside.pop(thread, None)
            try:
                end_s = perf_counter()
                self._fetched(counts, begin_s, end_s, clock() - cpu_s)
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

    def _cover_decoders(self, module_name: str, names: tuple[str, ...], module: Any) -> None:
        for name in names:
            owner_name, _, attribute = name.rpartition(".")
            owner = getattr(module, owner_name, None) if owner_name else module
            if callable(getattr(owner, attribute, None)):
                self._cover_decoder(owner, attribute, "%s.%s" % (module_name, name))

    def _cover_decoder(self, owner: Any, attribute: str, name: str) -> None:
        def decoded(counts: Counts, begin_s: float, args: Sequence[Any]) -> None:
            counts.decode_s += perf_counter() - begin_s
            counts.decoders.add(name)
            if args and len(counts.decoded) < _MOST_FILES:
                guarded(self._log, "file decoded", note, counts, getattr(args[0], "filename", args[0]))

        def note(counts: Counts, path: object) -> None:
            if isinstance(path, (str, os.PathLike)):
                counts.decoded.append(os.path.abspath(os.fsdecode(path)))

        self._cover_outermost(owner, attribute, self._decoding, self._inside.get, decoded)

    def _cover_pinning(self, module: Any) -> None:
        def pinned(_: object, begin_s: float, args: object) -> None:
            guarded(self._log, "pin", self._pinned, begin_s, perf_counter())

        self._cover_outermost(module, "pin_memory", self._pinning, lambda thread: True, pinned)

    def _cover_outermost(
        self, owner: Any, name: str, busy: set[int], counted: Callable[[int], Any], done: Callable[..., None]
    ) -> None:
        """Call `done` after each outermost call, with the thread's `counted`, the call's begin, and its arguments."""
        original = getattr(owner, name)

        @covers(owner, name)
        def outermost(*args: Any, **kwargs: Any) -> Any:
            thread = get_ident()
            counts = counted(thread)
            if counts is None or thread in busy:
                return original(*args, **kwargs)
            busy.add(thread)
            begin_s = perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                busy.discard(thread)
                done(counts, begin_s, args)

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
        counts.said_s = now_s
        self._feeders.update((one.ident or 0, None) for one in threading.enumerate() if one.name == "QueueFeederThread")
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
                **{name: getattr(counts, name) for name in _TOLD},
                "decoders": sorted(counts.decoders),
                "parts": [] if self._lines is None else self._lines.parts(),
                **{name: num - counts.bytes_before.get(name, 0) for name, num in _bytes_read().items()},
                **counts.facts,
            }
        )
        counts.longest_s = 0.0  # of the time since the last event

    def _read_private(self, counts: Counts, now_s: float) -> None:
        counts.private_bytes = None
        if now_s >= counts.private_due_s:
            begin_s = process_time()
            counts.private_bytes = _private_bytes()
            counts.private_due_s = now_s + (process_time() - begin_s) / _PRIVATE_SHARE

    def _worker_ends(self, counts: Counts) -> None:
        now_s = perf_counter()
        if counts.num and now_s - counts.begin_s >= _SHORT_LIFE_S:
            self._say(counts, now_s)

    def _pinned(self, begin_s: float, end_s: float) -> None:
        self._pin_num += 1
        self._pin_s += end_s - begin_s
        if end_s - self._pin_said_s >= _EVENT_S:
            self._pin_said_s = end_s
            self._event({"event": "pinning", "at_s": end_s, "num": self._pin_num, "pin_s": self._pin_s})


def _bytes_read() -> dict[str, int]:
    """Return the bytes that this process has read so far, in total and from storage; {} if they are not counted."""
    try:
        with open("/proc/self/io", encoding="ascii") as file:
            words = file.read().split()
        read, stored = (int(words[words.index(name) + 1]) for name in ("rchar:", "read_bytes:"))
    except (OSError, ValueError, IndexError):
        return {}
    return {"read_bytes": max(read, stored), "storage_bytes": stored}  # no read call covers mapped files


def _private_bytes() -> int | None:
    """Return the bytes that this process has allocated or written since its fork; None if they are not reported."""
    try:
        with open("/proc/self/smaps_rollup", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("Private_Dirty:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
