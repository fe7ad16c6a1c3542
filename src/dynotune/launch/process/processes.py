"""Read the kernel's process table, find a process's descendants, and send signals that cannot reach a wrong
process."""

import contextlib
import ctypes
import errno
import os
import signal
import time
from collections.abc import Iterator
from typing import NamedTuple

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """State of one process, from /proc/PID/stat.

    Args:
        start_ticks: start time since boot; together with `pid` it identifies a process, since pids are
            reused.
        reaped_cpu_s: CPU time (s) of children that the process has waited for, and of their reaped children.
    """

    pid: int
    parent: int
    session: int
    state: str
    start_ticks: int
    cpu_s: float
    reaped_cpu_s: float


def read(pid: int) -> Process | None:
    """Read the state of process `pid`; None if the process does not exist or is not visible."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The name in parentheses may itself have blanks and parentheses.
    fields = line[line.rindex(b")") + 2 :].split()
    return Process(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        state=fields[0].decode(),
        start_ticks=int(fields[19]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        reaped_cpu_s=(int(fields[13]) + int(fields[14])) / _TICKS_PER_S,
    )


def tree(root: int) -> list[Process]:
    """Return every process below `root`, including other sessions and zombies.

    A process that forks during the walk can be missed; repeat the walk until it finds nothing new.
    """
    children: dict[int, list[Process]] = {}
    for process in everyone():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    to_visit = [root]
    while to_visit:
        below = children.pop(to_visit.pop(), [])
        found.extend(below)
        to_visit.extend(process.pid for process in below)
    return found


def descendants(root: int) -> list[Process]:
    """List the living processes of `tree`."""
    return [process for process in tree(root) if process.state not in "ZX"]


def everyone() -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := read(int(name))) is not None:
            yield process


def environment_holds(pid: int, entry: bytes) -> bool:
    """Tell whether the process was started with `entry` (`NAME=value`) in its environment; False if
    unknown."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return entry in file.read().split(b"\0")
    except OSError:
        return False


def started_here(pid: int, folder: os.PathLike[str]) -> Process | None:
    """Return the process if this process started it, as one of the run in `folder`; None if that is not
    proved.

    The proof: the process was started with `DYNOTUNE_RUN` of that folder, and not before this process. The
    process that had the id at the first look has it still at the last, so `send` reaches it or nobody.
    """
    process, ours = read(pid), read(os.getpid())
    if process is None or ours is None or process.start_ticks < ours.start_ticks:
        return None
    is_marked = environment_holds(pid, b"DYNOTUNE_RUN=" + os.fsencode(folder))
    now = read(pid)
    return process if is_marked and now is not None and now.start_ticks == process.start_ticks else None


def send(process: Process, number: int) -> bool:
    """Send a signal to exactly this process. Return False without permission; an ended process counts as
    success."""
    descriptor: int | None = None
    try:
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError as error:
            # On an old kernel or under an old system call filter, signal by process id, checked immediately
            # before.
            if error.errno not in (errno.ENOSYS, errno.EPERM):
                raise
        now = read(process.pid)
        if now is None or now.start_ticks != process.start_ticks:
            return True
        if descriptor is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return True


def kill_all(root: int, limit_s: float = 1.0) -> list[int]:
    """Stop, then kill all processes below `root`. Return the ids of processes that may not be signalled.

    Stopping first keeps a tree that forks quickly from growing faster than its processes are killed. A tree
    of another user can still grow: after `limit_s` seconds no more of its processes are searched.
    """
    frozen: set[int] = set()
    refused: set[int] = set()
    deadline_s = time.monotonic() + limit_s
    while new := [p for p in descendants(root) if p.pid not in frozen | refused]:
        if refused and time.monotonic() > deadline_s:
            break
        for process in new:
            (frozen if send(process, signal.SIGSTOP) else refused).add(process.pid)
    for process in descendants(root):
        if process.pid not in refused:
            send(process, signal.SIGKILL)
    return sorted(refused)


def become_subreaper() -> None:
    """Make orphans below this process its children from now on (Linux 3.4)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Have the kernel SIGKILL this process when the thread that forked it ends; this stays in force after
    `exec`."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def dump_no_core() -> None:
    """Let this process die without a core file, whatever the value of core_pattern."""
    with contextlib.suppress(OSError):
        _prctl(_PR_SET_DUMPABLE, 0)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
