"""Errors of the runtime: what happened, why, and what to do next."""

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
    """Root of all errors that the runtime raises on purpose.

    Args:
        message: what happened and why, one or two sentences.
        hint: what to do next; empty when there is nothing to say.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}\n{hint}" if hint else message)
        self.message = message
        self.hint = hint


class InputError(DynotuneRuntimeError, ValueError):
    """An argument cannot be used: its shape, dtype, device or type."""


class TooLargeError(InputError):
    """Something is larger than the room that was made for it."""


class DeviceError(DynotuneRuntimeError, RuntimeError):
    """The device that was asked for cannot be used here."""


class ClosedError(DynotuneRuntimeError, RuntimeError):
    """Used after `close()`."""


class ForkedError(DynotuneRuntimeError, RuntimeError):
    """Used in a child that was forked after it was made: CUDA does not survive a fork."""


class PoolExhausted(DynotuneRuntimeError, RuntimeError):
    """Every buffer that the bound allows is lent."""


class CaptureError(DynotuneRuntimeError, RuntimeError):
    """A CUDA graph cannot be captured, or a call cannot be part of one."""


class NumericsError(DynotuneRuntimeError, ArithmeticError):
    """Results are not finite, or differ from the eager model's by more than the tolerance."""


class SourceError(DynotuneRuntimeError, RuntimeError):
    """A source of frames raised; the cause is chained."""
