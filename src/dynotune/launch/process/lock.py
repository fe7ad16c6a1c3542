"""One measuring dynotune at a time on the same cores and GPUs: the second waits.

A byte of a file stands for a core or a GPU, and a record lock on it for its use. The kernel lets go of it
when the process dies, however it dies. The files are one user's own and name the boot of the machine, so that
a home folder shared between machines does not make one wait for the other.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from dynotune.launch.process import processes
from dynotune.schema import private
from dynotune.schema.errors import CannotRunHere, may_fail

# struct flock where off_t has 64 bits: l_type, l_whence, l_start, l_len, l_pid.
_FLOCK = struct.Struct("hhqqi4x")
_TO_THE_END = 0
_LONGEST_WAIT_S = 12 * 3600.0
_LOOK_AGAIN_S = 0.2


class _Part(NamedTuple):
    """A stretch of a lock file: its first byte and its length, `_TO_THE_END` for all that follow."""

    start: int
    length: int


@contextmanager
def measuring(
    state_dir: Path, *, cpus: Collection[int], gpus: Collection[int] | None, on_wait: Callable[[int | None], None]
) -> Iterator[None]:
    """Hold these cores and GPUs for measuring, waiting for whoever holds one of them.

    All or nothing: nothing is held while waiting, so two that want overlapping sets cannot block each other
    for good. Not reentrant: record locks do not exclude their own process.

    Args:
        cpus: logical numbers, as in the affinity mask. gpus: indices; None for all, as where they are not
        known. on_wait: called once before each wait with the id of the process that is waited for, None where
        unknown.

    Raises:
        CannotRunHere: the lock files cannot be made; the other is stopped, or holds them for hours.
    """
    wanted = [("cpus", _Part(cpu, 1)) for cpu in sorted(set(cpus))]
    every = [_Part(0, _TO_THE_END)]
    wanted += [("gpus", part) for part in (every if gpus is None else [_Part(gpu, 1) for gpu in sorted(set(gpus))])]
    files: dict[str, int] = {}
    try:
        for kind in ("cpus", "gpus"):
            files[kind] = _open(state_dir, kind)
        while (busy := _take_all(files, wanted)) is not None:
            kind, part = busy
            on_wait(_holder(files[kind], part))
            _wait_for(files[kind], part)
        yield
    finally:
        for descriptor in files.values():
            os.close(descriptor)


def visible_gpus(env: Mapping[str, str]) -> list[int] | None:
    """The GPUs that a command under `env` can use, by index; None when that may be any of them.

    Follows CUDA: what comes after an index that is no number of a device is not seen. UUIDs and MIG names are
    not resolved, and without CUDA_VISIBLE_DEVICES every GPU is visible; both are None. No device file: no
    GPU. Source: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables
    """
    if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/dxg").exists():
        return []
    return parse_visible(env.get("CUDA_VISIBLE_DEVICES"))


def parse_visible(text: str | None) -> list[int] | None:
    """The indices in a value of CUDA_VISIBLE_DEVICES; None when it is unset or names devices by UUID."""
    if text is None:
        return None
    indices: list[int] = []
    for word in text.split(","):
        if word.strip().isdecimal():
            indices.append(int(word))
        elif word.strip().lower().startswith(("gpu-", "mig-")):
            return None
        else:
            break
    return indices


def _take_all(files: Mapping[str, int], wanted: list[tuple[str, _Part]]) -> tuple[str, _Part] | None:
    """Lock all of them, or none and say which one is busy."""
    for kind, part in wanted:
        if not _take(files[kind], part):
            for descriptor in files.values():
                fcntl.lockf(descriptor, fcntl.LOCK_UN, _TO_THE_END, 0)
            return kind, part
    return None


def _take(descriptor: int, part: _Part) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, part.length, part.start)
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
                f"Another dynotune (process {holder.pid}) measures on the same cores or GPU, and is stopped.",
                hint=f"Let it go on (kill -CONT {holder.pid}) or end it; --no-lock does not wait for it.",
            )
        if time.monotonic() > deadline_s:
            who = f"Another dynotune (process {pid})" if pid else "Another dynotune"
            raise CannotRunHere(
                f"{who} has measured on the same cores or GPU for hours.",
                hint="Look at what it does; --no-lock does not wait for it.",
            )
        time.sleep(_LOOK_AGAIN_S)
    fcntl.lockf(descriptor, fcntl.LOCK_UN, part.length, part.start)


def _holder(descriptor: int, part: _Part) -> int | None:
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, part.start, part.length, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    # 0: a process that this pid namespace does not see. Unlocked: it let go meanwhile.
    return pid if kind != fcntl.F_UNLCK and pid > 0 else None


def _open(state_dir: Path, kind: str) -> int:
    with may_fail(f"make a lock in {state_dir}", "Free some space there, or measure without it: --no-lock."):
        private.folder(state_dir)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(state_dir / f"{_boot()}.{kind}.lock", flags, 0o600)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return os.uname().nodename
