"""Have the program's main thread call a function between two of its instructions, wherever it is."""

from __future__ import annotations

import ctypes
import os
import signal

from .errors import handlers_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_Call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class PendingCall:
    """A call that another thread asks the main thread for, any number of times, until `cancel`.

    The interpreter may make a call that was asked for at any later time, so what it calls is never freed:
    some hundred bytes stay in the process.
    """

    def __init__(self, function: Callable[[], object]) -> None:
        self._function: Callable[[], object] | None = function
        self._pid, self._is_pending = os.getpid(), False
        self._call = _Call(self._made)
        python = ctypes.PyDLL(None)
        python.Py_IncRef(ctypes.py_object(self._call))
        self._add, self._signal = python.Py_AddPendingCall, python.PyErr_SetInterruptEx

    def ask(self) -> None:
        """Ask for the call, unless it is still to be made."""
        if not self._is_pending and self._function is not None:
            self._is_pending = True
            if self._add(self._call, None):  # too many calls are pending
                self._is_pending = False

    def cancel(self) -> None:
        self._function = None

    def _made(self, _: object) -> int:
        self._is_pending = False
        try:
            if self._function is not None and self._pid == os.getpid():
                self._function()
        except BaseException as error:
            # Only a signal handler of the program raises here, and C code would drop what it raised. So the
            # signal comes once more, as the next pending call: here it would be handled before the return.
            numbers = handlers_of(error)
            if numbers or isinstance(error, KeyboardInterrupt):
                number = next(iter(numbers), int(signal.SIGINT))
                self._add(self._signal, ctypes.c_void_p(number))
        return 0
