"""The run's processes, second by second, and the state of their threads."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from dynotune.schema.watch import ProcessView

LOOKS = 10
WORKER = "pt_data"
ASKED = ("cpu_times", "io_counters", "memory_info", "name", "num_threads", "ppid", "status")


class _Process:
    """One process and its last ten samples: (time, CPU seconds, bytes read from disks, bytes read at all,
    state)."""

    def __init__(self, pid: int) -> None:
        self.process = psutil.Process(pid)
        self.looks: deque[tuple[Any, ...]] = deque(maxlen=LOOKS)
        self.is_worker: bool | None = None

    def works_for(self, name: str, parent: int, roles: Mapping[int, str]) -> bool:
        """Return whether the process makes batches for its parent, which makes steps."""
        if self.process.pid in roles or parent not in roles:
            return False
        if self.is_worker is None:
            # Loaders fork their workers, or spawn them with a word in the command line that shows it.
            mine, its = self.process.cmdline(), psutil.Process(parent).cmdline()
            self.is_worker = mine == its or "spawn_main" in " ".join(mine) or name.startswith(WORKER)
        return self.is_worker

    def row(self, roles: Mapping[int, str], now: float) -> ProcessView | None:
        found = self.process.as_dict(ASKED)
        cpu, io, state = found["cpu_times"], found["io_counters"], found["status"]
        if cpu is None or state == psutil.STATUS_ZOMBIE:
            return None
        read = (None, None) if io is None else (io.read_bytes, io.read_chars)
        self.looks.append((now, cpu.user + cpu.system, *read, state))
        first, last = self.looks[0], self.looks[-1]

        def rate(at: int) -> float | None:
            known = first[at] is not None and last[at] is not None and last[0] > first[0]
            return (last[at] - first[at]) / (last[0] - first[0]) if known else None

        name, parent = found["name"], found["ppid"]
        if name.startswith(WORKER) and parent not in roles:
            # Python's fork server, its usual way from 3.14 on, is a child of the program.
            parent = psutil.Process(parent).ppid()
        is_worker = self.works_for(name, parent, roles)
        return ProcessView(
            pid=self.process.pid,
            role=f"worker of {roles[parent]}" if is_worker else roles.get(self.process.pid, name),
            is_worker=is_worker,
            cores=rate(1),
            num_threads=found["num_threads"],
            rss_bytes=found["memory_info"].rss,
            state=state,
            at_disk_share=sum(look[-1] == psutil.STATUS_DISK_SLEEP for look in self.looks) / len(self.looks),
            disk_bytes_per_s=rate(2),
            read_bytes_per_s=rate(3),
        )


class Processes:
    """`rows`: every process of the run, the busiest first."""

    def __init__(self) -> None:
        self.rows: list[ProcessView] = []
        self._known: dict[int, _Process] = {}

    def update(self, pids: Sequence[int], roles: Mapping[int, str], now: float) -> None:
        """Read all processes; `roles` has names for those that make steps."""
        rows = []
        for pid in pids:
            try:
                known = self._known.get(pid) or self._known.setdefault(pid, _Process(pid))
                row = known.row(roles, now)
            except psutil.Error:  # the process has ended
                continue
            rows += [row] if row else []
        self.rows = sorted(rows, key=lambda row: -(row.cores or 0.0))
        self._known = {row.pid: self._known[row.pid] for row in rows}
