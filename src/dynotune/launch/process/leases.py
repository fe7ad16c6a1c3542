"""Record the remains that a captured run would leave if dynotune and its supervisor were killed; remove
remains later.

A lease is a file in the user's state folder that names the run folder and the folder of the run's copies.
Dynotune and the supervisor lock the file. The kernel releases the lock when dynotune and the supervisor are
dead, whatever killed them, so no process id has to be trusted. A later start of dynotune takes unlocked
leases, ends processes that have the run folder in their environment or see the run's mount, and removes the
copies.
"""

import contextlib
import fcntl
import json
import os
import secrets
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dynotune.launch.process import overlay, processes
from dynotune.schema import private, untrusted

MARK = "DYNOTUNE_RUN"
PREFIX = "dt-"
"""Keep the prefix short: programs put sockets below their temporary folder, and their paths have at most 107
bytes."""
_OLD_S = 30 * 86400.0
_ENDING_S = 10.0
_LOOK_AGAIN_S = 0.02


class Lease:
    """Lease that lasts from `take` to `give_back`, or until all holders of its descriptor are dead.

    Args:
        run_dir: run folder that identifies the run's processes; None if the run starts no process that could
            remain.
        descriptor: descriptor to pass to the supervisor; None if no file could be made.
    """

    def __init__(self, run_dir: Path | None = None) -> None:
        self._run_dir = run_dir
        self.token = secrets.token_hex(8)
        self.path = _folder() / f"{self.token}.json"
        self.descriptor: int | None = None

    def scratch_below(self, base: Path) -> Path:
        """Return the folder for the run's copies or other temporary files. The folder's name is its mount's
        source."""
        return base / f"{PREFIX}{self.token}"

    def take(self, scratch: str = "") -> None:
        """Write the lease to disk, if the disk has room. `scratch`: the folder of copies, which is made
        afterwards."""
        partial = self.path.with_suffix(".new")
        with contextlib.suppress(OSError):
            private.folder(self.path.parent.parent, self.path.parent.name)
            descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                # Lock the file before it gets its name, so that no other process finds it unlocked.
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                run_dir = "" if self._run_dir is None else str(self._run_dir)
                noted = {"token": self.token, "run_dir": run_dir, "scratch": scratch, "where": _where()}
                os.write(descriptor, json.dumps(noted).encode())
                partial.rename(self.path)
            except OSError:
                os.close(descriptor)
                partial.unlink(missing_ok=True)
                raise
            self.descriptor = descriptor

    def make_scratch(self, base: Path) -> Path:
        """Make the folder of copies after recording it in the lease. Raises OSError: the folder cannot be
        made."""
        scratch = self.scratch_below(base)
        self.take(str(scratch))
        try:
            scratch.mkdir(mode=0o700)
        except OSError:
            self.give_back()
            raise
        return scratch

    def close(self) -> None:
        """Close this process's descriptor; the lease lasts until the supervisor closes its own descriptor."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def give_back(self) -> None:
        """Delete the lease, because nothing of the run remains."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        self.close()


@contextlib.contextmanager
def temporary_folder(base: Path) -> Iterator[Path]:
    """Make a private folder in `base`; remove the folder at the end, or by a later `sweep` if dynotune is
    killed.

    Raises OSError: the folder cannot be made.
    """
    lease = Lease()
    scratch = lease.make_scratch(base)
    try:
        yield scratch
    finally:
        overlay.remove(str(scratch))
        lease.give_back()


class Leftovers(NamedTuple):
    """Remains of killed runs that were removed."""

    num_processes: int = 0
    num_bytes: int = 0


def sweep() -> Leftovers:
    """Remove the remains of runs whose dynotune and supervisor were killed; leave living runs alone.

    Leases stay for processes that cannot be ended and files that cannot be removed, so that the next call
    tries again.
    """
    found = Leftovers()
    try:
        if _folder().stat().st_uid != os.geteuid():
            return found
        paths = sorted(_folder().glob("*.json"))
    except OSError:
        return found
    for path in paths:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            one = _sweep_one(path)
            found = Leftovers(found.num_processes + one.num_processes, found.num_bytes + one.num_bytes)
    return found


def _sweep_one(path: Path) -> Leftovers:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            return Leftovers()
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        noted = json.loads(file.read())
        token, scratch, is_here = str(noted["token"]), Path(noted["scratch"]), noted["where"] == _where()
        if len(token) < 16 or path.stem != token:
            return Leftovers()
        num_processes = _end_marked(token, str(noted["run_dir"])) if is_here else 0
        num_bytes = 0
        if _is_ours(scratch, token):
            num_bytes = size_bytes(scratch)
            overlay.remove(str(scratch))
            if scratch.exists():
                return Leftovers(num_processes)
        elif not is_here and time.time() - status.st_mtime < _OLD_S:
            return Leftovers()  # belongs to another machine that shares this home folder
        path.unlink(missing_ok=True)
        return Leftovers(num_processes, num_bytes)


def _end_marked(token: str, run_dir: str) -> int:
    """Send SIGKILL to the processes of a run and to all descendants of these processes.

    Returns:
        The number of processes.

    Raises:
        TimeoutError: some processes remain.
        BlockingIOError: another run now uses that folder. A run writes its lease before it starts, so
            checking leases after listing processes covers every listed process.
    """
    deadline_s = time.monotonic() + _ENDING_S
    ended: set[tuple[int, int]] = set()
    while marked := [one for one in processes.everyone() if is_marked(one.pid, token, run_dir)]:
        if _is_held(run_dir, but=token):
            raise BlockingIOError
        for process in marked:
            ended.update(
                (below.pid, below.start_ticks) for below in [process, *processes.descendants(process.pid)]
            )
            processes.kill_all(process.pid)
            processes.send(process, signal.SIGKILL)
        if time.monotonic() > deadline_s:
            raise TimeoutError
        time.sleep(_LOOK_AGAIN_S)
    return len(ended)


def _is_held(run_dir: str, *, but: str) -> bool:
    """Tell whether a living run uses the folder."""
    for path in _folder().glob("*.json"):
        with contextlib.suppress(OSError, ValueError), untrusted.opened(path, link=False) as file:
            if path.stem != but and json.loads(file.read()).get("run_dir") == run_dir:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
    return False


def is_marked(pid: int, token: str, run_dir: str) -> bool:
    """Tell whether a process has a run's folder in its environment, or sees the run's view.

    `run_dir`: run folder; "" looks for the view alone.
    """
    if pid == os.getpid():
        return False
    if run_dir and processes.environment_holds(pid, os.fsencode(f"{MARK}={run_dir}")):
        return True
    with contextlib.suppress(OSError):
        return f"{PREFIX}{token}".encode() in Path(f"/proc/{pid}/mountinfo").read_bytes().split()
    return False


def _is_ours(scratch: Path, token: str) -> bool:
    """Tell whether a run of this user's dynotune made the folder, and nobody has replaced the folder."""
    try:
        status = scratch.lstat()
        return (
            stat.S_ISDIR(status.st_mode)
            and status.st_uid == os.geteuid()
            and scratch.name == f"{PREFIX}{token}"
        )
    except OSError:
        return False


def size_bytes(folder: Path) -> int:
    """Return the disk space of a folder in bytes, without following links."""
    found = 0
    for inside, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                found += Path(inside, name).lstat().st_blocks * 512
    return found


def _folder() -> Path:
    return private.state_folder() / "leases"


def _where() -> str:
    """Identify this machine, this boot and this pid namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {Path('/proc/self/ns/pid').stat().st_ino}"
