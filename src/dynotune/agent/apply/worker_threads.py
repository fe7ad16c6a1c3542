"""`loader.worker_threads` and `loader.worker_cv2_threads`: threads of one operation of torch or OpenCV, in workers."""

from __future__ import annotations

import functools
import importlib

from ..core.covers import covers
from ..core.shared_counts import SharedCounts
from .site import Site, answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.hooks import AfterImport, Event
    from .site import Answer, Planned


_LIBRARIES = {"loader.worker_threads": "torch", "loader.worker_cv2_threads": "cv2"}


class WorkerThreadsSite(Site):
    """Sets them where a worker is about to make its first batch: torch sets 1 before, `worker_init_fn` has run."""

    def __init__(self, planned: list[Planned], event: Event) -> None:
        super().__init__(planned, event)
        self._counts = SharedCounts(len(planned))
        self._hooks: AfterImport | None = None

    def on_imports(self, hooks: AfterImport) -> None:
        self._hooks = hooks

    def after_torch(self, torch: Any) -> None:
        kinds: Any = importlib.import_module("torch.utils.data").dataloader._DatasetKind
        original = kinds.create_fetcher

        @covers(kinds, "create_fetcher")
        def create_fetcher(*args: Any, **kwargs: Any) -> Any:
            if torch.utils.data.get_worker_info() is not None and self._hooks is not None:
                for at, setting in enumerate(self.planned):
                    self._hooks.call(_LIBRARIES[setting["knob"]], functools.partial(self._set, at, setting["value"]))
            return original(*args, **kwargs)

    def _set(self, at: int, number: int, library: Any) -> None:
        of_torch = ("set_num_threads", "get_num_threads")
        words = of_torch if library.__name__ == "torch" else ("setNumThreads", "getNumThreads")
        put, get = (getattr(library, word) for word in words)
        put(number)
        if get() == max(1, number):
            self._counts.add(at)

    def readback(self) -> list[Answer]:
        return [self._read(at, setting) for at, setting in enumerate(self.planned)]

    def _read(self, at: int, setting: Planned) -> Answer:
        num, witness = int(sum(self._counts.each(at))), "threads in forked workers"
        if num:
            return answer(setting, setting["value"], witness, True, "%d workers" % num)
        detail = "no loader forked a worker that imported %s" % _LIBRARIES[setting["knob"]]
        return answer(setting, None, witness, None, detail)
