"""What the machine does not allow: said in plain words, and where Python would hang or die of it, before that."""

from __future__ import annotations

import errno
import mmap
import os
import resource

from dynotune.schema.errors import CannotRunHere, DynotuneError

_ROOM_BYTES = 512 << 20
_SCARCE = {
    errno.EAGAIN: "no more processes or threads are allowed",
    errno.ENOMEM: "no memory is left",
    errno.EMFILE: "no more open files are allowed",
    errno.ENFILE: "the machine has too many open files",
    errno.ENOSPC: "a disk is full",
    errno.EDQUOT: "a disk's quota is used up",
}
_HINT = "See `ulimit -u` (processes), `ulimit -v` (memory), `ulimit -n` (open files), `free` and `df`."


def one_thread_for_numbers() -> None:
    """Keep numpy's library to one thread: it raises SIGINT where it cannot start more, and they would disturb runs.

    The command does not inherit it.
    """
    os.environ["OPENBLAS_NUM_THREADS"] = "1"


def refuse_little_memory() -> None:
    """Refuse an address space in which numpy's library would spin or abort while it is loaded.

    Raises:
        CannotRunHere: `ulimit -v` allows too little.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    try:
        mmap.mmap(-1, _ROOM_BYTES, prot=mmap.PROT_READ).close()
    except (OSError, MemoryError) as error:
        raise CannotRunHere(
            f"A process may have {limit >> 20} MiB of addresses here, too little for dynotune.",
            hint=f"Allow {_ROOM_BYTES >> 20} MiB more, or lift the limit for dynotune alone: ulimit -v unlimited.",
        ) from error


def of_the_machine(error: Exception) -> DynotuneError | None:
    """The same in plain words, if it is the machine that refused; None if it is a mistake."""
    if isinstance(error, FileNotFoundError) and _is_gone():
        return CannotRunHere(
            "The working directory is gone.", hint="Change into a folder that is there (cd), and repeat."
        )
    if isinstance(error, MemoryError):
        return CannotRunHere(f"dynotune stopped: {_SCARCE[errno.ENOMEM]}.", hint=_HINT)
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return CannotRunHere(f"dynotune stopped: {_SCARCE[errno.EAGAIN]}.", hint=_HINT)
    if isinstance(error, OSError) and error.errno in _SCARCE:
        where = f" ({error.filename})" if error.filename else ""
        return CannotRunHere(f"dynotune stopped: {_SCARCE[error.errno]}{where}.", hint=_HINT)
    return None


def _is_gone() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - the call that fails
    except FileNotFoundError:
        return True
    return False
