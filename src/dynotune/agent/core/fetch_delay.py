"""Delay the fetches of a loader's workers, from the process that draws its batches.

Workers are other processes, forked or spawned before anybody knows that a delay will be asked for. So both
sides map a page of a file in the run folder: the drawing process writes the delay, and each fetch reads it,
which costs a fraction of a microsecond.

No module of the agent imports `multiprocessing` before the program does. That import adds `__mp_main__` to
`sys.modules`, where pickle looks for the module of an object without one. Keys of compile caches are made of
pickled `torch.contiguous_format`, and caches filled under the agent would not be found without it.
"""

from __future__ import annotations

import functools
import importlib
import os
import struct
import weakref
from time import perf_counter, sleep

from .covers import covers, replace
from .errors import guarded
from .writer import map_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .annotations import Log
    from .hooks import AfterImport

PAGE_BYTES = 4096
_DELAY = struct.Struct("<d")  # seconds of each fetch
_SLEPT = struct.Struct("<dd")  # number of delayed fetches, and the seconds that these slept, of one worker
_MOST_WORKERS = (PAGE_BYTES - _DELAY.size) // _SLEPT.size


class DelayPage:
    """The page that one process that draws batches shares with its workers."""

    def __init__(self, folder: str, drawn_by: int) -> None:
        path = os.path.join(folder, "fetch-delay-%d.page" % drawn_by)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._page = map_file(file, PAGE_BYTES)

    def let_go(self) -> None:
        self._page = memoryview(bytearray(PAGE_BYTES))

    def set(self, delay_s: float) -> None:
        """Delay fetches that begin from now on by so many seconds, and forget what was slept before."""
        if delay_s:
            self._page[_DELAY.size :] = bytes(PAGE_BYTES - _DELAY.size)
        _DELAY.pack_into(self._page, 0, delay_s)

    def hold(self, worker: int) -> None:
        """Sleep in a fetch of a worker, given by its number."""
        delay_s: float = _DELAY.unpack_from(self._page)[0]
        if delay_s > 0:
            begin_s = perf_counter()
            sleep(delay_s)
            at = _DELAY.size + (worker % _MOST_WORKERS) * _SLEPT.size
            num, slept_s = _SLEPT.unpack_from(self._page, at)
            _SLEPT.pack_into(self._page, at, num + 1, slept_s + perf_counter() - begin_s)

    def read(self) -> tuple[int, float]:
        """Return the number of fetches that were delayed, and the seconds that they slept, of all workers."""
        each = [_SLEPT.unpack_from(self._page, _DELAY.size + at * _SLEPT.size) for at in range(_MOST_WORKERS)]
        return int(sum(num for num, _ in each)), sum(slept_s for _, slept_s in each)


_pages: dict[tuple[str, int], DelayPage] = {}


def _page_of(folder: str, drawn_by: int) -> DelayPage:
    page = _pages.get((folder, drawn_by))
    if page is None:
        page = _pages[folder, drawn_by] = DelayPage(folder, drawn_by)
    return page


def let_go_of_pages() -> None:
    """Unmap all pages; a fetch that has begun finds no delay."""
    while _pages:
        _pages.popitem()[1].let_go()


def delay_page(folder: str) -> DelayPage:
    """Return the page of this process, which draws batches."""
    return _page_of(folder, os.getpid())


class FetchDelay:
    """Let each fetch look at the page of the process that draws its batches."""

    def __init__(self, folder: str, log: Log) -> None:
        self._folder, self._log = folder, log

    def install(self, hooks: AfterImport) -> None:
        hooks.call("torch", self._cover_torch)

    def _cover_torch(self, torch: Any) -> None:
        loaders: Any = importlib.import_module("torch.utils.data.dataloader")
        kinds = loaders._DatasetKind
        original = kinds.create_fetcher

        @covers(kinds, "create_fetcher")
        def create_fetcher(*args: Any, **kwargs: Any) -> Any:
            fetcher = original(*args, **kwargs)
            guarded(self._log, "fetch delay", self.cover_fetcher, torch, fetcher)
            return fetcher

    def cover_fetcher(self, torch: Any, fetcher: Any) -> None:
        from multiprocessing import parent_process

        worker, parent = torch.utils.data.get_worker_info(), parent_process()
        drawn_by = os.getpid() if worker is None or parent is None else int(parent.pid or 0)
        page = _page_of(self._folder, drawn_by)
        replace(fetcher, "fetch", self._held(fetcher, page, 0 if worker is None else worker.id))

    def _held(self, fetcher: Any, page: DelayPage, worker: int) -> Callable[..., Any]:
        # Avoid a reference cycle, because the data set must die with its fetcher. For the same reason the
        # wrapper of `fetch` is kept in the fetcher's own dict, and holds no reference to the fetcher.
        covered = vars(fetcher).get("fetch")
        original, reference = covered or type(fetcher).fetch, weakref.ref(fetcher)

        @functools.wraps(original)
        def fetch(*args: Any, **kwargs: Any) -> Any:
            page.hold(worker)
            return original(*args, **kwargs) if covered else original(reference(), *args, **kwargs)

        return fetch
