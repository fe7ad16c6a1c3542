"""Count the program's steps: find the cycle of events, fix the cycle, then observe only the event that ends a
step."""

from __future__ import annotations

import weakref
from threading import RLock, get_ident
from time import perf_counter

from ..core.writer import EPOCH
from . import cycle as cycles
from . import fast_paths, samples
from .cycle import AllDraws
from .event_history import MAX_EVENTS, History

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.annotations import Key

# Some programs draw from loaders about one batch before its use (Lightning, accelerate).
_MAX_AHEAD = 4
# Number of replays of captured graphs, without any end of the cycle among them, that show the cycle to be
# over.
_MAX_REPLAYS = 16
_MAX_REPLAYS_AMONG_STEPS = 256
# Number of steps that are processed together. A killed process loses them: at most one in `_PENDING_SHARE` of
# all its steps, and never more than 20 ms of them.
_PENDING_SHARE = 16
_MAX_PENDING = 64
_MAX_PENDING_S = 0.02
_PATIENCE_AT_EXIT_S = 0.5
# Number of events without a cycle after which models of one class, called by several threads, count as one.
_MERGED_FROM = 64
# An exception inside an optimizer's step leaves the step open; after this many events it counts as closed.
MAX_INSIDE_OPTIMIZER = 4096


class Steps:
    """Step counter: receives events of the program, and reports the program's steps.

    Args:
        record: called as `record(end_s, wait_s, num_samples, flags)` for each step in order; -1 means unknown
            samples.
        flags_now: returns flags of a step that ends now; None if no task asks for them.
        reached: called as `reached(num_steps)` once the step that the last call of `reached` returned has
            ended; returns the number of the next such step.
        fixed: called as `fixed(parts, begin_s, classes, num_superseded, call_samples)` when a cycle is found:
            the parts of the cycle (none if the program marks its steps), the begin of the first step, the
            classes of modules still needed, the number of first steps that no longer count, and the samples
            of a step without a loader, if its calls always had equally many.
        has_stepped: called with the optimizer after each `optimizer.step()`, except for the optimizer that
            marks the end of each training step.
        search_again: called when another training seems to begin; returns whether to search for that
            training's step.
        wait: waits for the device where a step may end; None if only the host's time matters.

    Attributes:
        drawn: what receives a batch of a loader, as (loader's key, batch size, begin and end of the wait,
            batch). It is the general receiver, or a fast path for usual batches of one loader once the cycle
            is fixed.
        stepped: what receives an optimizer's step, as (optimizer): the general receiver, or a fast path for
            the optimizer whose steps end those of the program.
    """

    def __init__(
        self,
        *,
        grad_enabled: Callable[[], bool],
        record: Callable[[float, float, int, int], None],
        flags_now: Callable[[], int] | None,
        reached: Callable[[int], int],
        fixed: Callable[[list[dict[str, Any]], float, set[type], int, int | None], None],
        search_again: Callable[[], bool] = lambda: True,
        has_stepped: Callable[[Any], None] | None = None,
        marked_by_hand: bool = False,
        phase: str | None = None,
        wait: Callable[[], None] | None = None,
    ) -> None:
        # Programs call models from several threads. Reentrant, because a signal handler may call one, too.
        self._lock = RLock()
        self.grad_enabled = grad_enabled
        self._record, self._flags_now, self._reached, self._fixed = record, flags_now, reached, fixed
        self._search_again, self._has_stepped = search_again, has_stepped
        self._wait, self._phase = wait, phase
        self._use_general_receivers()
        self._names = fast_paths.Identities()
        self._tokens = self._names.tokens
        self._history = History()
        # Threads that called modules since the search for a step began, or since their models were merged.
        self._calling: set[int] = set()
        self._begun: set[Key] = set()
        self._waited_before: dict[Key, float] = {}
        self._epoch = False
        self._next_check = MAX_EVENTS + 1 if marked_by_hand else 3
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.inside_optimizer = 0
        self._needed: set[type] = set()
        self._call_samples: int | None = None
        self.is_joined = False  # whether the program ran before its events were seen
        self.cycle: cycles.Cycle | None = None
        self._sampler: int | None = None
        self._anchor, self._per_step = -1, 1
        self._loaders: frozenset[int] | AllDraws = frozenset()
        self._marked = self._ignores = False
        self._begin_s: float | None = None
        self._num_superseded = 0
        self._seen = 0
        self._draws_per_step: int | None = None
        self._waits: list[float] = []
        self._sizes: list[int | None] = []
        self._next_stop = 0
        # Makes the cover of the class whose module's calls end the steps, if nothing else needs observing.
        self.cover_of_anchor: Any = None
        # Entries of the fast paths, in order: (wait, samples, None or end) of a batch, or the end of a step.
        self.pending: list[Any] = []
        self.due = [0.0, 0.0]  # so many entries, or the time limit
        self._working_off = False
        self.num_steps = 0
        # Totals of all steps so far; `num_uncounted` steps have samples that could not be counted.
        self.wait_s, self.num_samples, self.num_uncounted = 0.0, 0, 0
        # Epochs that began, and steps of the last complete epoch; None without one.
        self.num_epochs = 0
        self.epoch_steps: int | None = None
        self._epoch_began_at: int | None = None

    @property
    def num_events(self) -> int:
        return len(self._history.numbers)

    def reset_after_fork(self) -> None:
        """Create a new lock, because the old lock's owner may be a thread that does not exist in the forked
        process."""
        self._lock, self._working_off = RLock(), False
        self.pending.clear()
        self._use_general_receivers()

    def _use_general_receivers(self) -> None:
        # Attributes, not methods: an event costs one lookup, whichever receiver is in use.
        self.drawn: Callable[[Key, int | None, float, float, Any], None] = self._receive_draw
        self.stepped: Callable[[Any], None] = self._receive_step

    # Events of the program

    def optimizer_built(self, optimizer: Any) -> None:
        """Note an optimizer. If a step was already found, another training begins, with its own step.

        Cycles before the first training were not steps, but a pass over the data or an evaluation.
        """
        with self._lock:
            self.work_off()
            if self._phase == cycles.INFERENCE:
                return
            if self.cycle is not None and not self._marked and self._search_again():
                if all(self._tokens[n].kind in (cycles.DRAW, cycles.CALL) for n in self.cycle.sequence):
                    self._num_superseded = self.num_steps
                self._forget_cycle()
                self.optimizers.clear()
            self.optimizers.add(optimizer)

    def iterator_made(self, key: Key, dataset: Any) -> Key:
        """Note that a loader starts or restarts: the loader's next batch begins an epoch. Return the loader's
        key."""
        with self._lock:
            key = self._names.loader_made(key, dataset)
            self._begun.add(key)
            return key

    def epoch_goes_on(self, key: Key) -> None:
        """Note that a loader began before its first batch was seen."""
        with self._lock:
            self._begun.discard(key)

    def between_events(self, function: Callable[[], bool], patience_s: float) -> bool:
        """Call the function from another thread, while no event is counted and no task begins or ends; after
        `patience_s` also if one does."""
        is_held = self._lock.acquire(timeout=patience_s)
        try:
            return function()
        finally:
            if is_held:
                self._lock.release()

    def unless_within(self, function: Callable[[], object], patience_s: float) -> None:
        """Call the function in a thread that was interrupted, unless it was interrupted while it counts an
        event, or another thread is within `between_events` for `patience_s`."""
        lock: Any = self._lock
        if lock._is_owned() or not lock.acquire(timeout=patience_s):
            return
        try:
            function()
        finally:
            lock.release()

    def skip(self, num: int) -> None:
        """Leave the first `num` steps out of the count, at the end of a step."""
        with self._lock:
            self.num_steps -= num
            if self.cycle is not None and self._begin_s is not None:
                self._tell_cycle(self.cycle, self._begin_s, num)

    def look_soon(self) -> None:
        """Have `reached` called at the end of the next step."""
        self._next_stop = 0
        self.due[1] = 0.0

    def waited_before(self, key: Key, wait_s: float) -> None:
        """Add the time in which workers end and start to the wait for the first batch of the loader's next
        epoch."""
        with self._lock:
            self._waited_before[key] = self._waited_before.get(key, 0.0) + wait_s

    @property
    def num_loaders(self) -> int:
        """Count the loaders whose batches belong to the steps."""
        return len(self._loaders)

    def has_gradients(self, module: Any) -> bool:
        """Tell whether an outermost module was seen to be called with gradients."""
        return self._names.knows(cycles.CALL, module, True)

    def counts(self, key: Key) -> bool:
        """Tell whether batches of this loader belong to the steps."""
        return self._names.number_of_loader(key) in self._loaders

    def _receive_draw(
        self, key: Key, batch_size: int | None, begin_s: float, end_s: float, batch: Any
    ) -> None:
        with self._lock:
            self.work_off()
            self.inside_optimizer = 0
            number = self._names.of_loader(key)
            if self.cycle is None or number in self._loaders:
                begins = key in self._begun
                self._begun.discard(key)
                num_samples = samples.in_batch(batch, batch_size)
                wait_s = end_s - begin_s
                if self._wait is not None and (self.cycle is None or number == self._anchor):
                    end_s = self._ends()
                if begins:
                    wait_s += self._waited_before.pop(key, 0.0)
                self._happened(number, end_s, wait_s, num_samples, begins)
                usual = self.cycle is not None and number != self._anchor and self._wait is None
                is_general = self.drawn == self._receive_draw
                if usual and samples.are_fields(batch, num_samples) and (begins or is_general):
                    self.drawn = fast_paths.drawn(self, key, batch, self._begun, self._receive_draw)

    def called(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with self._lock:
            if self.inside_optimizer:
                self.inside_optimizer -= 1
                return
            self.work_off()
            number = self._names.of(cycles.CALL, module, self.grad_enabled())
            if self.cycle is None:
                self._calling.add(get_ident())
                self._happened(number, self._ends(), 0.0, samples.in_call(args, kwargs))
                return
            if number == self._sampler:
                self._waits.append(0.0)
                self._sizes.append(samples.in_call(args, kwargs))
            if number == self._anchor:
                self._tick(self._ends(), True)

    def _receive_step(self, optimizer: Any) -> None:
        with self._lock:
            self.work_off()
            self.inside_optimizer = 0
            if self._has_stepped is not None:
                self._has_stepped(optimizer)
            if self.is_joined:
                self.optimizers.add(optimizer)
            number = self._names.of(cycles.STEP, optimizer, False)
            if number == self._anchor:
                self._tick(self._ends(), True)
            elif self.cycle is None:
                self._happened(number, self._ends(), 0.0, None)

    def replayed(self, graph: Any) -> None:
        with self._lock:
            self.work_off()
            number = self._names.of(cycles.REPLAY, graph, False)
            if number == self._anchor:
                self._tick(self._ends(), True)
            elif self.cycle is None or self._is_overtaken(number):
                self._happened(number, self._ends(), 0.0, None)

    def marked(self) -> None:
        """Note that the program, or a function that the user named, reports the end of a step."""
        if self._ignores:
            return
        with self._lock:
            now = self._ends()
            self.work_off()
            if not self._marked:
                self._begin_marked(now)
            self._end_step(now, True)

    def ignore(self) -> None:
        """Count no events from now on."""
        self.work_off()
        self._forget_cycle()
        self.cycle, self._marked, self._ignores = cycles.Cycle([], -1, 1, set()), True, True

    def _ends(self) -> float:
        """Return the time at which the last call ended."""
        if self._wait is not None:
            self._wait()
        return perf_counter()

    # From events to steps

    def _happened(
        self, number: int, now: float, wait_s: float, num_samples: int | None, begins: bool = False
    ) -> None:
        if self.cycle is not None:
            self._count(number, now, wait_s, num_samples, begins, True)
            return
        size = self._history.add(number, now, wait_s, num_samples, begins)
        # What a batch is for shows after it, which matters where the first events are the middle of a step.
        is_open = self.is_joined and self._tokens[number].kind == cycles.DRAW
        if size >= self._next_check and not is_open:
            # Check at every event at first, then less and less often: a check costs time in proportion to the
            # events.
            self._next_check = size + 1 + size // 32
            history, num = self._history, len(self.optimizers)
            found = cycles.find(history.numbers, history.times, self._tokens, num, self._phase)
            if found is None and size >= _MERGED_FROM and len(self._calling) > 1 and not num:
                self._calling.clear()
                history.renumber(self._names.merge_calls())
                found = cycles.find(history.numbers, history.times, self._tokens, num, self._phase)
            if found is not None:
                self._fix(found)

    def _fix(self, found: cycles.Cycle) -> None:
        self.cycle = found = found.ending_in_anchor() if self.is_joined else found
        self._anchor, self._per_step, self._loaders = found.anchor, found.per_step, frozenset(found.loaders)
        kinds = {n: self._tokens[n].kind for n in found.sequence}
        # In training without a loader, no place shows the number of samples without extra cost.
        calls = [n for n in found.sequence if kinds[n] == cycles.CALL]
        self._sampler = (
            calls[0] if calls and not self._loaders and cycles.STEP not in kinds.values() else None
        )
        self._draws_per_step = sum(n in self._loaders or n == self._sampler for n in found.sequence)
        self._needed = {self._names.classes[n] for n in calls if n in (self._sampler, self._anchor)}
        self._call_samples = None
        if calls and not self._loaders:
            size = self._history.constant_size(calls[0])
            self._call_samples = None if size is None else size * found.sequence.count(calls[0])
        num_superseded, self._num_superseded = self._num_superseded, 0
        if num_superseded:
            # A caller that waits for a number of steps has to ask again.
            self.num_steps, self._begin_s, self._next_stop = 0, None, 0
        if self._begin_s is None:
            self._begin_s = self._history.begin_s(found.sequence)
        self._catch_up()
        if self._wait is not None:
            pass  # the fast paths do not wait for the device
        elif kinds[found.anchor] == cycles.STEP and found.per_step == 1:
            anchor = self._names.references(found.anchor)[-1]
            self.stepped = fast_paths.stepped(self, anchor, self._receive_step)
        elif calls == [found.anchor] and cycles.STEP not in kinds.values() and not self._flags_now:
            anchor, with_grad = self._names.references(found.anchor)[-1], self._tokens[found.anchor].with_grad
            self.cover_of_anchor = fast_paths.called(self, anchor, with_grad, self._sampler is not None)
        self._tell_cycle(found, self._begin_s, num_superseded)

    def _tell_cycle(self, found: cycles.Cycle, begin_s: float, num_superseded: int) -> None:
        parts = found.parts(self._tokens)
        self._fixed(parts, begin_s, self._needed, num_superseded, self._call_samples)

    @property
    def kinds(self) -> list[str]:
        """Return the kinds of the cycle's events in order of first occurrence; empty if the program marks its
        steps."""
        sequence = self.cycle.sequence if self.cycle is not None else []
        return list(dict.fromkeys(self._tokens[number].kind for number in sequence))

    def _catch_up(self) -> None:
        """Count the events that occurred while the step was searched for."""
        past, self._history = self._history, History()
        for event in past.events():
            self._count(*event, False)

    def _is_overtaken(self, number: int) -> bool:
        """Tell whether CUDA graphs have replaced the calls of a cycle found before their capture; then search
        anew.

        A shorter evaluation by CUDA graphs has fewer replays than this check requires.
        """
        patience = (
            _MAX_REPLAYS_AMONG_STEPS if self._tokens[self._anchor].kind == cycles.STEP else _MAX_REPLAYS
        )
        if self._marked:
            return False
        if len(self._history.numbers) + 1 < patience:
            self._history.add(number, perf_counter(), 0.0, None, False)
            return False
        self._forget_cycle()
        return True

    def _forget_cycle(self) -> None:
        self.cycle, self._anchor, self._sampler, self._loaders = None, -1, None, frozenset()
        self._use_general_receivers()
        self.cover_of_anchor = None
        self._next_check, self._seen, self._waits, self._sizes = 3, 0, [], []

    def _count(
        self, number: int, now: float, wait_s: float, num_samples: int | None, begins: bool, live: bool
    ) -> None:
        if number in self._loaders or number == self._sampler:
            self._waits.append(wait_s)
            self._sizes.append(num_samples)
            self._epoch = self._epoch or begins
        if number == self._anchor:
            self._tick(now, live)

    def _tick(self, now: float, live: bool) -> None:
        self._seen += 1
        if self._seen == self._per_step:
            self._seen = 0
            self._end_step(now, live)
            self.due[1] = 0.0  # the number of entries to process has changed

    def _end_step(self, now: float, live: bool) -> None:
        wait_s, num_samples, sizes = 0.0, -1, self._sizes
        if sizes:
            if len(sizes) == len(self._waits) == self._draws_per_step == 1:
                size, wait_s = sizes.pop(), self._waits.pop()
                num_samples = -1 if size is None else size
            else:
                wait_s, num_samples = self._take_batches()
            self.wait_s += wait_s
        if num_samples < 0:
            self.num_uncounted += 1
        else:
            self.num_samples += num_samples
        flags = 0
        if self._epoch:
            self._epoch, flags = False, EPOCH
            self._note_epoch()
        if live and self._flags_now is not None:
            flags |= self._flags_now()
        self._record(now, wait_s, num_samples, flags)
        self.num_steps += 1
        if self._history.numbers:
            self._history = History()
        if live and self.num_steps >= self._next_stop:
            self._next_stop = self._reached(self.num_steps)

    def _note_epoch(self) -> None:
        began_at, self._epoch_began_at = self._epoch_began_at, self.num_steps
        self.epoch_steps = None if began_at is None else self.num_steps - began_at
        self.num_epochs += 1

    def work_off(self) -> None:
        pending = self.pending
        if not pending:
            return
        with self._lock:
            if self._working_off:
                return  # a signal handler or finalizer that runs during the loop below
            self._working_off = True
            try:
                while pending:
                    event = pending.pop(0)
                    end_s = event
                    if type(event) is tuple:
                        wait_s, size, end_s = event
                        self._waits.append(wait_s)
                        self._sizes.append(size if type(size) is int else None)
                    if end_s is not None:
                        self._end_step(end_s, True)
                # A pilot asks after each step what happened in the step.
                most = min(_MAX_PENDING, self.num_steps // _PENDING_SHARE) if self._flags_now is None else 1
                self.due[:] = min(most, self._next_stop - self.num_steps), perf_counter() + _MAX_PENDING_S
            finally:
                self._working_off = False

    def work_off_at_exit(self) -> None:
        """Process the remaining events; the process ends, so do not wait for a thread that hangs with the
        device."""
        if self._lock.acquire(timeout=_PATIENCE_AT_EXIT_S):
            try:
                self.work_off()
            finally:
                self._lock.release()

    def _take_batches(self) -> tuple[float, int]:
        """Return the loader wait (s) and the number of samples (-1 unknown) of the step that ends now."""
        sizes, per_step = self._sizes, self._draws_per_step or len(self._sizes)
        surplus = len(sizes) - per_step
        if surplus > _MAX_AHEAD:
            # Far more than the cycle has: an evaluation on the same data came in between. The last are the
            # step's.
            del sizes[:surplus], self._waits[:surplus]
        wait_s = sum(self._waits)
        self._waits = []
        # Batches drawn ahead wait for the step that uses them.
        used, self._sizes = sizes[:per_step], sizes[per_step:]
        counted = [size for size in used if size is not None]
        return wait_s, sum(counted) if len(counted) == len(used) else -1

    def _begin_marked(self, now: float) -> None:
        """Use marked steps from now on: batches that the loaders gave so far belong to the first marked
        step."""
        self._marked = True
        self.cycle = cycles.Cycle([], -1, 1, set())
        self._anchor = -1
        self._loaders = AllDraws(self._tokens)
        begin = self._history.begin_s(None) if self._history.numbers else now
        self._catch_up()
        self._fixed([], begin, set(), 0, None)
