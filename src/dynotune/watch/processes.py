"""The run's processes, second by second."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from dynotune.schema.watch import ProcessView

LOOKS, MOST_LOOKS = 10, 120
ASKED = ("cpu_times", "io_counters", "memory_info", "name", "num_threads", "ppid", "status")


class _Process:
    """One process and its last two minutes: (time, CPU seconds, bytes read from disks, read at all, written, state)."""

    def __init__(self, pid: int) -> None:
        self.process = psutil.Process(pid)
        self.looks: deque[tuple[Any, ...]] = deque(maxlen=MOST_LOOKS)
        self.is_worker: bool | None = None

    def role(self, name: str, parent: int, roles: Mapping[int, str]) -> str:
        if self.process.pid in roles or parent not in roles:
            return roles.get(self.process.pid, name)
        if self.is_worker is None:
            # Loaders fork their workers, or spawn them with a word that says so.
            mine, its = self.process.cmdline(), psutil.Process(parent).cmdline()
            self.is_worker = mine == its or "spawn_main" in " ".join(mine) or name.startswith("pt_data")
        return f"worker of {roles[parent]}" if self.is_worker else name

    def row(self, pid: int, roles: Mapping[int, str], gpu_bytes: Mapping[int, float], now: float) -> ProcessView | None:
        found = self.process.as_dict(ASKED)
        cpu, io, state = found["cpu_times"], found["io_counters"], found["status"]
        if cpu is None or state == psutil.STATUS_ZOMBIE:
            return None
        counted = (None, None, None) if io is None else (io.read_bytes, io.read_chars, io.write_chars)
        self.looks.append((now, cpu.user + cpu.system, *counted, state))
        lately = list(self.looks)[-LOOKS:]
        first, last = lately[0], lately[-1]

        def rate(at: int) -> float | None:
            known = first[at] is not None and last[at] is not None and last[0] > first[0]
            return (last[at] - first[at]) / (last[0] - first[0]) if known else None

        disk, all_ = rate(2), rate(3)
        return ProcessView(
            pid=pid,
            role=self.role(found["name"], found["ppid"], roles),
            cores=rate(1),
            num_threads=found["num_threads"],
            rss_bytes=found["memory_info"].rss,
            state=state,
            at_disk_share=sum(look[-1] == psutil.STATUS_DISK_SLEEP for look in lately) / len(lately),
            disk_bytes_per_s=disk,
            cached_bytes_per_s=None if disk is None or all_ is None else max(0.0, all_ - disk),
            gpu_bytes=gpu_bytes.get(pid),
        )


class Processes:
    """`rows`: every process of the run, the busiest first."""

    def __init__(self) -> None:
        self.rows: list[ProcessView] = []
        self._known: dict[int, _Process] = {}
        self._lost: deque[tuple[int, set[int]]] = deque(maxlen=16)

    def update(self, pids: Sequence[int], roles: Mapping[int, str], gpu_bytes: Mapping[int, float], now: float) -> None:
        """Read them all; `roles` names those that make steps."""
        before, rows = {row.pid for row in self.workers()}, []
        for pid in pids:
            try:
                known = self._known.get(pid) or self._known.setdefault(pid, _Process(pid))
                row = known.row(pid, roles, gpu_bytes, now)
            except psutil.Error:  # it has ended
                continue
            rows += [row] if row else []
        self.rows = sorted(rows, key=lambda row: -(row.cores or 0.0))
        living = {row.pid for row in rows}
        self._lost.extend((pid, before - {pid}) for pid in before - living if rows)
        self._known = {pid: known for pid, known in self._known.items() if pid in living}

    def workers(self) -> list[ProcessView]:
        return [row for row in self.rows if row.role.startswith("worker")]

    def lost(self) -> list[int]:
        """Workers that ended while others of their time go on: at the end of an epoch all of them end."""
        return [pid for pid, beside in self._lost if beside & self._known.keys()]

    def written_bytes(self, pid: int, begin_s: float) -> int:
        """What the process wrote since the last look before `begin_s`; 0 if nobody looked."""
        looks = list(self._known[pid].looks) if pid in self._known else []
        before = [look[4] for look in looks if look[0] <= begin_s and look[4] is not None]
        return int(looks[-1][4] - before[-1]) if before else 0
