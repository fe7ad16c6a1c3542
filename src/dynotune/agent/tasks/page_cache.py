"""Drop the pages of files from the kernel's page cache, as far as dropping needs no privilege."""

from __future__ import annotations

import ctypes
import heapq
import mmap
import os
import stat
from time import perf_counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MOST_S = 10.0
_NUM_PROBED = 32
_LARGEST_PROBED_BYTES = 1 << 30  # mincore needs one byte for each page of the file


def drop() -> dict[str, Any]:
    """Drop pages of files below the working directory, and of files that this process and its children have
    open.

    Return `num_files` and `num_bytes`; of the largest files, `probed_bytes` and `resident_bytes` (still
    cached); the number of files that could not be opened (`num_refused`); and whether all files were reached
    in time (`complete`).
    """
    deadline_s = perf_counter() + MOST_S
    found = {"num_files": 0, "num_bytes": 0, "num_refused": 0, "probed_bytes": 0, "resident_bytes": 0}
    complete = True
    largest: list[tuple[int, str]] = []
    for path in _files():
        if perf_counter() > deadline_s:
            complete = False
            break
        size = _drop_file(path)
        if size is None:
            found["num_refused"] += 1
        elif size:
            found["num_files"] += 1
            found["num_bytes"] += size
            if size <= _LARGEST_PROBED_BYTES:
                heapq.heappush(largest, (size, path))
                if len(largest) > _NUM_PROBED:
                    heapq.heappop(largest)
    for size, path in largest:
        resident = _resident_bytes(path)
        if resident is not None:
            found["probed_bytes"] += size
            found["resident_bytes"] += min(size, resident)
    return {**found, "complete": complete}


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
    """Yield the regular files that this process and its children have open."""
    for pid in _with_children():
        folder = "/proc/%d/fd" % pid
        try:
            numbers = os.listdir(folder)
        except OSError:  # the process has ended
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
    except (OSError, ValueError):  # a kernel that does not report it
        pass
    return pids


def _drop_file(path: str) -> int | None:
    """Drop a file's pages and return its size in bytes; 0 for no regular content, None if it cannot be
    opened."""
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


def _resident_bytes(path: str) -> int | None:
    """Return how many bytes of a file are in the page cache; None if the kernel does not report the number.

    The kernel is asked about a mapping of the file, because reading with RWF_NOWAIT makes new kernels read
    ahead. For files without write permission, the kernel reports all pages as resident.
    """
    if not os.access(path, os.W_OK):
        return None
    try:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        with mmap.mmap(number, 0, access=mmap.ACCESS_COPY) as view:
            pages = (ctypes.c_ubyte * -(-len(view) // mmap.PAGESIZE))()
            first = ctypes.c_char.from_buffer(view)
            failed = ctypes.CDLL(None).mincore(
                ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(view)), pages
            )
            del first  # or the view could not be closed
            return None if failed else sum(page & 1 for page in pages) * mmap.PAGESIZE
    except (OSError, ValueError, AttributeError):
        return None
    finally:
        os.close(number)
