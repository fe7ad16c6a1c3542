"""`loader.worker_threads`: threads of torch and OpenCV in each worker of a DataLoader."""

from __future__ import annotations

import sys

from ..core.annotations import AfterImport, Answer, Any, Callable, Event, Planned
from ..core.covers import covers
from .decode import SharedCounts
from .site import Site, answer


class WorkerThreadsSite(Site):
    """Runs before the program's own `worker_init_fn`; torch has given the worker one thread by then."""

    def __init__(self, planned: list[Planned], event: Event) -> None:
        super().__init__(planned, event)
        self._counts = SharedCounts(1)

    def on_imports(self, hooks: AfterImport) -> None:
        hooks.call("cv2", self._imported)

    def after_torch(self, torch: Any) -> None:
        super().after_torch(torch)
        original = torch.utils.data.DataLoader.__init__

        @covers(torch.utils.data.DataLoader, "__init__")
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            original(loader, *args, **kwargs)
            if loader.num_workers:
                loader.worker_init_fn = _Begin(self, loader.worker_init_fn)

    def _imported(self, cv2: Any) -> None:
        """Set it where a worker imports OpenCV itself."""
        if self.torch is not None and self.torch.utils.data.get_worker_info() is not None:
            cv2.setNumThreads(self.value)

    def begin(self) -> None:
        """Set it in a worker that starts."""
        self.torch.set_num_threads(self.value)
        if "cv2" in sys.modules:
            sys.modules["cv2"].setNumThreads(self.value)
        self._counts.add(0)

    def read(self, setting: Planned) -> Answer:
        num = int(sum(self._counts.each(0)))
        witness = "workers forked from this process"
        if not num:
            return answer(setting, None, witness, False, "the program forked no worker of a DataLoader")
        return answer(setting, self.value, witness, True, "%d workers" % num)


class _Begin:
    """A `worker_init_fn`; where a worker is not forked, the program's own alone reaches it."""

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
