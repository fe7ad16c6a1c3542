"""Join a program that runs: load the agent into its processes, hold it there, and have it leave again."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from dynotune.launch import Exit, in_use
from dynotune.launch.records import Records
from dynotune.running import injected, process_files, targets
from dynotune.running.injected import FAILED, LOCK, Place
from dynotune.running.process_files import PROC, ProcessFiles
from dynotune.running.shared_folder import SharedFolder
from dynotune.running.targets import Target
from dynotune.schema.errors import CannotRunHere, may_fail
from dynotune.schema.events import AgentLeft, TorchImported
from dynotune.schema.facts import Unknown
from dynotune.text import words

POLL_S = 0.05
NUM_WORKERS = 4
LOOK_S, MOST_JOINED = 0.5, 32
"""Seconds between two looks for new workers, and the most processes that are joined at all."""
BEAT_S = 1.0
"""Seconds between two touches of the lock; without one for 15 s the agent leaves."""
LEAVE_S = 15.0
"""Seconds in which the agent has to leave: its thread looks five times a second, and a task ends with a
step."""
_RUN_FOLDER = re.compile(r"\d{8}-\d{6}-\d{3}-[0-9a-f]{6}")
_WHY = {
    "free-threaded": "The program's Python is free-threaded, on which the agent was not tried.",
    "no torch": "The process into which the agent was loaded has not imported torch.",
    "agent": (
        "The agent of another dynotune is still in the program. The agent leaves when that dynotune "
        "has ended."
    ),
}


class JoinedProgram:
    """The processes of a program while the agent is in them: a `launch.Started` that was not started here.

    Args:
        target: the program.
        folder: run folder, which the agent sees as well.
        shared: the folder that it is in.
        num_workers: workers of each rank's loaders that are joined, too; what they fetch is alike.

    Raises CannotRunHere: the agent cannot be loaded, or the main thread does not execute anything for
        `injected.BEGIN_S` seconds. Nothing is pending then.
    """

    sandbox: Literal["overlay", "none"] = "none"
    sandbox_reason = ""

    def __init__(
        self,
        target: Target,
        folder: Path,
        shared: SharedFolder,
        running: Callable[[str], None],
        *,
        num_workers: int = NUM_WORKERS,
    ) -> None:
        self._target, self.folder, self._num_workers = target, folder, num_workers
        self._shared = shared
        self._num_ranks = len(target.ranks)
        places = [(rank.process, _place(rank.process)) for rank in target.ranks]
        self._mounts = places[0][1].mounts
        workers = [self._reachable(one) for rank in target.ranks for one in rank.workers[:num_workers]]
        places += [worker for worker in workers if worker is not None]
        self._processes, self._places = [one for one, _ in places], [place for _, place in places]
        if len({place.mounts for place in self._places[: self._num_ranks]}) > 1:
            raise CannotRunHere(
                "The program's processes run in several containers.",
                hint="Run dynotune inside the container of one of them.",
            )
        self._records = Records(folder, launched_s=time.perf_counter())
        self._pause, self._is_over = threading.Event(), threading.Event()
        self._has_left = self._is_closed = False
        self._look_s = time.monotonic() + LOOK_S
        self.changed_files: list[str] = []
        with may_fail(f"write in {folder}"):
            self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._beating = threading.Thread(target=self._beat, daemon=True)
        self._beating.start()
        try:
            with may_fail(f"write in {folder}"):
                injected.copy_agent(folder)
            running("loading the agent into the program")
            injected.load(self._processes, self._places, folder, shared, self._num_ranks)
            self._wait_until_joined()
        except BaseException:
            self.close()
            raise

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        """Wait until all ranks have ended, for at most `timeout_s` seconds; how they ended is not known.

        A rank that the agent has left by itself counts as ended: this dynotune was stopped meanwhile.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while any(map(process_files.lives, self._processes[: self._num_ranks])):
            if time.monotonic() >= self._look_s:
                self._look_s = time.monotonic() + LOOK_S
                if not self._inside():
                    break
                self._join_new_workers()
            if deadline_s is not None and time.monotonic() >= deadline_s:
                return None
            self._pause.wait(POLL_S)
        return Exit()

    def end(self, grace_s: float = LEAVE_S) -> Exit:
        """Have the agent leave; the program goes on."""
        self.leave()
        return Exit()

    def tree_pids(self) -> list[int]:
        return sorted(self._target.pids)

    def __exit__(self, *error: object) -> None:
        self.leave()

    def lives(self, pid: int) -> bool:
        """Tell whether a process that was joined still lives, and not another one of its id."""
        return any(process.pid == pid and process_files.lives(process) for process in self._processes)

    @property
    def stay(self) -> list[str]:
        """Return the agent's wrappers that could not be removed, because the program has wrapped them in its
        own since."""
        left = [record.last(AgentLeft) for record in self._records.update()]
        return sorted({name for event in left if event is not None for name in event.stay})

    def leave(self) -> None:
        """Let go of the agent, wait until it has left, and take back what no process has executed yet."""
        if self._has_left:
            return
        self._has_left = True
        self._is_over.set()
        self._beating.join()
        # Still held, together with others: the agent sees that the folder will be removed.
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        for process, place in zip(self._processes, self._places, strict=True):
            script = self.folder / f"begin-{process.pid}.py"
            is_pending = script.exists() and process_files.lives(process)
            # If it is not taken back, the process would miss the script.
            if is_pending and injected.take_back(process, place):
                script.unlink(missing_ok=True)
        until_s = time.monotonic() + LEAVE_S
        while time.monotonic() < until_s and self._inside():
            self._pause.wait(POLL_S)

    def close(self) -> None:
        """Have the agent leave, and remove the run folder."""
        self.leave()
        remove(self.folder)
        if not self._is_closed:
            self._is_closed = True
            os.close(self._lock)

    def _beat(self) -> None:
        """Touch the lock, so that the agent sees that this dynotune is not stopped."""
        while not self._is_over.wait(BEAT_S):
            now_ns = time.time_ns()  # by this clock, not by that of a file server
            with contextlib.suppress(OSError):
                os.utime(self._lock, ns=(now_ns, now_ns))

    def _join_new_workers(self) -> None:
        """Join workers that loaders have started since, as for a new epoch, as far as `MOST_JOINED` go."""
        if not self._num_workers or len(self._processes) >= MOST_JOINED:
            return
        known = {process.pid: process for process in self._processes}
        for rank in self._target.ranks:
            living = targets.workers_of(rank.process, known)
            num = sum(pid in known for pid in living)
            new = [one for pid, one in sorted(living.items()) if pid not in known][
                : max(0, self._num_workers - num)
            ]
            found = [place for worker in new if (place := self._reachable(worker)) is not None]
            if found:
                processes, places = [one for one, _ in found], [place for _, place in found]
                self._processes += processes
                self._places += places
                with contextlib.suppress(CannotRunHere):  # they may have ended
                    injected.load(processes, places, self.folder, self._shared, 0)

    def _reachable(self, process: ProcessFiles) -> tuple[ProcessFiles, Place] | None:
        """Return a worker with its place; None if it has ended meanwhile, or does not see the run folder."""
        place = injected.place_of(process)
        if isinstance(place, Unknown) or place.mounts != self._mounts:
            return None
        return process, place

    def _wait_until_joined(self) -> None:
        until_s = time.monotonic() + injected.BEGIN_S
        ranks = self._processes[: self._num_ranks]
        wanted = {process.pid for process in ranks}
        while True:
            joined = {record.pid for record in self._records.update() if record.last(TorchImported)}
            if wanted <= joined:
                return
            if (failed := self._failure()) is not None:
                raise CannotRunHere(
                    failed, hint="Leave --record out: dynotune then looks from outside alone."
                )
            gone = [process.pid for process in ranks if not process_files.lives(process)]
            if gone:
                raise CannotRunHere(
                    f"Process {gone[0]} ended while the agent was loaded.",
                    hint=(
                        "The program has to run for half a minute longer. Or start it with dynotune "
                        "diagnose -- COMMAND."
                    ),
                )
            if time.monotonic() > until_s:
                raise self._stuck(min(wanted - joined))
            self._pause.wait(POLL_S)

    def _stuck(self, pid: int) -> CannotRunHere:
        return CannotRunHere(
            f"The main thread of process {pid} executed no Python for {injected.BEGIN_S:.0f} s, so the agent "
            "could not be loaded. The request was taken back.",
            hint="It may be in one long call, such as a compilation or a wait for other ranks. Try later.",
        )

    def _failure(self) -> str | None:
        content = process_files.content(self.folder / FAILED)
        if content is None:
            return None
        reason = words.plain(content.decode(errors="replace"), longest=300)
        return _WHY.get(reason, f"The agent failed in the program, and has left it: {reason}.")

    def _inside(self) -> bool:
        """Tell whether the agent is still in a process that lives."""
        living = {process.pid for process in self._living()}
        with contextlib.suppress(OSError):
            records = self._records.update()
            return any(record.pid in living and record.last(AgentLeft) is None for record in records)
        return False

    def _living(self) -> Sequence[ProcessFiles]:
        return [process for process in self._processes if process_files.lives(process)]


def clear(shared: SharedFolder) -> None:
    """Remove the folders in dynotune's own state that a killed dynotune has left, and what held them if that
    is empty. In a target's root, nothing is: there the agent removes them when its dynotune ends."""
    if not shared.is_own:
        return
    for folder in shared.base.glob("*") if shared.base.is_dir() else ():
        if _is_run_folder(folder) and not in_use([folder]):
            remove(folder)
    with contextlib.suppress(OSError):
        shared.base.rmdir()


def remove(folder: Path) -> None:
    """Remove a run folder, unless a process may still execute a script in it, and would miss it."""
    if not _may_execute(folder):
        shutil.rmtree(folder, ignore_errors=True)


def _is_run_folder(path: Path) -> bool:
    with contextlib.suppress(OSError):
        status = path.lstat()
        is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        return is_ours and bool(_RUN_FOLDER.fullmatch(path.name))
    return False


def _may_execute(folder: Path) -> bool:
    """Tell whether a process that lives may still execute a script in the folder."""
    pids = (path.stem.partition("-")[2] for path in folder.glob("begin-*.py"))
    return any(process_files.stat(PROC / pid) for pid in pids)


def _place(process: ProcessFiles) -> Place:
    place = injected.place_of(process)
    if isinstance(place, Unknown):
        raise CannotRunHere(
            f"The agent cannot be loaded into process {process.pid}: {place.reason}.",
            hint="Leave --record out: dynotune then looks from outside alone.",
        )
    return place
