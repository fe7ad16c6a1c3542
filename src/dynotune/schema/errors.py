"""Errors a user sees: what happened, why, and what to do next."""

from collections.abc import Iterator
from contextlib import contextmanager


class DynotuneError(Exception):
    """Root of all errors that dynotune raises on purpose.

    `message`: what happened and why, one or two sentences. `hint`: what to do next; empty when there is nothing to say.
    """

    exit_code = 3
    usual_hint = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.usual_hint


class UsageError(DynotuneError):
    """The command line asks for something that does not exist or does not fit together."""

    exit_code = 2


class CannotRunHere(DynotuneError):
    """This machine or this program lacks something that the job needs."""


class StorageLost(CannotRunHere):
    """The database of the studies does not answer."""


class TooFewSteps(CannotRunHere):
    """The command makes steps, and ends before enough of them were seen."""


class RecordError(DynotuneError):
    """A file of ours cannot be read: cut short, damaged, or of a version we do not know."""

    usual_hint = "Make it again, or get it again from where it is."


class StatisticsError(DynotuneError):
    """The measured values cannot carry a statement; so none is made."""


class CommandFailed(DynotuneError):
    """The user's own command failed.

    Args:
        command_exit_code: its exit code; minus the signal's number when a signal ended it.
        last_lines: the end of what it printed to stderr, or to stdout when stderr was empty.
    """

    exit_code = 4

    def __init__(
        self, message: str, *, hint: str = "", command_exit_code: int, last_lines: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.command_exit_code = command_exit_code
        self.last_lines = last_lines


FREE_SPACE = "Free some space there, or name another folder with --run-dir."


@contextmanager
def may_fail(
    what: str, hint: str = FREE_SPACE, kind: type[DynotuneError] = CannotRunHere, *, left: str = ""
) -> Iterator[None]:
    """Do `what` with the disk: "write X". `left`: a sentence on what is there after it failed.

    Raises DynotuneError: of `kind`, in place of an OSError, with the kernel's reason and the hint.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"Cannot {what}: {error.strerror or error}. {left}".rstrip(), hint=hint) from error


CONTRADICTIONS = (ArithmeticError, AttributeError, LookupError, RecursionError, StopIteration, TypeError, ValueError)


@contextmanager
def from_elsewhere(name: object) -> Iterator[None]:
    """Work on values of the file `name`, which anyone may have written.

    Raises RecordError: in place of what Python raises where values are of the right types and contradict each other.
    """
    try:
        yield
    except CONTRADICTIONS as error:
        raise RecordError(
            f"{name} is damaged: its values contradict each other.",
            hint="Make it again, or get it again from where it is; --debug shows what does not fit.",
        ) from error
