"""Define the runtime's errors: what happened, why, and what to do next."""

__all__ = [
    "CaptureError",
    "ClosedError",
    "DeviceError",
    "DynotuneRuntimeError",
    "ForkedError",
    "InputError",
    "NumericsError",
    "PoolExhausted",
    "SourceError",
    "TooLargeError",
]


class DynotuneRuntimeError(Exception):
    """Base class of all errors that the runtime raises on purpose.

    Args:
        message: what happened and why, in one or two sentences.
        hint: what to do next; may be empty.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}\n{hint}" if hint else message)
        self.message = message
        self.hint = hint


class InputError(DynotuneRuntimeError, ValueError):
    """An argument cannot be used because of its shape, dtype, device or type."""


class TooLargeError(InputError):
    """An argument is larger than the buffer that was made for it."""


class DeviceError(DynotuneRuntimeError, RuntimeError):
    """The requested device cannot be used here."""


class ClosedError(DynotuneRuntimeError, RuntimeError):
    """The object was used after `close()`."""


class ForkedError(DynotuneRuntimeError, RuntimeError):
    """The object was used in a child that was forked after the object was made: CUDA does not survive a
    fork."""


class PoolExhausted(DynotuneRuntimeError, RuntimeError):
    """The pool has lent all buffers that its bound allows."""


class CaptureError(DynotuneRuntimeError, RuntimeError):
    """A CUDA graph cannot be captured, or a call cannot be part of one."""


class NumericsError(DynotuneRuntimeError, ArithmeticError):
    """Results are not finite, or differ from the eager model's by more than the tolerance."""


class SourceError(DynotuneRuntimeError, RuntimeError):
    """A source of frames raised an exception, which is chained."""
