"""Folders that only one user can write to, whatever the umask: other writers could plant code, keys and
links."""

import errno
import os
import tempfile
from pathlib import Path

from dynotune.schema.home import home

_MODE = 0o700


def state_folder() -> Path:
    """Return the folder of dynotune's files for its user: runs, locks, notes, keys.

    A user without a home folder has it among the temporary files.
    """
    state = os.environ.get("XDG_STATE_HOME", "").strip()
    if Path(state).is_absolute():  # the XDG specification says to ignore a relative path
        return Path(state) / "dynotune"
    if (own := home()) is not None:
        return own / ".local" / "state" / "dynotune"
    return Path(tempfile.gettempdir()) / f"dynotune-{os.geteuid()}"


def folder(top: Path, *below: str) -> Path:
    """Make the folder `top/below…`, and close `top` and the folders below it to other users.

    Raises OSError: the folder cannot be made, or belongs to another user; then nothing is made inside it.
    """
    for path in (top, *(top.joinpath(*below[: num + 1]) for num in range(len(below)))):
        make_missing(path)
        status = path.stat()
        if status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, f"{path} belongs to another user", str(path))
        if status.st_mode & 0o077:
            path.chmod(_MODE)
    return path


def make_missing(path: Path) -> None:
    """Make the missing folders of the path with mode 0700; existing folders stay unchanged.

    Raises OSError: a folder cannot be made.
    """
    for missing in reversed([each for each in (path, *path.parents) if not each.exists()]):
        missing.mkdir(exist_ok=True)
        # Separately: `mkdir` removes the umask's bits from the mode.
        missing.chmod(_MODE)
    path.mkdir(exist_ok=True)  # raises if the path is not a folder
