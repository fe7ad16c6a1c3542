"""Open files that anyone may have written.

Only ordinary files are opened: a pipe makes its reader wait, and a device may never end. Every reader of the
parent uses this module, except for files of the package itself, of the kernel, and of the user's own state
folder (`tests/test_untrusted.py` lists these).
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

LARGEST_BYTES = 1 << 30


@contextlib.contextmanager
def opened(path: Path, *, link: bool = True) -> Iterator[BufferedReader]:
    """Open an ordinary file, or an open descriptor (/dev/stdin), for reading; never wait for another process.

    Args:
        link: whether `path` may be a link. False for names that dynotune or its agent chose, in a folder to
            which the command or other users write: there a link leads to a file that the reader was not
            given.

    Raises OSError: the file cannot be opened, or is a folder, a pipe, a device or a refused link.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | (0 if is_descriptor(path) else os.O_NONBLOCK)
    try:
        descriptor = os.open(path, flags | (0 if link else os.O_NOFOLLOW))
    except OSError as error:
        if not link and error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link") from error
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) and not (stat.S_ISFIFO(mode) and is_descriptor(path)):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        raise OSError(errno.EINVAL, "it is not an ordinary file")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def read(path: Path, largest: int = LARGEST_BYTES, *, link: bool = True) -> bytes:
    """Read a whole file of at most `largest` bytes. Raises OSError: as `opened`, or the file is larger."""
    with opened(path, link=link) as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise OSError(errno.EFBIG, f"it is larger than {size_limit(largest)}")
    return content


def piece(path: Path, begin: int, num_bytes: int, *, link: bool = True) -> bytes:
    """Read at most `num_bytes` bytes of a file that may still grow, from the offset `begin` on.

    A negative offset counts from the end of the file. Raises OSError: as `opened`.
    """
    with opened(path, link=link) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        begin = max(0, size_bytes + begin) if begin < 0 else begin
        file.seek(begin)
        # Reading makes room for all bytes that are asked for, though the file may have few.
        return file.read(min(num_bytes, max(0, size_bytes - begin)))


def is_ordinary(path: Path) -> bool:
    """Return whether `path` is an ordinary file, and not a link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def size_limit(num_bytes: int) -> str:
    """Write a limit of size: `4 KiB`, `1024 MiB`; small ones in bytes."""
    for unit, power in (("MiB", 20), ("KiB", 10)):
        if num_bytes >= 1 << power:
            return f"{num_bytes >> power} {unit}"
    return f"{num_bytes} bytes"


def is_descriptor(path: Path) -> bool:
    """Return whether the path names a file descriptor that this process has open, such as /dev/stdout."""
    return path.absolute().parts[1:2] in (("dev",), ("proc",))
