"""Record when each frame of each stream is done: frames that the program marks, and calls of models by
thread.

A frame costs one append. Whoever adds the first frame after a quarter of a second writes all frames since.
"""

from __future__ import annotations

from math import isfinite
from threading import Lock, current_thread, get_ident
from time import perf_counter, process_time, thread_time

from ..core.covers import call_directly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.annotations import Around, Call, Event, Log

# Modules whose threads do what anybody gives them: their threads are no streams.
POOLS = frozenset({"concurrent.futures.thread", "multiprocessing.pool", "anyio._backends._asyncio"})
WRITE_EVERY_S = 0.25
_LONGEST_NAME = 100


class Frames:
    """The frames of one process, with the CPU time of the thread that calls a model.

    Args:
        samples: counts the samples of a call from its arguments; None if it cannot.
        device_bytes: returns the peak of device memory so far; None without a device.
        most: frames that are recorded; later ones are counted only.
    """

    def __init__(self, event: Event, samples: Any, device_bytes: Any, most: int, log: Log) -> None:
        self._event, self._samples, self._device_bytes = event, samples, device_bytes
        self._most, self._log = most, log
        self._pending: list[tuple[Any, ...]] = []
        self._lock = Lock()
        self._due_s = 0.0
        self._num = self._num_lost = 0
        self.num_models = 0
        """Outermost models that were called, counted by who meets them."""
        self.takes_calls = True
        self._weights_bytes: dict[int, int] = {}
        self._pooled: dict[str, bool] = {}

    def marked(self, stream: object, since_s: float) -> None:
        """Note that the result of a stream's frame is there; `since_s`: when the frame was (perf_counter).

        A frame without a time is counted only: JSON knows no such number, and the frames that are written
        with it would be lost, too.
        """
        if isfinite(since_s):
            self._add("marked", str(stream)[:_LONGEST_NAME], "", float(since_s), None, 1)
        else:
            self._num_lost += 1

    def around(self, inner: Around | None) -> Around:
        """Make the call, by `inner` if given, and note when it began and ended."""
        make = inner or call_directly

        def around(call: Call, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not self.takes_calls:
                return make(call, module, args, kwargs)
            begin_s, begin_cpu_s = perf_counter(), thread_time()
            output = make(call, module, args, kwargs)
            try:
                if id(module) not in self._weights_bytes:
                    self._weights_bytes[id(module)] = sum(
                        w.numel() * w.element_size() for w in _weights(module)
                    )
                num, name = self._samples(args, kwargs), type(module).__name__
                thread = str(get_ident())
                if thread not in self._pooled:
                    self._pooled[thread] = _is_of_a_pool()
                self._add("call", thread, name, begin_s, begin_cpu_s, num)
            except Exception as error:
                self._log("frames", error)
            return output

        return around

    def _add(
        self, source: str, stream: str, model: str, begin_s: float, begin_cpu_s: float | None, num: int | None
    ) -> None:
        now = perf_counter()
        end_cpu_s = None if begin_cpu_s is None else thread_time()
        self._num += 1
        if self._num > self._most:
            self._num_lost += 1
        else:
            self._pending.append((source, stream, model, begin_s, now, begin_cpu_s, end_cpu_s, num))
        if now >= self._due_s:
            self.write()

    def write(self) -> None:
        """Write the frames since the last writing, unless another thread is about to."""
        if not self._lock.acquire(False):
            return
        try:
            self._due_s = perf_counter() + WRITE_EVERY_S
            num = len(self._pending)
            frames = self._pending[:num]
            del self._pending[:num]  # others may have appended meanwhile
            for source in ("marked", "call"):
                chosen = [frame[1:] for frame in frames if frame[0] == source]
                if chosen:
                    self._write(source, chosen)
        finally:
            self._lock.release()

    def _write(self, source: str, frames: list[tuple[Any, ...]]) -> None:
        streams = list(dict.fromkeys(frame[0] for frame in frames))
        models = list(dict.fromkeys(frame[1] for frame in frames))
        of_stream = {name: number for number, name in enumerate(streams)}
        of_model = {name: number for number, name in enumerate(models)}
        timed = frames if source == "call" else []
        self._event(
            {
                "event": "frames",
                "source": source,
                "streams": streams,
                "pooled": [number for number, name in enumerate(streams) if self._pooled.get(name)],
                "models": models,
                "stream": [of_stream[frame[0]] for frame in frames],
                "model": [of_model[frame[1]] for frame in frames],
                "begin_s": [round(frame[2], 6) for frame in frames],
                "end_s": [round(frame[3], 6) for frame in frames],
                "begin_cpu_s": [round(frame[4], 6) for frame in timed],
                "end_cpu_s": [round(frame[5], 6) for frame in timed],
                "num_samples": [frame[6] for frame in frames],
                "process_cpu_s": process_time(),
                "weights_bytes": sum(list(self._weights_bytes.values())),
                "peak_device_bytes": self._device_bytes(),
                "num_models": self.num_models,
                "num_lost": self._num_lost,
            }
        )

    def reset_after_fork(self) -> None:
        """Forget frames of the parent, which writes them itself."""
        self._pending.clear()
        self._lock = Lock()


def _is_of_a_pool() -> bool:
    """Return whether the calling thread is a worker of a pool."""
    thread = current_thread()
    target = getattr(thread, "_target", None)
    return type(thread).__module__ in POOLS or getattr(target, "__module__", None) in POOLS


def _weights(module: Any) -> list[Any]:
    return [*module.parameters(), *module.buffers()]
