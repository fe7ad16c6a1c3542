"""Time the loader alone, then a step without the loader: drain the loader, then repeat one of its batches.

Inside one `next()` of the program, the task draws from the loader repeatedly. From then on the program gets
the last drawn batch at each request. The task changes nothing else for the program. When the loader's and the
step's times are known, or cannot be measured, the program continues with its loader.
"""

from __future__ import annotations

import functools
from threading import get_ident
from time import perf_counter

from ..core import reasons
from ..core.device import is_capturing, synchronise
from .loader_drain import drain, position
from .page_cache import drop
from .replayed_batch import alias, values
from .task import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.annotations import Key
    from ..core.program import Program

# Batches that the program drew ahead, and queued work, are used up before the window begins.
SETTLE_STEPS = 3
LEAST_WINDOW_S, MOST_WINDOW_S = 2.0, 10.0
FEWEST_STEPS = 3
# No step takes so many batches: the program requests a whole epoch, which now has no end.
MOST_DRAWS = 1024
PATIENCE_S, PATIENCE_STEPS = 60.0, 100


class _Source:
    """A loader that was drained: the result of draining, and the batch that replaces the loader's batches."""

    def __init__(self, batch: Any, values: str, fields: dict[str, Any]) -> None:
        self.batch = batch
        self.values = values
        self.fields = fields
        self.num_drawn = self.num_before = self.num_since_step = 0


class IsolateLoader(Task):
    """Time the loader alone, then at least `num_steps` steps on one batch.

    With `page_cache` "cold", the pages of files are dropped from the cache before the loader is drained.
    """

    event = "isolated"

    def __init__(self, program: Program, order: dict[str, Any]) -> None:
        super().__init__(program, order)
        self._num_steps = max(FEWEST_STEPS, int(order.get("num_steps") or 0))
        self._page_cache = order.get("page_cache", "warm")
        self._thread: int | None = None  # the thread in which steps end
        self._armed_s, self._armed_at = 0.0, 0
        self._at_begin: set[Key] = set()  # loaders to drain when they restart
        self._sources: dict[Key, _Source] = {}
        self._dropped: dict[str, Any] | None = None
        self._settled_at: int | None = None
        self._first_step: int | None = None
        self._begin_s = self._last_s = 0.0
        self._num_made = 0
        self._counted = 0, 0
        self._measured: dict[str, Any] | None = None

    def begin(self, num_steps: int) -> int:
        if not self.program.steps.num_loaders:
            self.give_up("the steps draw from no DataLoader of torch")
            return num_steps
        self._armed_s, self._armed_at = perf_counter(), num_steps
        self._thread = get_ident()
        self.program.loaders.draw_through(self.around)
        return num_steps + 1

    def around(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:
            if self.done:
                return original(iterator)
            key = self._counted_key(iterator)
            if key is None:
                return original(iterator)
            if key not in self._sources:
                batch = self._first_batch(original, iterator, key)
                if key not in self._sources:
                    return batch
            try:
                return self._again(self._sources[key])
            except Exception as error:
                self.failed(error)
                return original(iterator)

        return __next__

    def at_exit(self) -> None:
        num_steps = self._num_made - (self._first_step or 0)
        if self._first_step is not None and self._measured is None and num_steps >= FEWEST_STEPS:
            self._measure(num_steps, self._last_s)
        if self._measured is not None:
            self._answer()
        else:
            self.give_up("one batch was replayed for long enough", code=reasons.PROGRAM_ENDED, at_exit=True)

    def clean_up(self) -> None:
        if self.program.loaders is not None:
            self.program.loaders.draw_plainly()
        self._sources.clear()

    # The loader

    def _counted_key(self, iterator: Any) -> Key | None:
        """Return the loader's key, if its batches belong to the steps and are drawn in the thread of the
        steps."""
        try:
            key: Key = iterator._dynotune[0]
            if not self.program.steps.counts(key):
                return None
            if get_ident() != self._thread:
                self.give_up("batches are drawn in another thread than steps are made in")
                return None
            return key
        except Exception as error:
            self.failed(error)
            return None

    def _first_batch(self, original: Callable[[Any], Any], iterator: Any, key: Key) -> Any:
        """Drain the loader, unless too little of the epoch is left; return the batch for the program."""
        at_begin, left, skip, fewest = position(iterator)
        too_late = (left is not None and left - skip < fewest) or key in self._at_begin
        if too_late and not at_begin:
            return original(iterator)  # the next epoch is complete
        self._ready()
        begun_s = self.program.loader_begun_s.get(key) if at_begin else None
        batch, fields = drain(original, iterator, fewest=fewest, skip=skip, begun_s=begun_s)
        if fields is None:
            self._at_begin.add(key)
        else:
            self._sources[key] = _Source(batch, values(self.program.torch, batch), fields)
            # Count again: until now, the repeated steps had another batch of this loader.
            self._settled_at = self._first_step = None
        return batch

    def _ready(self) -> None:
        """Wait until the device is idle, and drop the pages of files if requested."""
        try:
            if not is_capturing(self.program.torch):
                synchronise(self.program.torch)
            if self._page_cache == "cold" and self._dropped is None:
                self._dropped = drop()
        except Exception as error:
            self.program.log("isolated", error)

    # One batch

    def _again(self, source: _Source) -> Any:
        source.num_drawn += 1
        source.num_since_step += 1
        if source.num_since_step > MOST_DRAWS:
            raise RuntimeError("%d batches were drawn without a step" % MOST_DRAWS)
        return alias(self.program.torch, source.batch)

    def step_ended(self, num_steps: int) -> int:
        now = perf_counter()
        self._num_made, self._last_s = num_steps, now
        for source in self._sources.values():
            source.num_since_step = 0
        if not self._sources:
            if now - self._armed_s > PATIENCE_S and num_steps - self._armed_at > PATIENCE_STEPS:
                self.give_up("no batch was drawn in %d steps" % (num_steps - self._armed_at))
        elif self._settled_at is None:
            self._settled_at = num_steps + SETTLE_STEPS
        elif self._first_step is None:
            if num_steps >= self._settled_at:
                self._settle(num_steps)
        else:
            self._look(num_steps - self._first_step)
        return num_steps + 1

    def _settle(self, num_steps: int) -> None:
        for source in self._sources.values():
            source.num_before = source.num_drawn
        self._counted = self.program.steps.num_samples, self.program.steps.num_uncounted
        self._measured = None
        synchronise(self.program.torch)
        self._begin_s, self._first_step = perf_counter(), num_steps

    def _look(self, num_steps: int) -> None:
        took_s = self._last_s - self._begin_s
        enough = num_steps >= self._num_steps
        if enough and self._measured is None:
            # For a program that ends soon, these steps are enough.
            synchronise(self.program.torch)
            self._measure(num_steps, perf_counter())
        if (enough and took_s >= LEAST_WINDOW_S) or (took_s >= MOST_WINDOW_S and num_steps >= FEWEST_STEPS):
            synchronise(self.program.torch)
            self._measure(num_steps, perf_counter())
            self._answer()

    def _measure(self, num_steps: int, end_s: float) -> None:
        uncounted = self.program.steps.num_uncounted - self._counted[1]
        self._measured = {
            "first_step": self._first_step,
            "num_steps": num_steps,
            "begin_s": self._begin_s,
            "end_s": end_s,
            "num_samples": None if uncounted else self.program.steps.num_samples - self._counted[0],
        }
        for source in self._sources.values():
            source.fields["num_replayed"] = source.num_drawn - source.num_before

    def _answer(self) -> None:
        changed = [
            values(self.program.torch, source.batch) != source.values for source in self._sources.values()
        ]
        self.complete(
            loaders=[source.fields for source in self._sources.values()],
            replayed=self._measured,
            changed_in_place=any(changed),
            dropped=self._dropped,
        )
