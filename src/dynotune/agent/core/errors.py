"""The agent's own mistakes: written down, and never the program's concern."""

from __future__ import annotations

import signal

from .annotations import Any, Callable, CodeType

MOST = 20
"""What fails at each step would fill the record."""


class ErrorLog:
    """Log that is called when something of the agent's raised."""

    def __init__(self, event: Callable[[dict[str, Any]], None]) -> None:
        self._event = event
        self._num = 0

    def __call__(self, where: str, error: Exception) -> None:
        """Write it down. What a handler of a signal raised is no mistake: it is the program's, and raised again."""
        if by_a_signal(error):
            raise error
        self._num += 1
        if self._num > MOST:
            return
        try:
            words = str(error)
        except Exception:  # an exception of the program's own may not like to be printed
            words = ""
        self._event({"event": "error", "where": where, "error": "%s: %s" % (type(error).__name__, words)})


def guarded(log: Callable[[str, Exception], None], where: str, function: Callable[..., Any], *args: Any) -> Any:
    """Return what the function gives, or None if it raised; `log` is then told, with the place."""
    try:
        return function(*args)
    except Exception as error:
        log(where, error)
        return None


def by_a_signal(error: Exception) -> bool:
    """Tell whether the program's signal handler raised it, which may happen while any line of ours runs."""
    handlers = set(filter(None, map(_code_of_handler, signal.valid_signals())))
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def _code_of_handler(number: int) -> CodeType | None:
    """Return the code of the Python function that handles it, also if a method, bound to arguments, or an object's."""
    handler: Any = signal.getsignal(number)
    while hasattr(handler, "func"):  # functools.partial
        handler = handler.func
    if not hasattr(handler, "__code__"):
        # Not by getattr: an enum, as SIG_DFL is, would give its metaclass's.
        handler = next((vars(kind)["__call__"] for kind in type(handler).__mro__ if "__call__" in vars(kind)), None)
    return getattr(handler, "__code__", None)
