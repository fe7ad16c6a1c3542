"""Apply `--step-function module:function`: a step ends whenever that function returns."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import weakref
from time import perf_counter

from ..core.covers import covers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType
    from typing import Any

    from ..core.annotations import Log
    from ..core.hooks import AfterImport

_wrappers: weakref.WeakSet[Any] = weakref.WeakSet()


def _is_compiling() -> bool:
    return False  # until torch is imported


def torch_is_here(torch: Any, ended: Callable[[float], None]) -> None:
    """Begin after torch is imported; a compiled marked function ends a step, except inside another graph."""
    global _is_compiling
    _is_compiling = torch.compiler.is_compiling
    original = torch.compile

    @covers(torch, "compile")
    def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(model, types.FunctionType) and model in _wrappers:
            return _marking(original(vars(model)["__wrapped__"], *args, **kwargs), ended)
        return original(model, *args, **kwargs)


def wrap_function(target: str, hooks: AfterImport, ended: Callable[[float], None], log: Log) -> None:
    """Wrap `module:function` or `module:Class.method` as soon as the function exists."""
    module_name, _, path = target.partition(":")
    names = path.split(".")
    if module_name == "__main__":
        _wait_in_main(names, ended, log)
    else:
        hooks.call(module_name, lambda module: _wrap(module, names, ended))


def _wrap(module: ModuleType, names: list[str], ended: Callable[[float], None]) -> None:
    owner: Any = module
    for name in names[:-1]:
        owner = getattr(owner, name)
    found = inspect.getattr_static(owner, names[-1]) if isinstance(owner, type) else getattr(owner, names[-1])
    kind = type(found) if isinstance(found, (classmethod, staticmethod)) else None
    function = found.__func__ if kind else found
    if not callable(function):
        raise TypeError("%s is no function" % ".".join(names))

    wrapped = _marking(function, ended)
    setattr(owner, names[-1], kind(wrapped) if kind else wrapped)


def _marking(function: Callable[..., Any], ended: Callable[[float], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if _is_compiling():
            return function(*args, **kwargs)
        begin_s = perf_counter()
        result = function(*args, **kwargs)
        ended(begin_s)
        return result

    _wrappers.add(wrapped)
    return wrapped


def _wait_in_main(names: list[str], ended: Callable[[float], None], log: Log) -> None:
    """Wait for a function of the script itself, which is defined while the script runs, not by an import.

    A profile function watches calls until the first call of the named function, wraps it for later calls, and
    removes itself. The profile function also reports the first call's return.
    """
    waiting: dict[str, FrameType] = {}
    begun: list[float] = []

    def watch(frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == names[-1] and frame.f_globals.get("__name__") == "__main__":
            if not waiting and _is_named(frame, names):
                waiting["frame"] = frame
                begun.append(perf_counter())
        elif event == "return" and frame is waiting.get("frame"):
            sys.setprofile(None)
            try:
                ended(begun[0])
                _wrap(sys.modules["__main__"], names, ended)
            except Exception as error:
                log("--step-function", error)

    sys.setprofile(watch)


def _is_named(frame: FrameType, names: list[str]) -> bool:
    owner: Any = sys.modules["__main__"]
    for name in names:
        owner = getattr(owner, name, None)
    owner = getattr(owner, "__func__", owner)
    return getattr(owner, "__code__", None) is frame.f_code
