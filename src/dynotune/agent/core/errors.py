"""Record the agent's own errors, and keep these errors from reaching the program."""

from __future__ import annotations

import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

MOST = 20
"""An error that recurs at each step would otherwise fill the record."""


class ErrorLog:
    """Log that is called with an exception of the agent's own code."""

    def __init__(self, event: Callable[[dict[str, Any]], None]) -> None:
        self._event = event
        self._num = 0

    def __call__(self, where: str, error: Exception) -> None:
        """Record the error. If a signal handler of the program raised the error, raise the error again."""
        if by_a_signal(error):
            raise error
        self._num += 1
        if self._num > MOST:
            return
        try:
            words = str(error)
        except Exception:  # printing the program's own exception may fail
            words = ""
        self._event({"event": "error", "where": where, "error": "%s: %s" % (type(error).__name__, words)})


def guarded(
    log: Callable[[str, Exception], None], where: str, function: Callable[..., Any], *args: Any
) -> Any:
    """Call the function; if the function raises, pass the error and the place to `log` and return None."""
    try:
        return function(*args)
    except Exception as error:
        log(where, error)
        return None


def by_a_signal(error: Exception) -> bool:
    """Tell whether a signal handler of the program raised the error, which may happen during any line of the
    agent."""
    return bool(handlers_of(error))


def handlers_of(error: BaseException) -> list[int]:
    """Return the signals whose handlers in the program raised the error."""
    handlers = {number: _code_of_handler(number) for number in signal.valid_signals()}
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if found := [int(number) for number, handler in handlers.items() if handler is code]:
            return found
        traceback = traceback.tb_next
    return []


def _code_of_handler(number: int) -> CodeType | None:
    """Return the code of a signal handler: of a function, a method, a function with bound arguments, or an
    object."""
    handler: Any = signal.getsignal(number)
    while hasattr(handler, "func"):  # functools.partial
        handler = handler.func
    if not hasattr(handler, "__code__"):
        # Do not use getattr: on an enum such as SIG_DFL it would find the metaclass's method.
        handler = next(
            (vars(kind)["__call__"] for kind in type(handler).__mro__ if "__call__" in vars(kind)), None
        )
    return getattr(handler, "__code__", None)
