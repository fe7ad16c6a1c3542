"""Write a file whole or not at all: neither a reader nor a full disk leaves half a file."""

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from dynotune.schema import untrusted

# Errors if the folder takes no new file, or if the file is itself a mount, as in containers: writing in place
# may work.
_IN_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)


def write(path: Path, content: bytes, *, own_name: bool = False) -> None:
    """Write `content` to a temporary file beside `path`, which then replaces `path`.

    Links are followed. An existing file keeps its mode, and its owner where that is permitted. A pipe, a
    device, an open descriptor (/dev/stdout), and a file that cannot be replaced are written in place, so a
    failure may leave them half written.

    Args:
        own_name: whether dynotune chose the name, in a folder that other users may write to: then anything at
            `path` except an ordinary file, above all a link, is replaced.

    Raises:
        OSError: the file cannot be written; the old file is still there.
    """
    if own_name:
        path = path.parent.resolve() / path.name
    before = _stat(path, follow_symlinks=not own_name)
    mode = None if before is None else before.st_mode
    if own_name and mode is not None and not stat.S_ISREG(mode):
        before = mode = None
    if mode is not None and (not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or untrusted.is_descriptor(path)):
        path.write_bytes(content)
        return
    if not own_name:
        path = path.resolve()
    partial = _beside(path)
    try:
        _write_new(partial, content, before)
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if error.errno not in _IN_PLACE or mode is None or not stat.S_ISREG(mode):
            raise
        path.write_bytes(content)


def _write_new(partial: Path, content: bytes, like: os.stat_result | None) -> None:
    """Write a new file. Nobody else reads it before it has the mode of the file that it replaces."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(partial, flags, 0o666 if like is None else 0o600), "wb") as file:  # noqa: PTH123
        file.write(content)
        if like is None:
            return
        file.flush()
        made = os.fstat(file.fileno())
        for owner, group in ((-1, like.st_gid), (like.st_uid, -1)):
            if owner not in (-1, made.st_uid) or group not in (-1, made.st_gid):
                with contextlib.suppress(PermissionError):
                    os.fchown(file.fileno(), owner, group)
        os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode))


def probe(path: Path) -> None:
    """Check that `write` can begin: create and delete a file beside `path`, or open the existing file.

    Raises OSError: as `write` would.
    """
    found = _stat(path)
    mode = None if found is None else found.st_mode
    if mode is None:
        partial = _beside(path.resolve())
        partial.open("xb").close()
        partial.unlink()
    elif stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        path.open("ab").close()
    elif not os.access(path, os.W_OK):  # opening a pipe would wait for its reader
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _beside(path: Path) -> Path:
    """Return an unused file name in the folder of `path`; nobody can predict the name and put a link
    there."""
    return path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.partial")


def _stat(path: Path, *, follow_symlinks: bool = True) -> os.stat_result | None:
    try:
        return path.stat(follow_symlinks=follow_symlinks)
    except FileNotFoundError:
        return None
