"""Errors a user sees: what happened, why, and what to do next."""

from collections.abc import Iterator
from contextlib import contextmanager

FREE_SPACE = "Free some space there, or name another folder with --run-dir."

CONTRADICTIONS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    StopIteration,
    TypeError,
    ValueError,
)
"""Errors of Python that values raise if they have the right types but contradict each other."""


class DynotuneError(Exception):
    """Root of all errors that dynotune raises on purpose.

    `message`: what happened and why, one or two sentences. `hint`: what to do next; "" if there is no advice.
    """

    exit_code = 3
    usual_hint = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.usual_hint


class UsageError(DynotuneError):
    """The command line has a value that does not exist, or options that contradict each other."""

    exit_code = 2


class CannotRunHere(DynotuneError):
    """This machine or this program lacks something that the job needs."""


class StorageLost(CannotRunHere):
    """The database that stores the shared studies does not answer."""


class NoStep(CannotRunHere):
    """The command ran to its end and made no step that is seen."""


class TooLong(CannotRunHere):
    """A run took longer than its time limit, which shows nothing of what it would have given."""


class TooFewSteps(CannotRunHere):
    """The command ends before enough steps were observed. `fewer`: options that ask for fewer steps, or
    ""."""

    def __init__(
        self, made: int, wanted: int, warmup: int, *, what: str = "time", fewer: str = "--steps"
    ) -> None:
        less = f", or ask for fewer with {fewer}." if fewer else "."
        super().__init__(
            f"The command ends after {made} steps: too few to {what} {wanted} after {warmup} of warm-up.",
            hint=f"Let it run longer, at least {warmup + wanted} steps (more epochs, more data){less}",
        )


class RecordError(DynotuneError):
    """A file of dynotune's cannot be read: cut short, damaged, or of an unknown version."""

    usual_hint = "Make it again, or get it again from where it is."


class StatisticsError(DynotuneError):
    """The measured values are insufficient for a conclusion."""


class CommandFailed(DynotuneError):
    """The user's own command failed.

    Args:
        command_exit_code: exit code of the command; minus the signal's number if a signal ended it.
        last_lines: the last lines of the command's stderr, or of stdout if stderr was empty.
    """

    exit_code = 4

    def __init__(
        self, message: str, *, hint: str = "", command_exit_code: int, last_lines: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.command_exit_code = command_exit_code
        self.last_lines = last_lines


@contextmanager
def may_fail(
    what: str, hint: str = FREE_SPACE, kind: type[DynotuneError] = CannotRunHere, *, left: str = ""
) -> Iterator[None]:
    """Run a block that uses the disk. `what`: the block's purpose ("write X"). `left`: the state after a
    failure.

    Raises DynotuneError: the block raised an OSError; the error is a `kind`, with the kernel's reason and
    `hint`.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"Cannot {what}: {error.strerror or error}. {left}".rstrip(), hint=hint) from error


@contextmanager
def from_elsewhere(name: object) -> Iterator[None]:
    """Run a block that works on values of the file `name`, which anyone may have written.

    Raises RecordError: values have the right types but contradict each other, so the block raised a Python
    error.
    """
    try:
        yield
    except CONTRADICTIONS as error:
        raise RecordError(
            f"{name} is damaged: its values contradict each other.",
            hint="Make it again, or get it again from where it is; --debug shows what does not fit.",
        ) from error
