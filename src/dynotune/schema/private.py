"""Folders that are one user's own, whatever the umask: whoever else writes there could put in code, keys and links."""

import errno
import os
from pathlib import Path

_MODE = 0o700


def state_folder() -> Path:
    """Return the folder of what dynotune keeps for its user: runs, locks, notes, keys."""
    home = os.environ.get("XDG_STATE_HOME", "").strip()
    return Path(home or os.path.expanduser("~/.local/state")) / "dynotune"  # noqa: PTH111 - it raises without a home


def folder(top: Path, *below: str) -> Path:
    """Make the folder `top/below…`, and close `top` and what is below it to all others.

    Raises OSError: it cannot be made, or is another user's: nothing is made in that one.
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
    """Make the folder and those above it that are not there, mode 0700; one that is there stays as it is.

    Raises OSError: it cannot be made.
    """
    for missing in reversed([each for each in (path, *path.parents) if not each.exists()]):
        missing.mkdir(exist_ok=True)
        # Of its own: `mkdir` leaves out what the umask takes, and may be asked to add nothing.
        missing.chmod(_MODE)
    path.mkdir(exist_ok=True)  # or say that it is no folder
