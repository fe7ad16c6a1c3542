"""Look at the threads of a program from outside, many times a second: which ones run, and what the others
wait for.

The kernel tells for each thread whether it runs, and for a thread that does not, the kernel's function that
holds it (`wchan`). That takes no right beyond the user's own, and does not stop the program. One look reads
two small files of each thread that is looked at.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from dynotune.running import process_files, targets
from dynotune.running.process_files import PROC
from dynotune.running.targets import Rank, Target
from dynotune.schema.watch import ProcessView

Held = Literal["runs", "disk", "data", "lock", "sleep", "child", "stopped", "other"]
"""What a thread does. `data`: it waits for a pipe or a socket; `lock`: for another thread; `sleep`: for a
clock."""

INTERVAL_S = 0.04
FIRST_S = 0.3
"""Seconds after which the busiest threads of a process are known, which are then looked at."""
NUM_THREADS = 6
"""Number of threads of a process that are looked at beside its main thread."""
LIST_S = 0.5
"""Seconds after which the workers are listed again: each epoch may start others."""
CPU_SHARE = 0.05
"""Largest share of one core that looking may take, and that listing may: looks of many processes come less
often, and lists of a process with thousands of threads or children."""
AUTOGRAD, PINNING = "pt_autograd", "pt_data_pin"
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_STATES: dict[bytes, Held] = {b"R": "runs", b"D": "disk", b"T": "stopped", b"t": "stopped"}
_HELD: tuple[tuple[str, Held], ...] = (
    ("hrtimer_nanosleep", "sleep"),
    ("do_nanosleep", "sleep"),
    ("common_nsleep", "sleep"),
    ("clock_nanosleep", "sleep"),
    ("futex", "lock"),
    ("poll_schedule", "data"),
    ("do_poll", "data"),
    ("do_sys_poll", "data"),
    ("do_select", "data"),
    ("ep_poll", "data"),
    ("do_epoll", "data"),
    ("pipe_read", "data"),
    ("anon_pipe_read", "data"),
    ("unix_stream", "data"),
    ("unix_dgram", "data"),
    ("sk_wait_data", "data"),
    ("wait_woken", "data"),
    ("__skb_wait", "data"),
    ("do_wait", "child"),
)


class Look(NamedTuple):
    """One look at a rank: its main thread, and how many of its workers work.

    Args:
        main: what the main thread does.
        autograd_runs, others_run: whether a thread of the backward pass, or another thread of the process,
            runs.
        num_working, num_workers: workers that work, and that live. A worker that waits for data waits for an
            order.
    """

    main: Held
    autograd_runs: bool
    others_run: bool
    num_working: int
    num_workers: int


class Usage(NamedTuple):
    """Counters of one process since its start: seconds, bytes and calls. None where the kernel does not
    say."""

    cpu_s: float
    main_cpu_s: float
    main_queued_s: float | None
    read_bytes: int | None
    disk_bytes: int | None
    written_bytes: int | None
    num_reads: int | None


class Activity(NamedTuple):
    """What was seen of one rank over `length_s` seconds.

    Args:
        pins: whether the process has a thread that copies batches to page-locked memory.
        begin, end: counters of the rank's process and of its workers, by process id.
        ended: whether the process ended meanwhile.
    """

    rank: Rank
    looks: tuple[Look, ...]
    length_s: float
    pins: bool
    begin: dict[int, Usage]
    end: dict[int, Usage]
    ended: bool
    processes: tuple[ProcessView, ...]

    def rate(self, field: str, pids: Iterable[int]) -> float | None:
        """Return the growth of a counter a second, summed over processes; None if it is not known of any."""
        grown = [
            after - before
            for pid in pids
            if pid in self.begin and pid in self.end
            and (before := getattr(self.begin[pid], field)) is not None
            and (after := getattr(self.end[pid], field)) is not None
        ]  # fmt: skip
        return sum(grown) / self.length_s if grown and self.length_s else None


def observe(target: Target, length_s: float, stopped: threading.Event, proc: Path = PROC) -> list[Activity]:
    """Look at all ranks for `length_s` seconds, or until `stopped` is set or all of them have ended."""
    observers = [_Observer(rank, proc) for rank in target.ranks]
    stopped.wait(min(FIRST_S, length_s))
    for observer in observers:
        observer.choose_threads()
    begin_s = time.monotonic()
    wait_s = INTERVAL_S
    while time.monotonic() - begin_s < length_s and not stopped.wait(wait_s):
        begin_cpu_s = time.thread_time()
        living = [observer.look() for observer in observers]
        if not any(living):
            break
        wait_s = max(INTERVAL_S, (time.thread_time() - begin_cpu_s) / CPU_SHARE)
        for observer in observers:
            observer.keep_workers()
    return [observer.activity() for observer in observers]


class _Observer:
    """Looks at one rank. A process id that another process has meanwhile is no longer looked at."""

    def __init__(self, rank: Rank, proc: Path) -> None:
        self._rank, self._proc = rank, proc
        self._workers = {one.pid: one for one in rank.workers}
        self._seen_workers = dict(self._workers)
        self._begin_s = self._last_s = time.monotonic()
        self._list_s = self._begin_s + LIST_S
        self._begin: dict[int, Usage] = {}
        self._end: dict[int, Usage] = {}
        self._read_usages()
        self._ticks = self._thread_ticks()
        self._others: list[tuple[Path, str]] = []
        self._looks: list[Look] = []
        self._ended = False

    def choose_threads(self) -> None:
        """Choose the threads that used most of the processor since the observer was made."""
        now = self._thread_ticks()
        main = str(self._rank.process.pid)
        grown = {path: ticks - self._ticks.get(path, 0) for path, ticks in now.items() if path.name != main}
        busiest = sorted((path for path in grown if grown[path] > 0), key=lambda path: -grown[path])[
            :NUM_THREADS
        ]
        named = {path: _name(path) for path in grown}
        special = [path for path, name in named.items() if name.startswith((AUTOGRAD, PINNING))][:NUM_THREADS]
        self._others = [(path, named[path]) for path in dict.fromkeys([*busiest, *special])]

    def look(self) -> bool:
        """Look once; return whether the rank still lives."""
        process = self._rank.process
        folder = self._proc / str(process.pid)
        found = process_files.stat(folder)
        if (
            found is None
            or int(found[1][process_files.START]) != process.start_ticks
            or found[1][0] in (b"Z", b"X")
        ):
            self._ended = True
            return False
        others = [(name, held(path)) for path, name in self._others]
        runs = {name.startswith(AUTOGRAD) for name, state in others if state == "runs" and not _pins(name)}
        workers = [state for pid in self._workers if (state := held(self._proc / str(pid))) is not None]
        self._looks.append(
            Look(
                main=held(folder) or "other",
                autograd_runs=True in runs,
                others_run=False in runs,
                num_working=sum(state != "data" for state in workers),
                num_workers=len(workers),
            )
        )
        self._last_s = time.monotonic()
        return True

    def keep_workers(self) -> None:
        """List the workers again where it is time to."""
        if self._ended or time.monotonic() < self._list_s:
            return
        begin_cpu_s = time.thread_time()
        self._list_workers()
        self._list_s = time.monotonic() + max(LIST_S, (time.thread_time() - begin_cpu_s) / CPU_SHARE)

    def activity(self) -> Activity:
        if not self._ended:
            self._list_workers()
            self._last_s = time.monotonic()
        length_s = max(self._last_s - self._begin_s, 1e-9)
        pins = any(_pins(name) for _, name in self._others)
        rank = self._rank._replace(workers=tuple(self._seen_workers.values()))
        activity = Activity(
            rank, tuple(self._looks), length_s, pins, self._begin, self._end, self._ended, processes=()
        )
        rows = [row for pid in (rank.process.pid, *self._workers) if (row := self._row(pid, activity))]
        return activity._replace(processes=tuple(rows))

    def _row(self, pid: int, activity: Activity) -> ProcessView | None:
        found = process_files.stat(self._proc / str(pid))
        if found is None:
            return None
        is_rank = pid == self._rank.process.pid
        number = "" if self._rank.number is None else f" {self._rank.number}"
        return ProcessView(
            pid=pid,
            role=f"rank{number}" if is_rank and number else "program" if is_rank else "worker",
            cores=activity.rate("cpu_s", [pid]),
            num_threads=int(found[1][process_files.NUM_THREADS]),
            rss_bytes=int(found[1][process_files.RSS]) * PAGE_BYTES,
            state={b"R": "running", b"D": "disk-sleep", b"T": "stopped"}.get(found[1][0], "sleeping"),
            disk_bytes_per_s=activity.rate("disk_bytes", [pid]),
            read_bytes_per_s=activity.rate("read_bytes", [pid]),
        )

    def _list_workers(self) -> None:
        self._workers = targets.workers_of(self._rank.process, self._workers, self._proc)
        self._seen_workers |= self._workers
        self._read_usages()

    def _read_usages(self) -> None:
        """Read the counters of the process and its workers. Those that have ended keep their last ones."""
        for pid in (self._rank.process.pid, *self._workers):
            if (found := usage(self._proc / str(pid))) is not None:
                self._begin.setdefault(pid, found)
                self._end[pid] = found

    def _thread_ticks(self) -> dict[Path, int]:
        paths = targets.threads(self._rank.process.pid, self._proc)
        stats = {path: process_files.stat(path) for path in paths}
        return {path: _ticks(found[1]) for path, found in stats.items() if found is not None}


def held(folder: Path) -> Held | None:
    """Return what the thread of a folder of `/proc` does now; None if it has ended.

    The main thread of a process is read by the folder of the process.
    """
    for _ in range(2):
        found = process_files.stat(folder)
        if found is None:
            return None
        state = found[1][process_files.STATE]
        if state in _STATES:
            return _STATES[state]
        function = (process_files.content(folder / "wchan") or b"").decode(errors="replace")
        if function not in ("", "0"):
            return next((what for begin, what in _HELD if function.startswith(begin)), "other")
        # It ran again between the two files, or the kernel keeps the function from this user: look once more.
    return "other"


def usage(folder: Path) -> Usage | None:
    """Read the counters of a process; None if it has ended."""
    found = process_files.stat(folder)
    if found is None:
        return None
    main = process_files.stat(folder / "task" / folder.name)
    queued = (process_files.content(folder / "schedstat") or b"").split()
    io = process_files.counts(folder / "io")
    return Usage(
        cpu_s=_ticks(found[1]) * TICK_S,
        main_cpu_s=_ticks(main[1]) * TICK_S if main is not None else 0.0,
        main_queued_s=int(queued[1]) / 1e9 if len(queued) > 1 else None,
        read_bytes=io.get("rchar"),
        disk_bytes=io.get("read_bytes"),
        written_bytes=io.get("wchar"),
        num_reads=io.get("syscr"),
    )


def share(looks: Iterable[Look], is_so: Callable[[Look], bool]) -> float:
    """Return the share of looks for which `is_so` holds; 0 without looks."""
    found = [is_so(look) for look in looks]
    return sum(found) / len(found) if found else 0.0


def _ticks(fields: list[bytes]) -> int:
    return int(fields[process_files.USER]) + int(fields[process_files.SYSTEM])


def _name(path: Path) -> str:
    return (process_files.content(path / "comm") or b"").decode(errors="replace").strip()


def _pins(name: str) -> bool:
    return name.startswith(PINNING)
