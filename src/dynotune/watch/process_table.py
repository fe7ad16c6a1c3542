"""The run's processes, second by second: cores, threads, memory, state, and what a thread waits for."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dynotune.schema.watch import ProcessView

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MOST_SHOWN = 48
MOST_THREADS = 24
STATES = {"R": "running", "D": "at its disk", "T": "stopped", "t": "stopped", "Z": "ended", "X": "ended"}
CALLS = {
    "x86_64": {0: "read", 1: "write", 7: "poll", 17: "read", 18: "write", 23: "poll", 35: "sleep", 45: "read",
               47: "read", 61: "child", 74: "write", 202: "lock", 230: "sleep", 232: "poll", 247: "child", 257: "open",
               262: "open", 270: "poll", 271: "poll", 281: "poll"},
    "aarch64": {22: "poll", 56: "open", 63: "read", 64: "write", 67: "read", 68: "write", 72: "poll", 73: "poll",
                82: "write", 95: "child", 98: "lock", 101: "sleep", 115: "sleep", 207: "read", 212: "read",
                260: "child"},
}  # fmt: skip
"""What system calls wait for, by their number. Source: syscalls(2), and the kernel's tables."""
WAITS = {
    "lock": "waits for another thread (a lock, a queue, a condition)",
    "sleep": "sleeps for a time that the program chose",
    "poll": "waits for one of several pipes, sockets or devices",
    "child": "waits for a child process",
    "open": "opens a file",
    "read": "reads from",
    "write": "writes to",
}


class _Counters(NamedTuple):
    time_s: float
    cpu_s: float
    read_bytes: int | None
    cached_bytes: int | None
    written_bytes: int | None


class ProcessTable:
    """`rows`: every process, the busiest first. `history`: its last ten seconds of (cores, state)."""

    def __init__(self) -> None:
        self.rows: list[ProcessView] = []
        self.history: dict[int, deque[tuple[float, str]]] = {}
        self._lost: deque[tuple[int, frozenset[int]]] = deque(maxlen=16)
        self._before: dict[int, _Counters] = {}
        self._forks: dict[int, bool] = {}
        self._written: deque[tuple[float, dict[int, int]]] = deque(maxlen=120)

    def update(self, pids: Sequence[int], roles: Mapping[int, str], now: float) -> None:
        """Read them all; `roles` names those that make steps."""
        found = [self._read(pid, roles, now) for pid in pids]
        rows = [row for row in found if row is not None]
        gone = {row.pid: row.role for row in self.rows} if rows else {}
        for row in rows:
            gone.pop(row.pid, None)
        beside = frozenset(row.pid for row in self.workers())
        self._lost.extend((pid, beside - {pid}) for pid, role in gone.items() if role.startswith("worker"))
        self.rows = sorted(rows, key=lambda row: -(row.cores or 0.0))
        for store in (self.history, self._before, self._forks):
            for pid in set(store) - {row.pid for row in rows}:
                del store[pid]
        written = {pid: counted.written_bytes for pid, counted in self._before.items()}
        self._written.append((now, {pid: num for pid, num in written.items() if num is not None}))

    def shown(self) -> list[ProcessView]:
        return self.rows[:MOST_SHOWN]

    def workers(self) -> list[ProcessView]:
        return [row for row in self.rows if row.role.startswith("worker")]

    def lost(self) -> list[int]:
        """Workers that ended while others of their time go on: at the end of an epoch all of them end."""
        living = {row.pid for row in self.rows}
        return [pid for pid, beside in self._lost if beside & living]

    def written_bytes(self, pid: int, since_s: float) -> int | None:
        """What the process wrote since the last look before `since_s`."""
        before = next((counts for at, counts in reversed(self._written) if at <= since_s and pid in counts), None)
        now = self._written[-1][1] if self._written else {}
        return now[pid] - before[pid] if before is not None and pid in now else None

    def _read(self, pid: int, roles: Mapping[int, str], now: float) -> ProcessView | None:
        line = _text(f"/proc/{pid}/stat")
        if not line:
            return None
        name, _, rest = line.partition("(")[2].rpartition(")")
        fields = rest.split()
        parent, cpu_s = int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS_PER_S
        counts = dict(each.split(": ") for each in _text(f"/proc/{pid}/io").splitlines())
        disk, all_ = (int(counts[key]) if key in counts else None for key in ("read_bytes", "rchar"))
        cached = None if disk is None or all_ is None else max(0, all_ - disk)
        counted = _Counters(now, cpu_s, disk, cached, int(counts["wchar"]) if "wchar" in counts else None)
        before, self._before[pid] = self._before.get(pid), counted
        took_s = now - before.time_s if before else 0.0
        cores = (cpu_s - before.cpu_s) / took_s if before and took_s > 0 else None
        state = STATES.get(fields[0], "asleep")
        if cores is not None:
            self.history.setdefault(pid, deque(maxlen=10)).append((cores, state))

        def rate(now_bytes: int | None, before_bytes: int | None) -> float | None:
            return (
                None
                if now_bytes is None or before_bytes is None or took_s <= 0
                else (now_bytes - before_bytes) / took_s
            )

        is_worker = parent in roles and name.startswith("pt_data")
        if parent in roles and not is_worker:
            # Asked once: there may be hundreds, and none changes what it is.
            is_worker = self._forks[pid] = self._forks.get(pid) or _is_fork(pid, parent)
        return ProcessView(
            pid=pid,
            role=roles.get(pid) or (f"worker of {roles[parent]}" if is_worker else name),
            cores=cores,
            num_threads=int(fields[17]),
            rss_bytes=int(fields[21]) * PAGE_BYTES,
            state=state,
            disk_bytes_per_s=rate(disk, before.read_bytes if before else None),
            cached_bytes_per_s=rate(cached, before.cached_bytes if before else None),
        )


def waits(pid: int) -> list[str]:
    """What each thread of a process waits for, as far as the kernel says; the main thread first."""
    lines, calls = [], CALLS.get(os.uname().machine, {})
    try:
        threads = sorted(int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
    for thread in threads[:MOST_THREADS]:
        place = f"/proc/{pid}/task/{thread}"
        name, state = _text(f"{place}/comm").strip(), _text(f"{place}/stat").rpartition(")")[2].split()[:1]
        call = _text(f"{place}/syscall").split()
        what = calls.get(int(call[0])) if call and call[0].isdigit() else None
        told = WAITS.get(what or "", STATES.get(state[0] if state else "X", "asleep"))
        if what in ("read", "write"):
            told += f" {_file(pid, int(call[1], 16))}"
        lines.append(f"{'main thread' if thread == pid else f'thread {name}'} ({thread}): {told}")
    return [*lines, *([f"and {len(threads) - MOST_THREADS} threads more"] if len(threads) > MOST_THREADS else [])]


def _file(pid: int, descriptor: int) -> str:
    try:
        place = str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
    except OSError:
        return "a file"
    return "a pipe" if place.startswith("pipe:") else "a socket" if place.startswith("socket:") else place


def _is_fork(pid: int, parent: int) -> bool:
    """Whether a child is of the same program: loaders fork their workers, or spawn them with a word that says so."""
    mine = _text(f"/proc/{pid}/cmdline")
    return bool(mine) and (mine == _text(f"/proc/{parent}/cmdline") or "spawn_main" in mine)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 (many are read a second)
            return file.read()
    except OSError:
        return ""
