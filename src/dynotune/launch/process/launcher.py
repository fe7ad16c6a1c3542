"""Start a command under a supervisor, and return a handle on all processes of the command."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import dynotune
from dynotune.launch.process import changes, executable, overlay, processes, run_folder
from dynotune.launch.process.changes import Changes, Snapshot
from dynotune.launch.process.inboxes import Messages
from dynotune.launch.process.leases import MARK, Lease, is_marked
from dynotune.launch.process.overlay import View
from dynotune.launch.process.sandbox import Seed, changes_in, prepare
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.text import exit_codes

SandboxMode = Literal["auto", "none"]

_SUPERVISOR = """\
import sys
sys.path.append(sys.argv[1])
from dynotune.launch.process.supervisor import main
main(int(sys.argv[2]))
"""
_FILES = "files"
_UNKILLABLE_S = 60.0
_UNENDABLE_S = 5.0
_START_S = 120.0
_REMOVAL_S = 600.0
_LOOK_AGAIN_S = 0.02


@dataclass(frozen=True)
class Exit:
    """End of the command: an exit code or a signal; the other field is None."""

    code: int | None = None
    signal: int | None = None

    @property
    def status(self) -> int:
        """Return the exit code, or minus the signal's number."""
        return -self.signal if self.signal is not None else self.code or 0


class Started(Protocol):
    """Processes that a live run works with: a command that was started, or a program that ran already."""

    @property
    def sandbox(self) -> Literal["overlay", "none"]: ...

    @property
    def sandbox_reason(self) -> str: ...

    @property
    def changed_files(self) -> list[str]: ...

    def wait(self, timeout_s: float | None = None) -> Exit | None: ...

    def end(self, grace_s: float = 5.0) -> Exit: ...

    def tree_pids(self) -> list[int]: ...

    def __exit__(self, *error: object) -> None: ...


def start(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    run_dir: Path | None,
    capture: bool = True,
    sandbox: SandboxMode = "none",
    keep: Sequence[Path] = (),
    seed: Seed | None = None,
    nice: int = 0,
) -> Launched:
    """Start `command` and return as soon as the command runs.

    A captured command gets the streams of `run_folder.captured`, with output in files there, and a session
    and a process group of its own, of which it is a plain member, as in a shell's script. `{run_dir}` in its
    arguments becomes a folder in the run folder, and all of the command's processes are ended when the
    command ends. A command that is not captured gets dynotune's descriptors and process group and unchanged
    arguments, and its background processes go on.

    The calling process becomes a subreaper, so that even a killed supervisor leaves no orphan. The command
    inherits ignored signals and the signal mask, except for SIGPIPE and SIGXFSZ: Python ignores SIGPIPE and
    SIGXFSZ at its start, and cannot find out their earlier state.

    Args:
        env: complete environment of the command; `DYNOTUNE_RUN` is added to identify its processes.
        run_dir: run folder; None keeps no files and is allowed only without `capture`.
        sandbox: `auto` shows `cwd` copy-on-write if the kernel supports it; only with `capture`.
        keep: folders, such as caches, to which writes in the view go for real, in addition to the run folder.
        seed: other files with which the view shows the folder above `cwd`; needs a view.

    Raises:
        UsageError: the command or the working directory does not exist or cannot be used.
        CannotRunHere: the machine does not allow the command's start.
    """
    cwd = cwd.absolute()
    if run_dir is not None:
        run_dir = run_dir.absolute()
    elif capture:
        raise ValueError("captured output is kept in the run folder")
    if not cwd.is_dir():
        raise UsageError(f"The working directory {cwd} does not exist.", hint="Check the path.")
    argv = _fill_in(command, run_dir) if capture and run_dir else list(command)
    lease = Lease(run_dir)
    order: dict[str, Any] = {
        "command": argv,
        "executable": executable.find_executable(argv[0] if argv else "", env=env, cwd=cwd),
        "env": dict(env) if run_dir is None else {**env, MARK: str(run_dir)},
        "cwd": str(cwd),
        "ignored": _ignored_signals(),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "own_group": capture,
        "end_the_rest": capture,
        "nice": nice,
        "view": None,
    }
    view: View | str = "it was not asked for"
    if run_dir is not None and capture and sandbox == "auto":
        view = prepare(cwd, run_dir, keep, seed, lease)
    if seed is not None and isinstance(view, str):
        lease.give_back()
        raise CannotRunHere(
            f"{seed.root} cannot be run in a view with other files: {view}.",
            hint="This needs a copy-on-write view.",
        )
    if isinstance(view, View):
        order["view"] = view._asdict()
    ours = [path.resolve() for path in (run_dir, *keep) if path is not None]
    try:
        before = changes.scan(cwd.resolve(), skip=ours) if capture and order["view"] is None else None
        processes.become_subreaper()
        if capture and lease.descriptor is None:
            lease.take()
        order["lease"] = {"path": str(lease.path), "descriptor": lease.descriptor}
        supervisor, messages = _start_supervisor(run_dir if capture else None, lease)
        messages.send(order)
        launched = Launched(order, run_dir, supervisor, messages, view, before, ours, lease)
        launched._wait_until_started()
    except BaseException:
        if isinstance(view, View):
            overlay.remove(view.scratch)
        lease.give_back()
        raise
    return launched


@dataclass(eq=False)
class Launched:
    """A started command and all of its processes. Leaving the `with` block ends the remaining processes.

    `changes`: changes to files below the working directory, or to their copies; set when a captured run ends.
    """

    _order: Mapping[str, Any]
    _run_dir: Path | None
    _supervisor: subprocess.Popen[bytes]
    _messages: Messages
    _view: View | str
    _before: Snapshot | None
    _ours: Sequence[Path]
    _lease: Lease
    pid: int = 0
    changes: Changes = field(default_factory=Changes)
    _over: bool = False
    _exit: Exit | None = None
    _cpu_s: float | None = None
    _stopped: bool = False

    @property
    def sandbox(self) -> Literal["overlay", "none"]:
        """Tell whether the command works on a copy of its working directory."""
        return "overlay" if isinstance(self._view, View) else "none"

    @property
    def sandbox_reason(self) -> str:
        """Return why the command does not work on a copy of its working directory; "" if it does."""
        return self._view if isinstance(self._view, str) else ""

    @property
    def changed_files(self) -> list[str]:
        return self.changes.paths

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when `poll` has something to read."""
        return self._messages.fileno()

    def poll(self) -> Exit | None:
        """Return how the command ended once all of the command's processes have ended; None before.

        Raises:
            CannotRunHere: the supervisor was killed (then all processes are ended), or a process cannot be
                ended.
        """
        if self._exit is None:
            for message in self._messages.take():
                self._learn(message)
            if self._messages.broken and self._exit is None:
                raise self._lost()
        return self._exit

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        """Wait for the result of `poll`, for at most `timeout_s` seconds; None waits without limit."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        ready = select.poll()
        ready.register(self.fileno(), select.POLLIN)
        while (exit_ := self.poll()) is None:
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            ready.poll(None if left_s is None else left_s * 1000 + 1)
        return exit_

    def end(self, grace_s: float = 5.0) -> Exit:
        """End every process of the command: SIGTERM, then SIGKILL after `grace_s` (at once when 0).

        Raises CannotRunHere: as for `poll`, or a process that is stuck in the kernel does not die.
        """
        if self._exit is None:
            self._messages.send({"end": grace_s})
        exit_ = self.wait(grace_s + _UNKILLABLE_S)
        if exit_ is None:
            raise CannotRunHere(
                f"Processes of the command do not die, stuck in the kernel: {_list(self.tree_pids())}.",
                hint="Look at what they wait for (ps -o pid,stat,wchan): often a driver or a network drive.",
            )
        return exit_

    def send_signal(self, number: int) -> None:
        """Forward a signal to the command, unless its process group has already received it (see
        `supervisor`)."""
        self._messages.send({"signal": number})

    def take_stop(self) -> bool:
        """Tell whether the command was stopped since the last call."""
        stopped, self._stopped = self._stopped, False
        return stopped

    def tree_pids(self) -> list[int]:
        """Return the sorted ids of the command's living processes, including other sessions and daemons."""
        if self._supervisor.returncode is not None:
            return []
        return sorted(process.pid for process in processes.descendants(self._supervisor.pid))

    def cpu_s(self) -> float | None:
        """Return the CPU time (s) that all processes of the command have used, ended ones included; None if
        unknown.

        Processes whose parents ignore SIGCHLD count only while they live, because the kernel keeps no total
        for them.
        """
        if self._over or self._supervisor.returncode is not None:
            return self._cpu_s
        supervisor = processes.read(self._supervisor.pid)
        if supervisor is None or supervisor.state in "ZX":
            return None
        return supervisor.reaped_cpu_s + sum(
            process.cpu_s + process.reaped_cpu_s for process in processes.tree(supervisor.pid)
        )

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if not self._over and self._supervisor.returncode is None:
                self.end(grace_s=0.0)
        finally:
            self._leave_supervisor()

    def _wait_until_started(self) -> None:
        try:
            message = self._messages.wait_for_one(_START_S)
            if message is None and not self._messages.broken:
                self._supervisor.kill()
                self._lost()
                message = {"failed": "hang", "errno": errno.ETIMEDOUT, "why": ""}
            if message is None:
                raise self._lost()
            if "pid" not in message:
                raise executable.not_started(self._order, message)
        except BaseException:
            self._leave_supervisor()
            raise
        self.pid = message["pid"]

    def _leave_supervisor(self) -> None:
        """Wait until the supervisor has ended all processes; only the supervisor goes on trying if one does
        not die."""
        self._messages.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._supervisor.wait(_UNKILLABLE_S)
        self._lease.close()

    def _learn(self, message: Mapping[str, Any]) -> None:
        if "stopped" in message:
            self._stopped = True
            return
        self._over = True
        self._cpu_s = message["cpu_s"]
        try:
            self._look_at_changes()
        finally:
            # The supervisor removes the copies once dynotune has read them; wait not longer than _REMOVAL_S.
            self._messages.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                if self._supervisor.wait(_REMOVAL_S):  # it was killed after its report
                    self._remove_copies()
                    self._lease.give_back()
        if message["left"]:
            raise CannotRunHere(
                f"Another user's processes are left: {_list(message['left'])}.",
                hint="End them by hand. A command that becomes another user (sudo) cannot be ended here.",
            )
        self._exit = Exit(code=message.get("exit"), signal=message.get("signal"))

    def _look_at_changes(self) -> None:
        if isinstance(self._view, View):
            self.changes = changes_in(self._view)
        elif self._before is not None:
            after = changes.scan(Path(self._order["cwd"]).resolve(), skip=self._ours)
            self.changes = changes.between(self._before, after)

    def _lost(self) -> CannotRunHere:
        """End the processes that a killed supervisor left running."""
        try:
            status = self._supervisor.wait(_UNKILLABLE_S)
        except subprocess.TimeoutExpired:
            return CannotRunHere(
                f"The process that watches over the command (process {self._supervisor.pid}) does not "
                "answer, and does "
                "not end.",
                hint="Look at what it waits for (ps -o pid,stat,wchan), and end it and the command by hand.",
            )
        left = self._end_orphans()
        self._remove_copies()
        if not left:
            self._lease.give_back()
        ended = f"The process that watches over the command has ended {exit_codes.ending(status)}"
        if left:
            return CannotRunHere(
                f"{ended}, and processes of the command do not die: {_list(left)}.",
                hint="Look at what they wait for (ps -o pid,user,stat,wchan), and end them by hand.",
            )
        return CannotRunHere(
            f"{ended}.",
            hint=(
                "All processes of the command were ended. If memory ran out, the kernel's log says so "
                "(dmesg)."
            ),
        )

    def _remove_copies(self) -> None:
        if isinstance(self._view, View):
            overlay.remove(self._view.scratch)

    def _end_orphans(self) -> list[int]:
        """Kill and reap the remaining processes of the command, which as orphans are now children of
        dynotune.

        Returns:
            Ids of processes still alive after the limit: another user's, or stuck in the kernel.
        """
        began_s = time.monotonic()
        killed: dict[int, processes.Process] = {}
        refused: set[int] = set()
        while True:
            orphans = [each for each in processes.descendants(os.getpid()) if self._is_ours(each)]
            for process in orphans:
                refused.update(processes.kill_all(process.pid))
                if not processes.send(process, signal.SIGKILL):
                    refused.add(process.pid)
                killed[process.pid] = process
            killed = {pid: process for pid, process in killed.items() if not _is_reaped(process, killed)}
            if not orphans and not killed:
                return []
            # Nothing else reaps a process that may not be ended.
            limit_s = _UNENDABLE_S if refused.issuperset(killed) else _UNKILLABLE_S
            if time.monotonic() >= began_s + limit_s:
                return sorted(killed)
            time.sleep(_LOOK_AGAIN_S)

    def _is_ours(self, process: processes.Process) -> bool:
        # The supervisor of a captured command leads the session of the command.
        in_session = self._order["own_group"] and process.session == self._supervisor.pid
        run_dir = "" if self._run_dir is None else str(self._run_dir)
        return in_session or is_marked(process.pid, self._lease.token, run_dir)


def _start_supervisor(run_dir: Path | None, lease: Lease) -> tuple[subprocess.Popen[bytes], Messages]:
    """Start the supervisor with streams in `run_dir`, which captures the output; None uses dynotune's own
    streams."""
    ours, theirs = socket.socketpair()
    source = str(Path(dynotune.__file__).parent.parent)
    command = [sys.executable, "-I", "-S", "-c", _SUPERVISOR, source, str(theirs.fileno())]
    found = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with theirs, run_folder.captured(run_dir) as streams:
            if run_dir is not None:
                passed = [theirs.fileno()] + ([] if lease.descriptor is None else [lease.descriptor])
                more: dict[str, Any] = {"start_new_session": True, "pass_fds": passed}
            else:
                # The command also inherits all descriptors beyond the three standard ones that dynotune was
                # given.
                theirs.set_inheritable(True)
                more = {"close_fds": False}
            # Working in "/" keeps no file system busy. It also stops subprocess from choosing posix_spawn(3),
            # which would leave signals 32 and 33 ignored.
            supervisor = subprocess.Popen(command, cwd="/", **streams, **more)
    except OSError as error:
        ours.close()
        raise executable.no_process(error.strerror or str(error)) from error
    except BaseException:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, found)
    return supervisor, Messages(ours)


def _fill_in(command: Sequence[str], run_dir: Path) -> list[str]:
    if not any("{run_dir}" in word for word in command):
        return list(command)
    files = run_dir / _FILES
    files.mkdir(mode=0o700, exist_ok=True)
    return [word.replace("{run_dir}", str(files)) for word in command]


def _ignored_signals() -> list[int]:
    ignored = {number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN}
    return sorted(ignored - {signal.SIGPIPE, signal.SIGXFSZ})


def _is_reaped(process: processes.Process, dying: Collection[int]) -> bool:
    """Tell whether the process has ended and was reaped, or is a zombie that its own parent has to reap.

    `dying`: ids of killed processes. Zombies whose parent is killed become children of dynotune.
    """
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)
    now = processes.read(process.pid)
    if now is None or now.start_ticks != process.start_ticks:
        return True
    return now.state in "ZX" and now.parent != os.getpid() and now.parent not in dying


def _list(pids: Sequence[int]) -> str:
    return ", ".join(map(str, pids))
