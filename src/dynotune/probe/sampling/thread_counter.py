"""CPU time of the threads that PyTorch names, found among all threads of the tree now and then."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from dynotune.probe.sources.counters import SYSTEM_TICKS, TICK_S, USER_TICKS, read_proc, stat_fields

WATCHED = frozenset({"pt_data_pin"})
"""The one thread that copies every batch into pinned memory, from torch 2.5 on so named. Others are many."""

READINGS_APART = 4
THREADS_A_READING = 32
"""Looking through all threads costs more than the rest of a reading: done every so often, less the more there are."""

LOOKS = 2
"""A thread takes its name after it started; one that has kept another for two looks will keep it."""


class ThreadCounter:
    """Time of the watched threads between two readings."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._proc = str(root / "proc")
        self._left = 0
        self._looks: dict[tuple[int, int], int] = {}
        self._ticks: dict[tuple[int, int], int] = {}
        self._names: dict[tuple[int, int], str] = {}

    def read(self, pids: Iterable[int]) -> dict[str, float]:
        """CPU seconds by thread name since the last reading; a thread counts from when it was found."""
        self._left -= 1
        if self._left <= 0:
            self._look(pids)
            self._left = max(READINGS_APART, len(self._looks) // THREADS_A_READING)
        grown: dict[str, float] = {}
        for key, name in list(self._names.items()):
            ticks = self._thread_ticks(key)
            if ticks is None:
                del self._names[key]
                continue
            grown[name] = grown.get(name, 0.0) + (ticks - self._ticks.get(key, ticks)) * TICK_S
            self._ticks[key] = ticks
        return grown

    def _look(self, pids: Iterable[int]) -> None:
        looks: dict[tuple[int, int], int] = {}
        for pid in pids:
            try:
                threads = [int(entry.name) for entry in os.scandir(f"{self._proc}/{pid}/task")]
            except OSError:
                # It ended.
                continue
            for key in ((pid, thread) for thread in threads):
                looks[key] = self._looks.get(key, 0)
                if looks[key] < LOOKS and key not in self._names:
                    looks[key] += 1
                    name = self._name(key)
                    if name in WATCHED:
                        self._names[key] = name
        self._looks = looks

    def _thread_ticks(self, key: tuple[int, int]) -> int | None:
        try:
            found = stat_fields(f"{self._proc}/{key[0]}/task/{key[1]}")
        except OSError:
            return None
        return None if found is None else int(found[1][USER_TICKS]) + int(found[1][SYSTEM_TICKS])

    def _name(self, key: tuple[int, int]) -> str:
        try:
            found = read_proc(f"{self._proc}/{key[0]}/task/{key[1]}/comm")
        except OSError:
            found = None
        return (found or b"").decode(errors="replace").strip()
