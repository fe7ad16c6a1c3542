"""Check limits of the machine under which Python would hang or crash, and report them in plain words
instead."""

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
HINT = (
    "See `ulimit -u` (processes), `ulimit -v` (memory), `ulimit -n` (open files), `free` and `df`; "
    "--debug shows where this happened."
)


def one_thread_for_numbers() -> None:
    """Keep numpy's BLAS library to one thread: more threads disturb runs, and failing to start them raises
    SIGINT.

    The command does not inherit this limit.
    """
    os.environ["OPENBLAS_NUM_THREADS"] = "1"


def refuse_little_memory() -> None:
    """Refuse an address space so small that loading numpy's BLAS library would hang or abort.

    Raises CannotRunHere if `ulimit -v` allows too little.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    try:
        mmap.mmap(-1, _ROOM_BYTES, prot=mmap.PROT_READ).close()
    except (OSError, MemoryError) as error:
        raise CannotRunHere(
            f"A process may have {limit >> 20} MiB of address space here, too little for dynotune.",
            hint=(
                f"Allow {_ROOM_BYTES >> 20} MiB more, or lift the limit for dynotune alone: ulimit -v "
                "unlimited."
            ),
        ) from error


def of_the_machine(error: Exception) -> DynotuneError | None:
    match error:
        case FileNotFoundError() if _is_gone():
            return CannotRunHere(
                "The working directory is gone.", hint="Change into a folder that exists (cd), and repeat."
            )
        case FileNotFoundError() if str(error.filename).startswith("/proc/"):
            return CannotRunHere(
                f"dynotune reads /proc, and there is no {error.filename} here.",
                hint="Mount /proc, as containers do: mount -t proc proc /proc.",
            )
        case FileNotFoundError() if "No usable temporary directory" in str(error):
            why = "no folder for temporary files can be written (TMPDIR, /tmp)"
        case FileNotFoundError():
            return None
        case OSError():
            why = _SCARCE.get(error.errno or 0) or error.strerror or str(error)
            why += f": {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes) else ""
        case BaseExceptionGroup():  # an error of the library that implements the agents' protocol
            inner = (of_the_machine(each) for each in error.exceptions if isinstance(each, Exception))
            return next((found for found in inner if found is not None), None)
        case MemoryError():
            why = _SCARCE[errno.ENOMEM]
        case RuntimeError() if "can't start new thread" in str(error):
            why = _SCARCE[errno.EAGAIN]
        case _:
            return None
    return CannotRunHere(f"The system refused what dynotune needs: {why}.", hint=HINT)


def _is_gone() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - the call that fails
    except FileNotFoundError:
        return True
    return False
