"""Replace functions of torch and of the program by covers that look like the originals."""

from __future__ import annotations

import functools

from .annotations import Any, Callable, Function


def covers(owner: Any, name: str) -> Callable[[Function], Function]:
    """Put the decorated function in place of `owner.name`, under the same name."""

    def put(function: Function) -> Function:
        cover = functools.wraps(getattr(owner, name))(function)
        setattr(owner, name, cover)
        return cover  # type: ignore[return-value]

    return put


def uncover(owner: Any, name: str, cover: Any) -> None:
    """Restore the function that `cover` replaced, unless other code has covered the agent's cover."""
    if vars(owner).get(name) is cover:
        setattr(owner, name, cover.__wrapped__)


def on_compilations(callback: Any, register: Callable[[Any], object]) -> None:
    """Register with the handler of `torch._dynamo.callback`, and again after `torch._dynamo.reset()` clears it."""
    handler = callback.callback_handler
    forget = type(handler).clear

    def clear(handler_: Any) -> None:
        forget(handler_)
        register(handler_)

    register(handler)
    type(handler).clear = clear


def call_directly(call: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an outermost module as the program wrote the call."""
    return call(module, *args, **kwargs)
