"""The record of one process: a memory-mapped file of steps and events.

A mapping outlives `os._exit` and SIGKILL, and no file descriptor stays open that the program could close or
reuse. Blocks are reserved before they are mapped: a full disk stops the record, not the program (a hole in
a mapped file would be SIGBUS).

Layout, little-endian: a header of 32 bytes (magic, version, header size, pid, start), then records, each
8-byte aligned: payload size u32, kind u16, zero u16, payload. A record's head is written last; a size of
zero ends the file.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAGIC = b"DYNOREC\0"
VERSION = 1
STEP = 1
EVENT = 2

# Flags of a step: what happened in it.
COMPILED, ALLOCATED, EPOCH = 1, 2, 4

_FILE_HEAD = struct.Struct("<8sHHIdQ")
_HEAD = struct.Struct("<IHH")
_STEP = struct.Struct("<ddqQ")
_FIRST_BYTES = 64 * 1024
_LAST_BYTES = 64 * 1024 * 1024


class Writer:
    """Appends steps and events to a file of its own in `folder`; silent once it cannot write."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget the parent's mapping; a file of this process's own is begun when there is something to say."""
        self._lock = threading.RLock()
        self._map: Any = None
        self._path = ""
        self._size = 0
        self._position = 0
        self._dead = False

    def event(self, **fields: Any) -> None:
        """Append a JSON event; `fields` hold `event`, its name."""
        payload = json.dumps(fields, default=str).encode()
        with self._lock:
            start = self._reserve(len(payload))
            if start is not None:
                self._map[start + 8 : start + 8 + len(payload)] = payload
                _HEAD.pack_into(self._map, start, len(payload), EVENT, 0)

    def step(self, end_s: float, wait_s: float, num_samples: int, flags: int) -> None:
        """Append a step: its end and loader wait in seconds, samples (-1 unknown), flags."""
        with self._lock:
            start = self._reserve(_STEP.size)
            if start is not None:
                _STEP.pack_into(self._map, start + 8, end_s, wait_s, num_samples, flags)
                _HEAD.pack_into(self._map, start, _STEP.size, STEP, 0)

    def _reserve(self, num_bytes: int) -> int | None:
        """Claim room for a record; its offset, or None when the record has ended."""
        needed = (8 + num_bytes + 7) & ~7
        if self._dead:
            return None
        try:
            if self._map is None:
                self._begin()
            while self._position + needed + 8 > self._size:
                self._grow()
        except (OSError, ValueError):
            self._dead = True
            return None
        start = self._position
        self._position += needed
        return start

    def _begin(self) -> None:
        for attempt in range(1000):
            path = os.path.join(self._folder, "process-%d-%d.rec" % (os.getpid(), attempt))
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                break
            except FileExistsError:
                continue
        else:
            raise OSError("no free name for a record")
        self._path = path
        self._remap(descriptor, _FIRST_BYTES)
        _FILE_HEAD.pack_into(self._map, 0, MAGIC, VERSION, _FILE_HEAD.size, os.getpid(), time.perf_counter(), 0)
        self._position = _FILE_HEAD.size

    def _grow(self) -> None:
        if self._size >= _LAST_BYTES:
            raise OSError("the record is full")
        self._remap(os.open(self._path, os.O_RDWR | os.O_CLOEXEC), self._size * 2)

    def _remap(self, descriptor: int, size: int) -> None:
        try:
            os.posix_fallocate(descriptor, 0, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._size = size
