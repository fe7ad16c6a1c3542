"""Find the calls that a module makes to itself, and compile only these."""

from __future__ import annotations

import functools
import types
from threading import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_PLAIN = (int, float, bool, complex, type(None))


class OwnCalls:
    """Calls that a module's `forward` makes to the module itself, during the module's first call.

    `once_in_tensors` is true if `forward` called the module exactly once, with only tensors, without further
    calls inside. Several calls would each begin a step of CUDA graphs, which overwrites the results of the
    previous call.
    """

    def __init__(self, module: Any, tensor: type) -> None:
        outer: list[tuple[int, bool]] = []
        inner: list[bool] = []

        def watched(forward: Any, args: Any, kwargs: Any) -> Any:
            plain, thread = _is_plain((args, kwargs), tensor), get_ident()
            if outer:
                if outer[0][0] == thread:
                    inner.append(plain)
                return forward(*args, **kwargs)
            outer.append((thread, plain))
            try:
                return forward(*args, **kwargs)
            finally:
                self.end()

        self._outer, self._inner = outer, inner
        self._cover = Cover(module, watched)
        self._cover.put_on()

    @property
    def once_in_tensors(self) -> bool:
        return [plain for _, plain in self._outer] == [False] and self._inner == [True]

    def end(self) -> None:
        self._cover.take_off()


class CompiledInside:
    """Stand in for a module's compiled call: call the module as written, but with `compiled` in place of
    `forward` if all inputs are tensors. If the program has replaced `forward` meanwhile, call the
    replacement.
    """

    def __init__(self, module: Any, compiled: Callable[..., Any], tensor: type) -> None:
        def inside(forward: Any, args: Any, kwargs: Any) -> Any:
            return (compiled if _is_plain((args, kwargs), tensor) else forward)(*args, **kwargs)

        self._module = module
        self._cover = Cover(module, inside)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._cover.put_on():
            return self._module._call_impl(*args, **kwargs)
        try:
            return self._module._call_impl(*args, **kwargs)
        finally:
            self._cover.take_off()


class Cover:
    """Call `call(forward, args, kwargs)` in place of a module's `forward`.

    The cover is a method: if a hook copies or saves the module in a call, the copy has its own cover, and a
    pickle finds the cover by name.

    Raises AttributeError: the module's `forward` is not a method.
    """

    def __init__(self, module: Any, call: Callable[..., Any]) -> None:
        forward = module.forward
        plain = forward.__func__

        @functools.wraps(plain)
        def covered(self: Any, *args: Any, **kwargs: Any) -> Any:
            return call(forward, args, kwargs) if self is module else plain(self, *args, **kwargs)

        self._module, self._forward = module, forward
        self._was_own = "forward" in module.__dict__
        self._covered = types.MethodType(covered, module)

    def put_on(self) -> bool:
        """Wrap `forward`, unless other code has replaced `forward` before; return whether `forward` is
        wrapped."""
        if self._module.forward != self._forward:
            return False
        self._module.__dict__["forward"] = self._covered
        return True

    def take_off(self) -> None:
        own = self._module.__dict__
        if own.get("forward") is not self._covered:
            return
        if self._was_own:
            own["forward"] = self._forward
        else:
            own.pop("forward", None)


def _is_plain(value: Any, tensor: type) -> bool:
    """Tell whether the value has only tensors and numbers, which a graph accepts."""
    try:
        return _holds_plain(value, tensor)
    except Exception:  # a batch of the program's own class may run any code
        return False


def _holds_plain(value: Any, tensor: type) -> bool:
    if isinstance(value, (tensor, *_PLAIN)):
        return True
    if isinstance(value, (list, tuple)):
        return all(_holds_plain(item, tensor) for item in value)
    return isinstance(value, dict) and all(_holds_plain(item, tensor) for item in dict.values(value))
