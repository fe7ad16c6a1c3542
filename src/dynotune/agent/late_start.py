"""Start the agent in a program that already runs, and take it out again when dynotune lets go of it.

All of this runs in a thread of its own, so the program's main thread goes on meanwhile, and Python runs the
program's signal handlers in the main thread alone, so none of them interrupts the agent here.

dynotune holds a lock on a file as long as the agent shall stay, and shares it from then on until the run
folder is removed. The kernel frees the lock if dynotune is killed: then the agent leaves, too, and removes
the folder.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
from time import monotonic, sleep

from .core.covers import replaced
from .core.forks import Forks
from .own_modules import forget_modules, import_in_pieces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .joined import JoinedAgent

LOOK_S = 0.2
"""Seconds between two looks at the lock; opening and asking take some microseconds."""
SOON_S = 0.02
PATIENCE_S = 10.0
"""Seconds in which the program's own thread may end a task. Without a step for so long, this thread ends the
task, unless the task records: a recording is ended by the main thread, which began it."""
SILENT_S = 15.0
"""Seconds after which a dynotune that touches its lock no more counts as gone: it was stopped, not ended."""
FAILED = "failed.txt"
MOST_REMOVING_S = 30.0
"""Seconds in which a dynotune that lives removes the folder."""
SCRIPT = "begin-"
"""Beginning of the names of scripts that processes have been asked to execute, and that have to exist when
they do."""


def stay_while_held(folder: str, lock: str, pid: int) -> None:
    """Run the agent until nobody holds the lock.

    Args:
        folder: run folder with the plan, which gets the record, or a file `FAILED` with the reason.
        lock: file that dynotune holds locked.
        pid: this process's id as dynotune sees it.
    """
    own_pid = os.getpid()
    replaced.is_kept = True
    forks = Forks(_leave_in_child)

    def at_exit() -> None:
        if os.getpid() == own_pid and is_free(lock):
            _remove(folder, sees_pids=pid == own_pid)

    atexit.register(at_exit)
    try:
        import_in_pieces()
        holder = Holder(lock)
        if holder.is_there():
            from .joined import JoinedAgent

            agent = JoinedAgent.in_running_program(folder, pid, forks)
            _stay(agent, holder)
    except Exception as error:
        _say_why(folder, "%s: %s" % (type(error).__name__, error))
    finally:
        replaced.restore()
        atexit.unregister(at_exit)
        forget_modules()
    remove_after(folder, lock, sees_pids=pid == own_pid)


def _leave_in_child() -> None:
    """Take out of a fork what is there before the agent has come."""
    replaced.restore()
    forget_modules()


class Holder:
    """The process that holds a lock, and that touches the lock's file as long as it is not stopped.

    The time of a touch is only compared with that of the touch before: the clock of the day may be set, and
    the program's may be another one than dynotune's.
    """

    def __init__(self, lock: str) -> None:
        self._lock = lock
        self._touched_ns, self._seen_s = -1, 0.0

    def is_there(self) -> bool:
        """Tell whether another process holds the lock, and has touched it lately; without the file, nobody
        does."""
        try:
            descriptor = os.open(self._lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            touched_ns = os.fstat(descriptor).st_mtime_ns
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if touched_ns != self._touched_ns:
                self._touched_ns, self._seen_s = touched_ns, monotonic()
            return monotonic() - self._seen_s < SILENT_S
        except OSError:  # where locks do not work, nobody would be seen to let go
            return False
        finally:
            os.close(descriptor)
        return False


def _stay(agent: JoinedAgent, holder: Holder) -> None:
    pid = os.getpid()
    while holder.is_there():
        sleep(LOOK_S)
        agent.bound_recording()
    until_s = monotonic() + PATIENCE_S
    agent.ask_to_end_tasks()
    while os.getpid() == pid:
        is_late = monotonic() >= until_s
        agent.bound_recording("dynotune has left the program" if is_late else "")
        if agent.leave_between_tasks(PATIENCE_S, anyway=is_late and not agent.is_recording):
            return
        sleep(SOON_S)
        agent.ask_to_end_tasks()


def remove_after(folder: str, lock: str, *, sees_pids: bool) -> None:
    """Wait until dynotune has removed the run folder, or has ended without; then remove the folder, but for
    scripts that a process may still execute.

    `sees_pids`: whether the process ids in the scripts' names are those of this process's namespace.
    """
    pid, until_s = os.getpid(), monotonic() + MOST_REMOVING_S
    while not is_free(lock):
        if monotonic() >= until_s or os.getpid() != pid:
            return
        sleep(LOOK_S)
    _remove(folder, sees_pids=sees_pids)


def is_free(lock: str) -> bool:
    """Tell whether no process holds the lock, not even together with others; without the file, none does."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _remove(folder: str, *, sees_pids: bool) -> None:
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        path = os.path.join(folder, name)
        asked = name[len(SCRIPT) :].partition(".")[0] if name.startswith(SCRIPT) else ""
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        elif not asked or (sees_pids and not os.path.exists("/proc/" + asked)):
            with contextlib.suppress(OSError):  # another rank's agent removes it, too
                os.unlink(path)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def _say_why(folder: str, reason: str) -> None:
    try:
        descriptor = os.open(os.path.join(folder, FAILED), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(reason)
    except OSError:  # dynotune has gone, and the folder with it
        pass
