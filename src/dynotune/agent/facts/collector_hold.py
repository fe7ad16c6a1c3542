"""Keep Python's garbage collector off while a thread of the agent runs, so that it collects nothing there.

A collection runs in the thread whose allocation reaches a threshold, in Python 3.12 in whichever thread looks
for pending work next. So finalizers of the program's objects would run in a thread that the program does not
know.

What must not be divided is one call of a function in C that calls only functions in C: meanwhile Python runs
no other thread, except where a function waits, and collects nothing.
"""

from __future__ import annotations

import gc
from itertools import chain, starmap
from operator import getitem, methodcaller

from ..core.covers import covers, uncover

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any


def at_once(*steps: Iterator[Any]) -> list[Any]:
    """Return what the iterators yield, without another thread's turn in between if all are made of functions
    in C."""
    found: list[Any] = []
    found.extend(chain(*steps))
    return found


class CollectorHold:
    """Hold of the collector by one thread at a time.

    Python may give the program a turn while the collector is held. So `gc.enable`, `gc.disable` and
    `gc.isenabled` are covered: the program reads what it set, and finds it when the hold ends.
    """

    def __init__(self) -> None:
        self._enable, self._disable, self._is_enabled = gc.enable, gc.disable, gc.isenabled
        self._is_held = False
        self._is_on = False  # for the program, while the collector is held
        self._covers: list[tuple[str, Any]] = []

    def cover(self) -> None:
        @covers(gc, "enable")
        def enable() -> None:
            by_held = (self._enable, self._disable)
            at_once(self._set("_is_on", True), _call(map(getitem, (by_held,), self._get("_is_held"))))

        @covers(gc, "disable")
        def disable() -> None:
            at_once(self._set("_is_on", False), starmap(self._disable, ((),)))

        @covers(gc, "isenabled")
        def isenabled() -> bool:
            states = (starmap(self._is_enabled, ((),)), self._get("_is_on"), self._get("_is_held"))
            is_enabled, is_on, is_held = at_once(*states)
            return bool(is_on if is_held else is_enabled)

        self._covers = [("enable", enable), ("disable", disable), ("isenabled", isenabled)]

    def uncover(self) -> None:
        for name, cover in self._covers:
            uncover(gc, name, cover)

    def begin(self) -> None:
        at_once(*self._begin())

    def end(self) -> None:
        """End the hold, if there is one."""
        if self._is_held:
            at_once(*self._end())

    def while_off(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in C, which waits, without the hold. `args` are positional."""
        return at_once(*self._end(), starmap(function, (args,)), *self._begin())[2]

    def _begin(self) -> list[Iterator[Any]]:
        is_on = map(setattr, (self,), ("_is_on",), starmap(self._is_enabled, ((),)))
        return [chain(is_on, self._set("_is_held", True)), starmap(self._disable, ((),))]

    def _end(self) -> list[Iterator[Any]]:
        by_on = (self._disable, self._enable)
        return [self._set("_is_held", False), _call(map(getitem, (by_on,), self._get("_is_on")))]

    def _set(self, name: str, value: bool) -> Iterator[None]:
        return starmap(setattr, ((self, name, value),))

    def _get(self, name: str) -> Iterator[bool]:
        return map(getattr, (self,), (name,))


def _call(functions: Iterator[Callable[[], Any]]) -> Iterator[Any]:
    return map(methodcaller("__call__"), functions)
