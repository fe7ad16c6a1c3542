"""The program's living objects, with those that it hid from `gc.get_objects()` by `gc.freeze()`."""

from __future__ import annotations

import gc
import weakref

from .covers import covers
from .errors import guarded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .errors import ErrorLog

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


def _note() -> None:
    noted = {id(one) for one in (reference() for reference in _frozen) if one is not None}
    _frozen.extend(
        weakref.ref(one)
        for one in gc.get_objects()
        if type(one).__weakrefoffset__ and type(one) is not weakref.ref and id(one) not in noted
    )
