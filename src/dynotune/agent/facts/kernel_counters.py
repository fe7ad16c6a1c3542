"""Read the kernel's counters: bytes that this process read, its own memory, and page faults of a thread."""

from __future__ import annotations

import os
import resource

# Only Linux counts for a thread; the threads of a worker besides the one that makes batches do little.
_WHOSE = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


def bytes_read() -> dict[str, int]:
    """Return the bytes that this process has read so far, in total and from storage.

    The result is empty if the kernel does not count them.
    """
    try:
        with open("/proc/self/io", encoding="ascii") as file:
            words = file.read().split()
        read, stored = (int(words[words.index(name) + 1]) for name in ("rchar:", "read_bytes:"))
    except (OSError, ValueError, IndexError):
        return {}
    # No read call covers mapped files.
    return {"read_bytes": max(read, stored), "storage_bytes": stored}


def faults() -> tuple[int, float]:
    """Return the page faults without a disk of the calling thread so far, and its time (s) in the kernel.

    The first write to a page that a fork left shared is such a fault: the kernel copies the page.
    """
    used = resource.getrusage(_WHOSE)
    return used.ru_minflt, used.ru_stime


def private_bytes() -> int | None:
    """Return the bytes that this process has allocated or written since its fork.

    The result is None if the kernel does not report them.
    """
    try:
        with open("/proc/self/smaps_rollup", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("Private_Dirty:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def resident_bytes() -> int:
    """Return resident memory in bytes without files and shared memory.

    Batches of workers wait in shared memory for their use.
    """
    with open("/proc/self/statm", encoding="ascii") as file:
        _, resident, shared = file.read().split()[:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
