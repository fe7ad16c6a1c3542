"""The folder below which a target's run folder is made, so that both dynotune and the target see it.

A target with another root may lie in a container, whose files are chosen by somebody else: a link in them
would lead to files of the host. So its folder for temporary files is opened part by part without following
links, and reached by its descriptor from then on. Run folders are made directly in it, with new names, and
nothing in it is removed but what this dynotune has made.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dynotune.running import process_files
from dynotune.running.process_files import PROC, ProcessFiles
from dynotune.schema import private
from dynotune.schema.errors import CannotRunHere

TEMPORARY = ("tmp", "var/tmp", "dev/shm")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class SharedFolder(NamedTuple):
    """A folder by dynotune's path and by the target's.

    Args:
        is_own: whether it belongs to dynotune's private state, and not to the target's root.
    """

    base: Path
    seen_as: str
    is_own: bool

    def of_target(self, path: Path) -> str:
        """Return a path below `base` as the target sees it."""
        return f"{self.seen_as}/{path.relative_to(self.base)}"


def sees_our_files(process: ProcessFiles, proc: Path = PROC) -> bool:
    """Tell whether a process has dynotune's own root and mounts."""
    folder, ours = proc / str(process.pid), proc / "self"
    return all(
        (found := process_files.link(folder / name)) and found == process_files.link(ours / name)
        for name in ("root", "ns/mnt")
    )


@contextlib.contextmanager
def shared_folder(process: ProcessFiles, proc: Path = PROC) -> Iterator[SharedFolder]:
    """Open the folder until the block ends.

    Raises CannotRunHere: the target's root cannot be entered, or has no folder for temporary files that is
        safe: of root or this user, and sticky where others can write.
    """
    if sees_our_files(process, proc):
        base = private.state_folder() / "joined"
        yield SharedFolder(base, str(base), is_own=True)
        return
    with contextlib.ExitStack() as stack:
        try:
            root = os.open(proc / str(process.pid) / "root", _FOLDER)
        except OSError as error:
            raise _none(process, f"its root cannot be opened ({error.strerror})") from error
        stack.callback(os.close, root)
        for path in TEMPORARY:
            if (found := _opened(root, path)) is not None:
                stack.callback(os.close, found)
                # Other processes of dynotune reach it, too.
                yield SharedFolder(Path(f"/proc/{os.getpid()}/fd/{found}"), f"/{path}", is_own=False)
                return
        raise _none(process, "it has no folder for temporary files of root or yourself that is sticky")


def _opened(root: int, path: str) -> int | None:
    """Open a folder below another one without following links; None if it is not there, or not safe."""
    at = os.dup(root)
    try:
        for name in path.split("/"):
            following = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = following
        if _is_safe(os.fstat(at)) and os.access(f"/proc/self/fd/{at}", os.W_OK | os.X_OK):
            return at
    except OSError:
        pass
    os.close(at)
    return None


def _is_safe(status: os.stat_result) -> bool:
    """Tell whether nobody but root and this user can rename or replace what this user makes in the folder."""
    others_write = bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    return status.st_uid in (0, os.geteuid()) and (not others_write or bool(status.st_mode & stat.S_ISVTX))


def _none(process: ProcessFiles, reason: str) -> CannotRunHere:
    return CannotRunHere(
        f"The agent's files cannot lie where process {process.pid} sees them: {reason}.",
        hint="Run dynotune inside the container of the process.",
    )
