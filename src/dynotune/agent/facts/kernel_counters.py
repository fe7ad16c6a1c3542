"""Read the kernel's counters of this process: bytes that it read, and memory of its own."""

from __future__ import annotations

import os


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
