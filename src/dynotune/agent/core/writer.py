"""Write the record of one process: a memory-mapped file of steps and events.

A mapping survives `os._exit` and SIGKILL, and needs no open file descriptor, which the program could close or
reuse. Blocks are reserved before they are mapped, so a full disk stops the record, not the program (holes in
a mapped file cause SIGBUS).

Layout, little-endian: a header of 32 bytes (magic, version, header size, pid, start), then records, each
aligned to 8
bytes: payload size u32, kind u16, zero u16, payload. The head of an event is written last; a size of zero
ends the file. A step's payload is its loader wait f64, samples i64, flags u64 and its end f64, which is
written last.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import struct
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAGIC = b"DYNOREC\0"
VERSION = 1
STEP = 1
EVENT = 2

# Flags of a step, which name events in it.
COMPILED, ALLOCATED, EPOCH, GARBAGE = 1, 2, 4, 8

_FILE_HEAD = struct.Struct("<8sHHIdQ")
_HEAD = struct.Struct("<IHH")
_STEP = struct.Struct("<dqQd")
_STEP_RECORD = struct.Struct("<IHHdqQdQ")  # including its head and the zero that ends the file
_STEP_BYTES = _HEAD.size + _STEP.size
_FIRST_BYTES = 64 * 1024
_LAST_BYTES = 64 * 1024 * 1024


class Writer:
    """Write steps and events to a separate file in `folder`; stop silently when writing fails.

    `plan`: names the secrets to remove from events. `pid`: the process's id as the reader sees it; None for
        the process's own view.
    """

    def __init__(self, folder: str, plan: dict[str, Any] | None = None, pid: int | None = None) -> None:
        self._folder, self._pid = folder, pid
        # Of a program that runs already, forks by C code are not seen: they must not write in this file.
        self._owner = None if pid is None else os.getpid()
        self._hints: list[str] = (plan or {}).get("secret_hints", [])
        self._rolls = bool((plan or {}).get("watched"))
        self._patterns: list[str] = (plan or {}).get("secret_patterns", [])
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget the mapping of the parent's file; the forked process's own file begins with its first
        event."""
        self._lock = threading.RLock()
        self._waiting: list[tuple[int, bytes]] = []
        self._writing = False
        self._map: memoryview | None = None
        self._path = ""
        self._rolled: list[str] = []
        self._num_rolled = 0
        self._size = 0
        self._position = 0
        self._dead = False

    def _is_forked(self) -> bool:
        """Tell whether this is a fork of the process that was joined, which then writes nothing any more."""
        if self._owner is None or self._owner == os.getpid():
            return False
        self._dead, self._map, self._size = True, None, 0  # another thread may have held the lock for good
        return True

    def close(self) -> None:
        """Write nothing any more, and let go of the mapping."""
        with self._lock:
            self._dead, self._map, self._size = True, None, 0

    def event(self, **fields: Any) -> None:
        """Append a JSON event; `fields` must have the key `event`, the event's name."""
        # File names and values of variables may have bytes that are no valid text; they are written as
        # escapes.
        text = json.dumps(fields, default=str, ensure_ascii=False)
        self._append(EVENT, self.without_secrets(text).encode("utf-8", "backslashreplace"))

    def without_secrets(self, text: str) -> str:
        """Return the text without secrets of the plan. Most texts have nothing that looks like a secret."""
        lowered = text.lower()
        if any(re.search(hint, lowered) for hint in self._hints):
            for pattern in self._patterns:
                text = re.sub(pattern, r"\g<1>@redacted", text, flags=re.IGNORECASE | re.DOTALL)
        return text

    def step(self, end_s: float, wait_s: float, num_samples: int, flags: int) -> None:
        """Append a step: its end and loader wait in seconds, its number of samples (-1 if unknown), and its
        flags."""
        if self._owner is not None and self._is_forked():
            return
        with self._lock:
            start = self._position
            if self._map is None or self._writing or start + _STEP_BYTES + 8 > self._size:
                self._append(STEP, _STEP.pack(wait_s, num_samples, flags, end_s))
                return
            # Write all fields in one call: every step pays for this function, and no signal handler runs
            # between the fields. A reader in another process may see only some of the fields; a step without
            # an end counts as missing.
            _STEP_RECORD.pack_into(
                self._map, start, _STEP.size, STEP, 0, wait_s, num_samples, flags, end_s, 0
            )
            self._position = start + _STEP_BYTES

    def _append(self, kind: int, payload: bytes) -> None:
        if self._dead or self._is_forked():
            return
        self._waiting.append((kind, payload))
        with self._lock:
            if self._writing:
                return  # a signal handler or finalizer that runs during the loop below and writes this too
            try:
                self._writing = True
                while self._waiting:
                    self._write(*self._waiting.pop(0))
            finally:
                self._writing = False

    def _write(self, kind: int, payload: bytes) -> None:
        """Append one record. KeyboardInterrupt may end the write at any point; the next write repairs the
        file."""
        size = 8 + len(payload) + 7 & ~7
        memory = self._room(size)
        if memory is not None:
            start = self._position
            # Also write the zero that ends the file, since an interrupted write may have left data there.
            memory[start + 8 : start + 8 + size] = payload + bytes(size - len(payload))
            memory[start : start + 8] = _HEAD.pack(len(payload), kind, 0)
            self._position = start + size

    def _room(self, num_bytes: int) -> memoryview | None:
        """Return the mapping of the file with enough room at `_position`; None if the record has ended."""
        try:
            memory = self._map or self._begin()
            while written := _HEAD.unpack_from(memory, self._position)[0]:
                self._position += 8 + written + 7 & ~7  # interrupted before it was counted
            while self._position + num_bytes + 8 > len(memory):
                memory = self._grow(len(memory))
        except (OSError, ValueError, ImportError):
            self._dead = True
            return None
        return memory

    def _begin(self, ending: str = "rec", first: int = 0) -> memoryview:
        pid = self._pid or os.getpid()
        for attempt in range(first, first + 1000):
            path = os.path.join(self._folder, "process-%d-%d.%s" % (pid, attempt, ending))
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                break
            except FileExistsError:
                continue
        else:
            raise OSError("no free name for a record")
        memory = map_file(descriptor, _FIRST_BYTES)
        _FILE_HEAD.pack_into(memory, 0, MAGIC, VERSION, _FILE_HEAD.size, pid, time.perf_counter(), 0)
        self._path, self._position = path, _FILE_HEAD.size
        self._map, self._size = memory, len(memory)
        return memory

    def _grow(self, size: int) -> memoryview:
        if size >= _LAST_BYTES:
            if not self._rolls:
                raise OSError("the record is full")
            return self._roll()
        memory = map_file(os.open(self._path, os.O_RDWR | os.O_CLOEXEC), size * 2)
        self._map, self._size = memory, len(memory)
        return memory

    def _roll(self) -> memoryview:
        """Continue in a file with another suffix, which a watching process reads; keep the newest two such
        files."""
        memory = self._begin("more", self._num_rolled)
        self._num_rolled += 1
        self._rolled.append(self._path)
        if len(self._rolled) > 2:
            oldest = self._rolled.pop(0)
            os.truncate(oldest, 0)  # it is still mapped, and would keep its blocks
            os.unlink(oldest)
        return memory


def map_file(descriptor: int, size: int) -> memoryview:
    """Map the first `size` bytes of the file, and close the descriptor.

    Raises OSError: the file system has no room, or does not support mapped files.
    """
    try:
        os.posix_fallocate(descriptor, 0, size)
        if sys.version_info >= (3, 13):
            return memoryview(mmap.mmap(descriptor, size, trackfd=False))
        return _mapped_by_libc(descriptor, size)
    finally:
        os.close(descriptor)


def _mapped_by_libc(descriptor: int, size: int) -> memoryview:
    """Map a file by libc: before Python 3.13, `mmap` keeps a descriptor, and later closes its number even if
    reused.

    The mapping is never removed; it lives as long as the process.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )  # fmt: skip
    address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "cannot map the record")
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")
