"""The program's living objects, with those that it hid from `gc.get_objects()` by `gc.freeze()`."""

from __future__ import annotations

import gc
import sys
import weakref
from itertools import compress
from types import ModuleType

from .covers import covers
from .errors import guarded
from .interpreters import frames_of_threads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType
    from typing import Any

    from .errors import ErrorLog

MOST_OBJECTS = 200_000
"""Objects that are searched for frozen ones."""
LONGEST = 10_000
"""Entries of a list or dict that are searched; longer ones hold data."""
_LEAVES = (str, bytes, bytearray, int, float, complex, bool, type(None), range)
_frozen: list[weakref.ref[Any]] = []


def watch_freezing(log: ErrorLog) -> None:
    """Note from now on which objects `gc.freeze()` hides: nothing lists them afterwards.

    Programs freeze their objects after the setup, so that collections do not walk them: the model, the
    loader, the functions. The notes are weak references, which keep no object alive, so objects that have
    none (lists, dicts) are not noted.
    """
    original = gc.freeze

    @covers(gc, "freeze")
    def freeze() -> None:
        guarded(log, "gc.freeze", _note)
        original()


def living_objects() -> list[Any]:
    """Return the objects that the garbage collector tracks, and the frozen ones that were noted."""
    found: list[Any] = gc.get_objects()
    if not gc.get_freeze_count():
        return found
    # `gc.unfreeze()` has them listed again.
    listed = set(map(id, found))
    hidden = (reference() for reference in _frozen)
    found.extend(one for one in hidden if one is not None and id(one) not in listed)
    return found


def instances(*kinds: type) -> list[Any]:
    """Return the living objects of these classes or of classes below them, by their own type: `isinstance`
    may run an object's own code.

    For a thread beside the program's: while it held all objects, what the program drops would live on, and
    end in the wrong thread.
    """
    found = _of_types(lambda kind: issubclass(kind, kinds))
    if gc.get_freeze_count():
        listed = set(map(id, found))
        hidden = (reference() for reference in _frozen)
        found.extend(one for one in hidden if issubclass(type(one), kinds) and id(one) not in listed)
    return found


def _of_types(wants: Callable[[type], bool]) -> list[Any]:
    """Return the listed objects of the types that `wants` names. All objects are held within single calls of
    C code alone, which no other thread interrupts."""
    listed = gc.get_objects()
    # By identity, since a metaclass may define how its classes are hashed and compared.
    kinds = dict(zip(map(id, map(type, listed)), map(type, listed)))
    del listed
    wanted = {key for key, kind in kinds.items() if wants(kind)}
    listed = gc.get_objects()
    found = list(compress(listed, map(wanted.__contains__, map(id, map(type, listed)))))
    del listed
    return found


def note_frozen(pause: Callable[[], None]) -> None:
    """Note what a program froze before the agent came, as far as variables of running functions and of
    modules lead to it.

    `pause`: is called all the time, and lets the program run.
    """
    if gc.get_freeze_count():
        listed = set(map(id, gc.get_objects()))
        _frozen.extend(
            weakref.ref(one)
            for one in _reachable(_variables(), pause)
            if type(one).__weakrefoffset__ and type(one) is not weakref.ref and id(one) not in listed
        )


def _variables() -> list[Any]:
    """Return the variables of running functions, innermost first, and of the program's modules, its script
    first. Modules of other types may load what they name when they are asked for their variables."""
    found: list[Any] = []
    for innermost in frames_of_threads().values():
        frame: FrameType | None = innermost
        while frame is not None:
            found.extend(frame.f_locals.values())
            frame = frame.f_back
    modules = [sys.modules.get("__main__"), *list(sys.modules.values())]
    return found + [
        object.__getattribute__(module, "__dict__") for module in modules if type(module) is ModuleType
    ]


def _reachable(roots: Iterable[Any], pause: Callable[[], None]) -> Iterator[Any]:
    """Yield what the roots refer to, the nearest first; no tensors, which would be held meanwhile."""
    seen: set[int] = set()
    tensor = getattr(sys.modules.get("torch"), "Tensor", ())
    level = [root for root in roots if not issubclass(type(root), tensor)]
    while level:
        following: list[Any] = []
        for thing in level:
            pause()
            if type(thing) in _LEAVES or id(thing) in seen or issubclass(type(thing), ModuleType):
                continue
            if len(seen) >= MOST_OBJECTS:
                return
            seen.add(id(thing))
            yield thing
            if not (type(thing) in (list, tuple, dict, set, frozenset) and len(thing) > LONGEST):
                following += [one for one in gc.get_referents(thing) if not issubclass(type(one), tensor)]
        level = following


def _note() -> None:
    noted = {id(one) for one in (reference() for reference in _frozen) if one is not None}
    hidden = _of_types(lambda kind: bool(kind.__weakrefoffset__) and kind is not weakref.ref)
    _frozen.extend(weakref.ref(one) for one in hidden if id(one) not in noted)
