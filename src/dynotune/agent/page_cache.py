"""Drops the pages of files from the kernel's cache, as far as that takes no privilege."""

from __future__ import annotations

import os
import stat
from time import perf_counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MOST_S = 10.0
_NUM_PROBED = 32
_PAGE_BYTES = 4096


def drop() -> dict[str, Any]:
    """Of the files below the working directory, and of those that this process and its children have open.

    Gives `num_files`, `num_bytes`, `num_probed` of them and `num_resident` of these that are cached all the same, and
    whether all were reached in time (`complete`).
    """
    deadline_s = perf_counter() + MOST_S
    found = {"num_files": 0, "num_bytes": 0, "num_refused": 0, "num_probed": 0, "num_resident": 0, "complete": True}
    probed: list[str] = []
    for path in _files():
        if perf_counter() > deadline_s:
            found["complete"] = False
            break
        size = _drop_file(path)
        if size is None:
            found["num_refused"] += 1
        elif size:
            found["num_files"] += 1
            found["num_bytes"] += size
            # The largest are what is read; in place of a sort, each one larger than all before, then some of the rest.
            if len(probed) < _NUM_PROBED:
                probed.append(path)
    for path in probed:
        resident = _is_resident(path)
        if resident is not None:
            found["num_probed"] += 1
            found["num_resident"] += resident
    return found


def _files() -> Iterator[str]:
    seen: set[str] = set()
    for path in _open_files():
        if path not in seen:
            seen.add(path)
            yield path
    for folder, folders, names in os.walk(os.getcwd()):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = os.path.join(folder, name)
            if path not in seen:
                yield path


def _open_files() -> Iterator[str]:
    """Regular files that this process and its children have open."""
    for pid in _with_children():
        folder = "/proc/%d/fd" % pid
        try:
            numbers = os.listdir(folder)
        except OSError:  # it has ended
            continue
        for number in numbers:
            try:
                path = os.readlink("%s/%s" % (folder, number))
            except OSError:
                continue
            if path.startswith("/") and not path.startswith(("/dev/", "/proc/", "/sys/")):
                yield path


def _with_children() -> list[int]:
    pids = [os.getpid()]
    try:
        for task in os.listdir("/proc/self/task"):
            with open("/proc/self/task/%s/children" % task, encoding="ascii") as file:
                pids += [int(pid) for pid in file.read().split()]
    except (OSError, ValueError):  # a kernel that does not tell
        pass
    return pids


def _drop_file(path: str) -> int | None:
    """Its size; 0 for what is no file with content, None where it cannot be opened."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return 0
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        size = os.fstat(number).st_size
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        return size
    except OSError:
        return None
    finally:
        os.close(number)


def _is_resident(path: str) -> bool | None:
    """Whether its middle page is cached; None where the file system does not tell."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        offset = os.fstat(number).st_size // 2 // _PAGE_BYTES * _PAGE_BYTES
        os.preadv(number, [bytearray(1)], offset, os.RWF_NOWAIT)
        return True
    except BlockingIOError:
        return False
    except (OSError, AttributeError):
        return None
    finally:
        os.close(number)
