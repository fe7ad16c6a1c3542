"""Let one dynotune at a time look at a program: two recordings, or two samplers, would disturb each other."""

import contextlib
import fcntl
import os
from collections.abc import Iterator

from dynotune.running.process_files import ProcessFiles
from dynotune.schema import private
from dynotune.schema.errors import CannotRunHere, may_fail


@contextlib.contextmanager
def attached(process: ProcessFiles) -> Iterator[None]:
    """Hold the lock of a process until the block ends; the kernel frees it if this dynotune is killed.

    Raises CannotRunHere: another dynotune holds it, or no folder for it can be made.
    """
    with may_fail("make a folder for locks", "Set XDG_STATE_HOME to a folder that can be written."):
        path = private.folder(private.state_folder(), "attached") / f"{process.pid}-{process.start_ticks}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            raise CannotRunHere(
                f"Another dynotune{f' (process {holder})' if holder.isdigit() else ''} looks at process "
                f"{process.pid}.",
                hint="Wait until it has ended; it takes some seconds.",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink()
    finally:
        os.close(descriptor)
