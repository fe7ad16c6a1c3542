"""Write a file whole or not at all: a reader, or a disk that fills up, never meets half of it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

__all__ = ["probe", "write"]

# The folder takes no new file, or the file is a mount of its own, as containers have: writing in place may still work.
_IN_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)


def write(path: Path, content: bytes) -> None:
    """Write `content` to `path` through a file beside it that then takes its place.

    Links are followed, and an existing file keeps its mode. A pipe, a device and an open descriptor (/dev/stdout) are
    written to directly. So is a file that no other can replace; this one alone may be left half written.

    Raises:
        OSError: as `open`; the file that was there before is still there.
    """
    mode = _mode(path)
    if mode is not None and (not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or _is_descriptor(path)):
        path.write_bytes(content)
        return
    path = path.resolve()
    partial = path.with_name(path.name + ".partial")
    try:
        partial.unlink(missing_ok=True)  # of a process that was killed, or a link that somebody planted
        with partial.open("xb") as file:
            file.write(content)
        if mode is not None:
            partial.chmod(stat.S_IMODE(mode))
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if error.errno not in _IN_PLACE or mode is None or not stat.S_ISREG(mode):
            raise
        path.write_bytes(content)


def probe(path: Path) -> None:
    """Make sure that `write` can begin: make a file there and take it away again, or open the one that is there.

    Raises:
        OSError: as `write` would.
    """
    mode = _mode(path)
    if mode is None:
        path = path.resolve()
        partial = path.with_name(path.name + ".partial")
        partial.unlink(missing_ok=True)
        partial.open("xb").close()
        partial.unlink()
    elif stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        path.open("ab").close()
    elif not os.access(path, os.W_OK):  # to open a pipe would wait for its reader
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _is_descriptor(path: Path) -> bool:
    """Whether the path names an open file of this process, which whoever holds it goes on writing to."""
    return path.absolute().parts[1:2] in (("dev",), ("proc",))


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None
