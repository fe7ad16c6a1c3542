"""Read the files of one process of the same user below `/proc`, bounded, and None where the process has
ended.

Anyone may have chosen the name, the arguments and the environment of a process, so callers quote what they
show.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from dynotune.schema.facts import Unknown

PROC = Path("/proc")
MOST_BYTES = 1 << 22
"""Bytes that are read of one file. An environment may have 6 MiB, mapped libraries of a large program 1
MiB."""

STATE, PARENT, USER, SYSTEM, NUM_THREADS, START, RSS = 0, 1, 11, 12, 17, 19, 21
"""Positions after the name in `/proc/PID/stat`. Source: proc_pid_stat(5)."""

_PYTHON = re.compile(r"(python|pypy)(\d+(\.\d+)*t?)?")
_LIBPYTHON = re.compile(r"/lib(python|pypy)\d[^/]*\.so")
_SPAWNED = ("multiprocessing.spawn", "spawn_main", "multiprocessing.forkserver")


class ProcessFiles(NamedTuple):
    """What the files of one process say, at one time.

    Args:
        name: the process's name (`comm`), at most 15 bytes, which the program itself may set.
        start_ticks: start since boot; with `pid` it identifies the process, since ids are used again.
        libraries: paths of the mapped files, by which torch and CUDA are recognised.
    """

    pid: int
    parent: int
    name: str
    state: str
    start_ticks: int
    arguments: tuple[str, ...]
    environment: dict[str, str] | Unknown
    executable: str
    libraries: frozenset[str]

    @property
    def is_python(self) -> bool:
        program = self.executable.removesuffix(" (deleted)").rpartition("/")[2]
        return bool(_PYTHON.fullmatch(program)) or any(_LIBPYTHON.search(path) for path in self.libraries)

    @property
    def has_torch(self) -> bool:
        return self._maps("libtorch")

    @property
    def has_cuda(self) -> bool:
        return self._maps("libcuda.so")

    @property
    def is_spawned(self) -> bool:
        """Whether Python's multiprocessing started the process as a new interpreter, not as a fork."""
        return any(word in argument for argument in self.arguments[:6] for word in _SPAWNED)

    def variable(self, name: str) -> str | None:
        return None if isinstance(self.environment, Unknown) else self.environment.get(name)

    def torch_file(self, below: str) -> Path | None:
        """Return a file of the torch that is mapped; None without torch."""
        found = next((path for path in self.libraries if "/torch/lib/libtorch" in path), None)
        return Path(found.partition("/lib/libtorch")[0]) / below if found else None

    def _maps(self, library: str) -> bool:
        return any(path.rpartition("/")[2].startswith(library) for path in self.libraries)


def read(pid: int, proc: Path = PROC) -> ProcessFiles | None:
    """Read one process; None if it has ended, is a zombie, or does not exist."""
    found = stat(proc / str(pid))
    if found is None or found[1][STATE] in (b"Z", b"X"):
        return None
    folder = proc / str(pid)
    return ProcessFiles(
        pid=pid,
        parent=int(found[1][PARENT]),
        name=found[0],
        state=found[1][STATE].decode(),
        start_ticks=int(found[1][START]),
        arguments=tuple(os.fsdecode(word) for word in (content(folder / "cmdline") or b"").split(b"\0")[:-1]),
        environment=environment(folder / "environ"),
        executable=link(folder / "exe"),
        libraries=libraries(folder / "maps"),
    )


def lives(process: ProcessFiles, proc: Path = PROC) -> bool:
    """Tell whether a process still lives, and not another one of its id."""
    found = stat(proc / str(process.pid))
    return (
        found is not None
        and found[1][STATE] not in (b"Z", b"X")
        and int(found[1][START]) == process.start_ticks
    )


def owner(pid: int, proc: Path = PROC) -> int | None:
    """Return the effective user id of a process; None if it does not exist."""
    found = re.search(rb"^Uid:\s+\d+\s+(\d+)", content(proc / str(pid) / "status") or b"", re.MULTILINE)
    return int(found[1]) if found else None


def stat(folder: Path) -> tuple[str, list[bytes]] | None:
    """Return the name and the fields after the name of a process or thread; None if it has ended."""
    line = content(folder / "stat")
    if not line or b")" not in line:
        return None
    name, _, rest = line.partition(b"(")[2].rpartition(b")")
    return name.decode(errors="replace"), rest.split()


def content(path: Path) -> bytes | None:
    """Return the first `MOST_BYTES` of a file; None if it cannot be read, as of a process that has ended."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES)
    except OSError:
        return None


def environment(path: Path) -> dict[str, str] | Unknown:
    """Return the variables that the process started with; those it set later are not in this file."""
    try:
        with path.open("rb") as file:
            entries = file.read(MOST_BYTES).split(b"\0")
    except OSError as error:
        return Unknown(f"its environment cannot be read: {error.strerror}")
    pairs = (entry.partition(b"=") for entry in entries)
    return {os.fsdecode(name): os.fsdecode(value) for name, equals, value in pairs if equals and name}


def libraries(path: Path) -> frozenset[str]:
    """Return the paths of the mapped files."""
    lines = (content(path) or b"").splitlines()
    return frozenset(os.fsdecode(line[line.index(b"/") :]) for line in lines if b"/" in line)


def link(path: Path) -> str:
    """Return the target of a link of `/proc`; "" if it may not be read."""
    try:
        return str(path.readlink())
    except OSError:
        return ""


def counts(path: Path) -> dict[str, int]:
    """Return the counts of a file such as `/proc/PID/io`, one `name: number` a line; {} if it cannot be
    read."""
    lines = (line.partition(b":") for line in (content(path) or b"").splitlines())
    return {name.decode(errors="replace"): int(value) for name, _, value in lines if value.strip().isdigit()}
