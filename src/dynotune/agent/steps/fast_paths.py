"""The usual events by the shortest way, for they are paid in every step: noted now, worked off later, many at a time.

Code that comes between steps of other code finds the caches cold and costs many times what it costs in a loop of its
own. So each of these looks at little, appends to one list, and leaves what is unusual to the general way.
"""

from __future__ import annotations

import weakref
from threading import get_ident
from time import perf_counter

from ..core.annotations import Any, Call, Callable, Key, Log, Special
from . import samples
from .cycle import DRAW, Token


class Identities:
    """`tokens` and `classes` by number. What takes the place of something that has died takes its number, too."""

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self.classes: dict[int, type] = {}
        # Loaders by their key; all else by identity, as long as it lives.
        self._keys: dict[Key, Key] = {}
        self._draws: dict[Key, int] = {}
        self._datasets: dict[Key, weakref.ref[Any]] = {}
        self._numbers: dict[tuple[str, int, bool], tuple[weakref.ref[Any], int]] = {}

    def loader_made(self, key: Key, dataset: Any) -> Key:
        """Return the one object that stands for all keys equal to this one."""
        key = self._keys.setdefault(key, key)
        if key not in self._draws:
            self._take_over(key)
        try:
            self._datasets[key] = weakref.ref(dataset)
        except TypeError:  # a list: whether it is dead cannot be known
            self._datasets.pop(key, None)
        return key

    def _take_over(self, key: Key) -> None:
        """Give a loader of new data the number of one just like it whose data have died, as of an earlier fold."""
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
        """Return the number of a loader that was drawn from."""
        return self._draws.get(key)

    def of(self, kind: str, thing: Any, with_grad: bool) -> int:
        entry = self._numbers.get((kind, id(thing), with_grad))
        if entry is not None and entry[0]() is thing:
            return entry[1]
        return self._meet(kind, thing, with_grad)

    def references(self, number: int) -> list[weakref.ref[Any]]:
        """Return references to all things that bore the number, the latest last."""
        return [reference for reference, other in self._numbers.values() if other == number]

    def _meet(self, kind: str, thing: Any, with_grad: bool) -> int:
        """Number a thing not seen before; it takes over the number of one of its class that has died."""
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

    def _new(self, kind: str, name: str, with_grad: bool = False) -> int:
        self.tokens.append(Token(kind, name, with_grad))
        return len(self.tokens) - 1


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .steps import Steps


def stepped(steps: Steps, anchor: weakref.ref[Any], general: Callable[[Any], None]) -> Callable[[Any], None]:
    """End steps with what one optimizer, `anchor`, has done."""
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
    """End steps with the call of one module, `anchor`, `with_grad` or without; its inputs are counted if asked.

    Gives what makes the cover of the module's class: of its original call, the general cover, whether a graph is being
    traced, the threads inside a root's call, and the log. All in one function: a further one is paid in every step.
    """
    pending, due, work_off = steps.pending, steps.due, steps.work_off
    grad_enabled, cycle = steps.grad_enabled, steps.cycle

    def cover(original: Call, general: Call, is_compiling: Callable[[], bool], busy: set[int], log: Log) -> Call:
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            # First, so that a traced call folds to the original's and guards nothing of ours.
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
                except Exception:  # no tensor, and what it is instead may raise anything
                    size = samples.in_call(args, kwargs)
                # At once: calls may come from several threads.
                pending.append((0.0, size, now) if counts else now)
                if now >= due[1] or len(pending) >= due[0]:
                    work_off()
            except Exception as error:
                log("roots", error)
            return output

        return __call__

    return cover


def drawn(
    steps: Steps, key: Key, batch: Any, begun: set[Key], general: Callable[[Any, Any, float, float, Any], None]
) -> Callable[[Any, Any, float, float, Any], None]:
    """Count batches like `batch` of one loader: lists or tuples of as many fields, the first holding all samples."""
    pending, cycle, kind, num_fields = steps.pending, steps.cycle, type(batch), len(batch)

    def drawn(of: Key, batch_size: int | None, begin_s: float, end_s: float, batch: Any) -> None:
        # Where a loader has begun anew, an epoch begins.
        usual = of is key and not begun and steps.cycle is cycle and type(batch) is kind
        if usual and len(batch) == num_fields:
            try:
                size = batch[0].size(0)
            except Exception:  # no tensor for once, and what it is instead may raise anything
                size = -1
            if 0 < size <= (batch_size or size):
                steps.inside_optimizer = 0
                pending.append((end_s - begin_s, size, None))
                return
        general(of, batch_size, begin_s, end_s, batch)

    return drawn
