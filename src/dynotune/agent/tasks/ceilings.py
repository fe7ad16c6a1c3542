"""What the loader gives alone, and what a step takes without it: one drains the loader, the other replays a batch.

Both in one run, after warm-up: inside one `next()` of the program's own the loader is drawn from again and again; from
then on the program is given the last of these batches for each that it asks for. Nothing else of the program changes,
and when both are known, or where they cannot be, it goes on with its loader as if nothing had been.
"""

from __future__ import annotations

import functools
from threading import get_ident
from time import perf_counter

from .loader_drain import drain, position
from .page_cache import drop
from .replay import alias, values
from .window import NEVER, is_capturing, synchronise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.hooks import Event, Log
    from ..steps.identities import Key
    from .start_signal import Told

# Batches that the program drew ahead, and work that was queued, are used up before the window begins.
SETTLE_STEPS = 3
LEAST_WINDOW_S, MOST_WINDOW_S = 2.0, 10.0
FEWEST_STEPS = 3
# No step takes so many batches: something else asks for all of an epoch, which has no end now.
MOST_DRAWS = 1024
PATIENCE_S, PATIENCE_STEPS = 60.0, 100


class _Source:
    """A loader that was drained: what it gave, and the batch that takes its place."""

    def __init__(self, batch: Any, values: str, fields: dict[str, Any]) -> None:
        self.batch, self.values, self.fields = batch, values, fields
        self.num_drawn = self.num_before = self.num_since_step = 0


class Ceilings:
    """Begins after the step that it is told.

    Args:
        page_cache: "cold" to drop the files' pages before the loader is drained.
        prepare: called before it begins.
        complete: called as `complete(fields)` when both are known, or why they are not.
    """

    def __init__(self, told: Told, *, page_cache: str, prepare: Callable[[], None], complete: Event, log: Log) -> None:
        self._told, self._page_cache = told, page_cache
        self._prepare, self._complete, self._log = prepare, complete, log
        self._torch: Any = None
        self._thread: int | None = None  # in which steps end; None until it begins
        self._armed_s, self._armed_at = 0.0, 0
        self._begun_s: dict[Key, float] = {}
        self._at_begin: set[Key] = set()  # to be drained when they begin again
        self._sources: dict[Key, _Source] = {}
        self._dropped: dict[str, Any] | None = None
        self._settled_at: int | None = None
        self._first_step: int | None = None
        self._begin_s = self._last_s = 0.0
        self._num_steps = 0
        self._counted = 0, 0
        self._measured: dict[str, Any] | None = None
        self._makes_steps = False
        self.steps: Any = None
        self.done = False

    @property
    def is_told(self) -> bool:
        return self._told.step is not None

    @property
    def has_begun(self) -> bool:
        return self._thread is not None

    def torch_is_here(self, torch: Any) -> None:
        self._torch = torch

    def loader_begun(self, key: Key) -> None:
        """An iterator of it was made, or begins anew; its workers begin now."""
        self._begun_s[key] = perf_counter()

    def reached(self, num_steps: int) -> int:
        """`num_steps` have ended, the last one now. The number at which to be called next."""
        if self.done:
            return NEVER
        self._makes_steps = True
        try:
            if self._told.step is None:
                return self._told.look(num_steps)
            if num_steps < self._told.step:
                return self._told.step
            if self._thread is None:
                self._arm(num_steps)
            else:
                self._step_ended(num_steps)
        except Exception as error:
            self._failed(error)
        return NEVER if self.done else num_steps + 1

    def around(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Cover the `__next__` of a loader's iterators."""

        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:
            if self._thread is None or self.done:
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
                self._failed(error)
                return original(iterator)

        return __next__

    def finish(self) -> None:
        """The program ends. Of a process without steps, such as a launcher, there is nothing to say."""
        if not self._makes_steps or self.done:
            return
        num_steps = self._num_steps - (self._first_step or 0)
        if self._first_step is not None and self._measured is None and num_steps >= FEWEST_STEPS:
            self._measure(num_steps, self._last_s)
        if self._measured is not None:
            self._end()
        else:
            self._give_up("the program ended before one batch was replayed for long enough", at_exit=True)

    # The loader

    def _arm(self, num_steps: int) -> None:
        if not self.steps.draws:
            self._give_up("the steps draw from no DataLoader of torch")
            return
        self._prepare()
        self._armed_s, self._armed_at = perf_counter(), num_steps
        self._thread = get_ident()

    def _counted_key(self, iterator: Any) -> Key | None:
        """Of the loader, where its batches belong to the steps and are drawn where these are made."""
        try:
            key: Key = iterator._dynotune[0]
            if not self.steps.counts(key):
                return None
            if get_ident() != self._thread:
                self._give_up("batches are drawn in another thread than steps are made in")
                return None
            return key
        except Exception as error:
            self._failed(error)
            return None

    def _first_batch(self, original: Callable[[Any], Any], iterator: Any, key: Key) -> Any:
        """Drain the loader, unless too little is left of the epoch; the batch to be given to the program."""
        at_begin, left, skip, fewest = position(iterator)
        too_late = (left is not None and left - skip < fewest) or key in self._at_begin
        if too_late and not at_begin:
            return original(iterator)  # the next epoch is whole
        self._ready()
        begun_s = self._begun_s.get(key) if at_begin else None
        drained = drain(original, iterator, fewest=fewest, skip=skip, begun_s=begun_s)
        if drained.fields is None:
            self._at_begin.add(key)
        else:
            self._sources[key] = _Source(drained.batch, values(self._torch, drained.batch), drained.fields)
            self._settled_at = self._first_step = None  # what was replayed before was not without input
        return drained.batch

    def _ready(self) -> None:
        """The device is idle, and the files' pages are dropped if asked."""
        try:
            if not is_capturing(self._torch):
                synchronise(self._torch)
            if self._page_cache == "cold" and self._dropped is None:
                self._dropped = drop()
        except Exception as error:
            self._log("ceilings", error)

    # One batch

    def _again(self, source: _Source) -> Any:
        source.num_drawn += 1
        source.num_since_step += 1
        if source.num_since_step > MOST_DRAWS:
            raise RuntimeError("%d batches were drawn without a step" % MOST_DRAWS)
        return alias(self._torch, source.batch)

    def _step_ended(self, num_steps: int) -> None:
        now = perf_counter()
        self._num_steps, self._last_s = num_steps, now
        for source in self._sources.values():
            source.num_since_step = 0
        if not self._sources:
            if now - self._armed_s > PATIENCE_S and num_steps - self._armed_at > PATIENCE_STEPS:
                self._give_up("no batch was drawn in %d steps" % (num_steps - self._armed_at))
        elif self._settled_at is None:
            self._settled_at = num_steps + SETTLE_STEPS
        elif is_capturing(self._torch):
            return
        elif self._first_step is None:
            if num_steps >= self._settled_at:
                self._begin(num_steps)
        else:
            self._look(num_steps - self._first_step)

    def _begin(self, num_steps: int) -> None:
        for source in self._sources.values():
            source.num_before = source.num_drawn
        self._counted = self.steps.num_samples, self.steps.num_uncounted
        self._measured = None
        synchronise(self._torch)
        self._begin_s, self._first_step = perf_counter(), num_steps

    def _look(self, num_steps: int) -> None:
        took_s = self._last_s - self._begin_s
        enough = num_steps >= (self._told.num_steps or FEWEST_STEPS)
        if enough and self._measured is None:
            # A program that ends soon has given this much.
            synchronise(self._torch)
            self._measure(num_steps, perf_counter())
        if (enough and took_s >= LEAST_WINDOW_S) or (took_s >= MOST_WINDOW_S and num_steps >= FEWEST_STEPS):
            synchronise(self._torch)
            self._measure(num_steps, perf_counter())
            self._end()

    def _measure(self, num_steps: int, end_s: float) -> None:
        uncounted = self.steps.num_uncounted - self._counted[1]
        self._measured = {
            "first_step": self._first_step,
            "num_steps": num_steps,
            "begin_s": self._begin_s,
            "end_s": end_s,
            "num_samples": None if uncounted else self.steps.num_samples - self._counted[0],
        }
        for source in self._sources.values():
            source.fields["num_replayed"] = source.num_drawn - source.num_before

    def _end(self) -> None:
        self.done = True
        changed = [values(self._torch, source.batch) != source.values for source in self._sources.values()]
        self._complete(
            {
                "reason": "",
                "loaders": [source.fields for source in self._sources.values()],
                "replayed": self._measured,
                "changed_in_place": any(changed),
                "dropped": self._dropped,
            }
        )
        self._sources.clear()

    def _failed(self, error: Exception) -> None:
        self._log("ceilings", error)
        self._give_up("it failed: %s: %s" % (type(error).__name__, error))

    def _give_up(self, reason: str, at_exit: bool = False) -> None:
        if not self.done:
            self.done = True
            self._sources.clear()
            self._complete({"reason": reason, "at_exit": at_exit})
