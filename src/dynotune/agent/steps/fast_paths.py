"""Record frequent events quickly, since each costs time in every step; process events later, many at a time.

Code that runs once between steps of other code finds cold processor caches, and takes many times as long as
in a loop of its own. So each function reads little, appends to one list, and leaves unusual cases to the
general path.
"""

from __future__ import annotations

import weakref
from threading import get_ident
from time import perf_counter

from . import samples
from .cycle import CALL, DRAW, Token

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.annotations import Call, Key, Log, Special
    from .steps import Steps


class Identities:
    """Numbers of objects; `tokens` and `classes` by number. An object that replaces a dead object takes its
    number."""

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self.classes: dict[int, type] = {}
        # Loaders by key; all other objects by identity, while they live.
        self._keys: dict[Key, Key] = {}
        self._draws: dict[Key, int] = {}
        self._datasets: dict[Key, weakref.ref[Any]] = {}
        self._numbers: dict[tuple[str, int, bool], tuple[weakref.ref[Any], int]] = {}

    def loader_made(self, key: Key, dataset: Any) -> Key:
        """Return the one object that represents all keys equal to `key`."""
        key = self._keys.setdefault(key, key)
        if key not in self._draws:
            self._take_over(key)
        try:
            self._datasets[key] = weakref.ref(dataset)
        except TypeError:  # a list does not support weak references, so its end is unknown
            self._datasets.pop(key, None)
        return key

    def _take_over(self, key: Key) -> None:
        """Give a new loader the number of an equal loader (as of an earlier fold) whose data set no longer
        exists."""
        for other, dataset in self._datasets.items():
            if dataset() is None and (other[0], other[2:]) == (key[0], key[2:]) and other in self._draws:
                self._draws[key] = self._draws.pop(other)
                del self._datasets[other]
                return

    def of_loader(self, key: Key) -> int:
        number = self._draws.get(key)
        if number is None:
            number = self._draws[key] = self._new(DRAW, key[0].__name__)
        return number

    def number_of_loader(self, key: Key) -> int | None:
        """Return the number of a loader that gave a batch."""
        return self._draws.get(key)

    def of(self, kind: str, thing: Any, with_grad: bool) -> int:
        entry = self._numbers.get((kind, id(thing), with_grad))
        if entry is not None and entry[0]() is thing:
            return entry[1]
        return self._meet(kind, thing, with_grad)

    def knows(self, kind: str, thing: Any, with_grad: bool) -> bool:
        entry = self._numbers.get((kind, id(thing), with_grad))
        return entry is not None and entry[0]() is thing

    def references(self, number: int) -> list[weakref.ref[Any]]:
        """Return references to all objects that had the given number, the latest object last."""
        return [reference for reference, other in self._numbers.values() if other == number]

    def _meet(self, kind: str, thing: Any, with_grad: bool) -> int:
        """Number a new object; if an object of the same class is dead, the new object takes over that
        number."""
        number = None
        for (other_kind, _, other_grad), (reference, other) in self._numbers.items():
            same = (other_kind, other_grad, self.classes[other]) == (kind, with_grad, type(thing))
            if same and reference() is None:
                number = other
                break
        if number is None:
            number = self._new(kind, type(thing).__name__, with_grad)
            self.classes[number] = type(thing)
        self._numbers[(kind, id(thing), with_grad)] = weakref.ref(thing), number
        return number

    def merge_calls(self) -> dict[int, int]:
        """Give all modules of a class that are called without gradients one number; return the old numbers'
        new ones.

        Threads that each call a model of their own call them in no order, so no cycle of single models shows.
        """
        first: dict[type, int] = {}
        merged = {
            number: first.setdefault(self.classes[number], number)
            for number, token in enumerate(self.tokens)
            if token.kind == CALL and not token.with_grad
        }
        for entry, (reference, number) in list(self._numbers.items()):
            self._numbers[entry] = reference, merged.get(number, number)
        return merged

    def _new(self, kind: str, name: str, with_grad: bool = False) -> int:
        self.tokens.append(Token(kind, name, with_grad))
        return len(self.tokens) - 1


def stepped(steps: Steps, anchor: weakref.ref[Any], general: Callable[[Any], None]) -> Callable[[Any], None]:
    """Let the program's steps end at the steps of one optimizer, `anchor`."""
    pending, due, work_off = steps.pending, steps.due, steps.work_off

    def stepped(optimizer: Any) -> None:
        if anchor() is not optimizer:
            general(optimizer)
            return
        steps.inside_optimizer = 0
        now = perf_counter()
        pending.append(now)
        if now >= due[1] or len(pending) >= due[0]:
            work_off()

    return stepped


def called(steps: Steps, anchor: weakref.ref[Any], with_grad: bool, counts: bool) -> Special:
    """Let steps end at calls of one module, `anchor`, with or without gradients; count the call's inputs if
    requested.

    Return a function that makes the cover of the module's class from its original call, the general cover, a
    test for tracing, the threads inside a root's call, and the log. The cover is a single function, since
    each function call costs time in every step.
    """
    pending, due, work_off = steps.pending, steps.due, steps.work_off
    grad_enabled, cycle = steps.grad_enabled, steps.cycle

    def cover(
        original: Call, general: Call, is_compiling: Callable[[], bool], busy: set[int], log: Log
    ) -> Call:
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            # First, so that a traced call folds to the original and guards nothing of the agent.
            if is_compiling():
                return original(self, *args, **kwargs)
            if busy or anchor() is not self or steps.cycle is not cycle or grad_enabled() is not with_grad:
                return general(self, *args, **kwargs)
            thread = get_ident()
            try:
                busy.add(thread)
                output = original(self, *args, **kwargs)
            finally:
                busy.discard(thread)
            now = perf_counter()
            try:
                try:
                    size = args[0].size(0) if counts else None
                except Exception:  # not a tensor, and its own code may raise anything
                    size = samples.in_call(args, kwargs)
                # Do this in one operation, because calls may come from several threads.
                pending.append((0.0, size, now) if counts else now)
                if now >= due[1] or len(pending) >= due[0]:
                    work_off()
            except Exception as error:
                log("roots", error)
            return output

        return __call__

    return cover


def drawn(
    steps: Steps,
    key: Key,
    batch: Any,
    begun: set[Key],
    general: Callable[[Any, Any, float, float, Any], None],
) -> Callable[[Any, Any, float, float, Any], None]:
    """Count batches like `batch` of one loader: lists or tuples of as many fields, whose first has all
    samples."""
    pending, cycle, kind, num_fields = steps.pending, steps.cycle, type(batch), len(batch)

    def drawn(of: Key, batch_size: int | None, begin_s: float, end_s: float, batch: Any) -> None:
        # A restart of a loader begins an epoch.
        usual = of is key and not begun and steps.cycle is cycle and type(batch) is kind
        if usual and len(batch) == num_fields:
            try:
                size = batch[0].size(0)
            except Exception:  # not a tensor this time, and its own code may raise anything
                size = -1
            if 0 < size <= (batch_size or size):
                steps.inside_optimizer = 0
                pending.append((end_s - begin_s, size, None))
                return
        general(of, batch_size, begin_s, end_s, batch)

    return drawn
