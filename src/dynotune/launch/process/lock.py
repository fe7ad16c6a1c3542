"""Let only one dynotune process at a time measure on the same cores and GPUs; a second process waits.

Each core or GPU has a byte in a file, and a record lock on the byte marks its use. The kernel releases the
lock when the process dies, for whatever reason. Each user has one file per boot of the machine, so that
machines with a shared home folder do not wait for each other.
"""

import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from dynotune.launch.process import processes
from dynotune.schema import private
from dynotune.schema.errors import CannotRunHere, may_fail

# struct flock with a 64-bit off_t: l_type, l_whence, l_start, l_len, l_pid.
_FLOCK = struct.Struct("hhqqi4x")
_FIRST_GPU = 1 << 20
_TO_THE_END = 0
_LONGEST_WAIT_S = 12 * 3600.0
_LOOK_AGAIN_S = 0.2

_Part = tuple[int, int]
"""A range of bytes in the file: its start and its length, or `_TO_THE_END` for an open end."""


@contextmanager
def measuring(
    state_dir: Path,
    *,
    cpus: Collection[int],
    gpus: Collection[int] | None,
    on_wait: Callable[[int | None], None],
) -> Iterator[None]:
    """Lock cores and GPUs for measuring; wait while another dynotune has locked any of these cores or GPUs.

    A waiting process holds no lock, so two processes with overlapping sets cannot deadlock. The lock is not
    reentrant: record locks do not exclude their own process.

    Args:
        cpus: logical numbers, as in the affinity mask.
        gpus: indices of GPUs; None means all GPUs, also if the GPUs are unknown.
        on_wait: function called before each wait with the id of the process that holds the lock; None if
            unknown.

    Raises CannotRunHere: the lock file cannot be made, or the other process is stopped or holds the lock for
    hours.
    """
    wanted = [(cpu, 1) for cpu in sorted(set(cpus))]
    wanted += (
        [(_FIRST_GPU, _TO_THE_END)] if gpus is None else [(_FIRST_GPU + gpu, 1) for gpu in sorted(set(gpus))]
    )
    with may_fail(
        f"make a lock in {state_dir}", "Free some space there, or measure without the lock: --no-lock."
    ):
        private.folder(state_dir)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(state_dir / f"{_boot()}.lock", flags, 0o600)
    try:
        while (busy := next((part for part in wanted if not _take(descriptor, part)), None)) is not None:
            _let_go(descriptor, (0, _TO_THE_END))
            on_wait(_holder(descriptor, busy))
            _wait_for(descriptor, busy)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, part: _Part) -> bool:
    start, length = part
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        return False
    return True


def _wait_for(descriptor: int, part: _Part) -> None:
    deadline_s = time.monotonic() + _LONGEST_WAIT_S
    while not _take(descriptor, part):
        pid = _holder(descriptor, part)
        holder = None if pid is None else processes.read(pid)
        if holder is not None and holder.state in "Tt":
            raise CannotRunHere(
                f"Another dynotune (process {holder.pid}) measures on the same cores or GPU, and is "
                "suspended.",
                hint=f"Let it go on (kill -CONT {holder.pid}) or end it; --no-lock does not wait for it.",
            )
        if time.monotonic() > deadline_s:
            who = f"Another dynotune (process {pid})" if pid else "Another dynotune"
            raise CannotRunHere(
                f"{who} has measured on the same cores or GPU for hours.",
                hint="Look at what it does; --no-lock does not wait for it.",
            )
        time.sleep(_LOOK_AGAIN_S)
    _let_go(descriptor, part)


def _let_go(descriptor: int, part: _Part) -> None:
    start, length = part
    fcntl.lockf(descriptor, fcntl.LOCK_UN, length, start)


def _holder(descriptor: int, part: _Part) -> int | None:
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, *part, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    # 0: a process outside this pid namespace. Unlocked: the other process has released the lock meanwhile.
    return pid if kind != fcntl.F_UNLCK and pid > 0 else None


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return os.uname().nodename
