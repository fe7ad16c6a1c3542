"""Replace functions of torch and of the program by covers that look like the originals, also to
torch.compile."""

from __future__ import annotations

import functools
import itertools
import sys
import types
import weakref
from threading import get_ident
from time import perf_counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from .annotations import Function


_NOTHING: Any = object()
"""Stands for an attribute that an owner does not have itself, but at most inherits."""


class Replaced:
    """Attributes that the agent has replaced, and what was there before, so that an agent that leaves can put
    all of it back. An agent that stays until the program's end keeps nothing of it.

    Owners are referred to weakly: an iterator of a loader must end when the program drops it. With an owner
    ends what was put into it and was there before.
    """

    def __init__(self) -> None:
        self.is_kept = False
        self._entries: dict[int, tuple[weakref.ref[Any], str, Any, Any]] = {}
        self._numbers = itertools.count()

    def note(self, owner: Any, name: str, value: Any) -> None:
        if self.is_kept:
            number, entries = next(self._numbers), self._entries
            reference = weakref.ref(owner, lambda _: entries.pop(number, None))
            entries[number] = reference, name, value, vars(owner).get(name, _NOTHING)

    def forget(self, owner: Any, name: str, value: Any) -> None:
        """Forget an attribute that has been put back already."""
        for number, (reference, other, what, _) in reversed(list(self._entries.items())):
            if other == name and what is value and reference() is owner:
                self._entries.pop(number, None)
                return

    def restore(self) -> list[str]:
        """Put everything back, the latest first; return the names of attributes that stay as they are: the
        program has replaced them since, or its class forbids to set them."""
        stay = []
        for number in sorted(self._entries, reverse=True):
            entry = self._entries.pop(number, None)
            if entry is None:
                continue  # its owner has ended meanwhile
            reference, name, value, before = entry
            owner = reference()
            if owner is None:
                continue
            try:
                is_ours = vars(owner).get(name, _NOTHING) is value
                if is_ours and before is _NOTHING:
                    delattr(owner, name)
                elif is_ours:
                    setattr(owner, name, before)
            except Exception:
                is_ours = False
            if not is_ours:
                stay.append("%s.%s" % (_name_of(owner), name))
        return stay


def _name_of(owner: Any) -> str:
    try:
        return str(getattr(owner, "__name__", type(owner).__name__))
    except Exception:
        return type(owner).__name__


replaced = Replaced()


def replace(owner: Any, name: str, value: Any) -> None:
    """Set `owner.name`, which an agent that leaves puts back."""
    replaced.note(owner, name, value)
    setattr(owner, name, value)


def covers(owner: Any, name: str) -> Callable[[Function], Function]:
    """Put the decorated function in place of `owner.name`, under the same name."""

    def put(function: Function) -> Function:
        cover = functools.wraps(getattr(owner, name))(function)
        replace(owner, name, cover)
        return cover  # type: ignore[return-value]

    return put


def uncover(owner: Any, name: str, cover: Any) -> None:
    """Restore the function that `cover` replaced, unless other code has covered the agent's cover."""
    if vars(owner).get(name) is cover:
        setattr(owner, name, cover.__wrapped__)
        replaced.forget(owner, name, cover)


def cover_outermost(
    owner: Any, name: str, busy: set[int], counted: Callable[[int], Any], done: Callable[..., None]
) -> None:
    """Call `done` after each outermost call of `owner.name`.

    Args:
        busy: threads inside such a call; covers that share the set count as one function.
        counted: returns, for a thread, the first argument of `done`; None if its calls do not count.
        done: called with that argument, the time at which the call began (s), and the call's arguments.
    """
    original = getattr(owner, name)

    @covers(owner, name)
    def outermost(*args: Any, **kwargs: Any) -> Any:
        thread = get_ident()
        counts = counted(thread)
        if counts is None or thread in busy:
            return original(*args, **kwargs)
        busy.add(thread)
        begin_s = perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            busy.discard(thread)
            done(counts, begin_s, args)


def on_compilations(callback: Any, register: Callable[[Any], object]) -> None:
    """Register with the handler of `torch._dynamo.callback`, and again after `torch._dynamo.reset()` clears
    it."""
    handler = callback.callback_handler
    forget = type(handler).clear

    @covers(type(handler), "clear")
    def clear(handler_: Any) -> None:
        forget(handler_)
        register(handler_)

    register(handler)


def call_directly(
    call: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call an outermost module as the program wrote the call."""
    return call(module, *args, **kwargs)


def skip_agent_code(eval_frame: Any) -> None:
    """Keep torch.compile from starting at a frame of the agent; inside a traced graph, agent frames are still
    inlined.

    The code is registered with `torch._dynamo.eval_frame` once; functions created later share this code.
    """
    for code in _codes():
        eval_frame.skip_code(code)


def _codes() -> Iterator[types.CodeType]:
    """Yield the code objects of all functions of this package, including nested functions."""
    package = __name__.rsplit(".", 2)[0]
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(package + "."):
            for value in list(vars(module).values()):
                yield from _code_of(value, name)


def _code_of(value: Any, module: str) -> Iterator[types.CodeType]:
    if getattr(value, "__module__", None) != module:
        return
    if isinstance(value, types.FunctionType):
        yield from _inside(value.__code__)
    elif isinstance(value, type):
        for part in vars(value).values():
            function = getattr(part, "__func__", getattr(part, "fget", part))
            if isinstance(function, types.FunctionType):
                yield from _inside(function.__code__)


def _inside(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _inside(constant)
