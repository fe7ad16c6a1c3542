"""Apply `loader.worker_threads`: number of threads of torch and OpenCV in each worker of a DataLoader."""

from __future__ import annotations

import ctypes
import importlib
import sys

from ..core.covers import covers
from ..core.errors import by_a_signal, guarded
from .decode import SharedCounts
from .site import Site, answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.annotations import Answer, Planned
    from ..core.hooks import AfterImport
    from ..core.program import Program


class WorkerThreadsSite(Site):
    """Set a worker's threads after torch has given the worker one thread, before the program's own
    `worker_init_fn`."""

    def __init__(self, planned: list[Planned], program: Program, at_start: bool) -> None:
        super().__init__(planned, program, at_start)
        self._counts, self._keeps = SharedCounts(2), False

    def on_imports(self, hooks: AfterImport) -> None:
        hooks.call("cv2", self._imported)

    def constructing(self) -> None:
        torch = self.torch
        original = torch.utils.data.DataLoader.__init__

        @covers(torch.utils.data.DataLoader, "__init__")
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            original(loader, *args, **kwargs)
            if loader.num_workers:
                loader.worker_init_fn = _Begin(self, loader.worker_init_fn)

        workers = importlib.import_module("torch.utils.data.dataloader")._MultiProcessingDataLoaderIter
        start = workers.__init__

        @covers(workers, "__init__")
        def start_workers(drawn: Any, *args: Any, **kwargs: Any) -> None:
            cv2_num = guarded(self._failed, "threads", self._let_go)
            try:
                start(drawn, *args, **kwargs)
            finally:
                if (cv2_num or 0) > 1:
                    sys.modules["cv2"].setNumThreads(cv2_num)

    def _let_go(self) -> int:
        """End threads that a fork does not copy but a worker would wait for. Return how many threads OpenCV
        had."""
        self._keeps, num = True, 0
        if self.value > 1:  # torch's threads, which torch starts again when needed
            with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
                paths = {line.split(None, 5)[5].strip() for line in file if "libgomp" in line}
            if any(ctypes.CDLL(path).omp_pause_resource_all(2) for path in paths):  # omp_pause_hard
                raise RuntimeError("OpenMP keeps its threads")
        if "cv2" in sys.modules and (num := int(sys.modules["cv2"].getNumThreads())) > 1:
            sys.modules["cv2"].setNumThreads(1)
        self._keeps = False
        return num

    def _failed(self, where: str, error: Exception) -> None:
        if by_a_signal(error):
            raise error
        self.failure = "%s: %s" % (type(error).__name__, error)

    def _imported(self, cv2: Any) -> None:
        """Set the number of threads when a worker imports OpenCV itself."""
        if self.torch is not None and self.torch.utils.data.get_worker_info() is not None:
            cv2.setNumThreads(self.value)

    def begin(self) -> None:
        """Set the number of threads in a starting worker; on failure, leave the worker unchanged."""
        self._counts.add(1)
        guarded(self._failed, "threads", self._begin)

    def _begin(self) -> None:
        if self._keeps:
            return
        if "cv2" in sys.modules:
            sys.modules["cv2"].setNumThreads(self.value)
        self.torch.set_num_threads(self.value)
        self._counts.add(0)

    def read_one(self, setting: Planned) -> Answer:
        done, num = (int(sum(self._counts.each(index))) for index in (0, 1))
        witness = "workers forked from this process"
        if done < num or not num:
            why = "%d of %d workers could not be set" % (num - done, num)
            return answer(
                setting, None, witness, False, why if num else "the program forked no worker of a DataLoader"
            )
        return answer(setting, self.value, witness, True, "%d workers" % num)


class _Begin:
    """A `worker_init_fn` for forked workers; any other worker gets only the program's own
    `worker_init_fn`."""

    def __init__(self, site: WorkerThreadsSite, own: Callable[[int], Any] | None) -> None:
        self._site, self._own = site, own

    def __call__(self, worker: int) -> None:
        self._site.begin()
        if self._own is not None:
            self._own(worker)

    def __reduce__(self) -> Any:
        return _nothing_first, (self._own,)


def _nothing_first(own: Callable[[int], Any] | None) -> Callable[[int], Any] | None:
    return own
