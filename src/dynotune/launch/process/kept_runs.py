"""Run folders that are kept: whether one is in use, and its removal.

Whoever makes or resumes a run holds a shared lock on its folder, of which the kernel lets go with the process. The
processes of the run itself are known by the mark in their environment.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from dynotune.launch.process import processes
from dynotune.launch.process.leases import MARK, size_bytes
from dynotune.schema.errors import UsageError, may_fail

_MOST_HELD = 16
_held: list[int] = []


def hold(folder: Path) -> None:
    """Hold the folder for the life of this process, or until it has held 16 later ones."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _held.append(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    if len(_held) > _MOST_HELD:
        os.close(_held.pop(0))


def in_use(folders: Iterable[Path]) -> set[Path]:
    """Return the folders that a process holds, or that a run of which processes are left has, in them or below them."""
    marked: set[Path] = set()
    for process in processes.everyone():
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                if entry.startswith(MARK.encode() + b"="):
                    path = Path(os.fsdecode(entry.partition(b"=")[2]))
                    marked.update((path, *path.parents))
    return {folder for folder in folders if folder in marked or _is_held(folder)}


def _is_held(folder: Path) -> bool:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def remove_run(folder: Path) -> int:
    """Remove a run folder; returns how many bytes that freed. Links in it are removed, not followed.

    Raises:
        UsageError: it is a link or no folder, or a process uses it.
        CannotRunHere: something in it cannot be removed.
    """
    if folder.is_symlink() or not folder.is_dir():
        raise UsageError(f"{folder} is not the folder of a run.", hint="dynotune runs lists them.")
    if in_use([folder]):
        raise UsageError(f"The run {folder.name} is still in use.", hint="Wait for its end, or end it; then repeat.")
    num_bytes = size_bytes(folder)
    with may_fail(f"remove {folder}", "Check who owns what is in it."):
        shutil.rmtree(folder)
    return num_bytes
