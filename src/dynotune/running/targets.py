"""Find the program below a process id: its ranks, the workers of its loaders, and what else belongs to it."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dynotune.probe import descendants
from dynotune.running import process_files
from dynotune.running.process_files import PROC, ProcessFiles
from dynotune.schema import untrusted
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.text import words

WORKER, LAUNCHER = "pt_data_worker", "pt_elastic"
"""Names that torch gives the processes of a loader's workers, and of `torchrun`."""

RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
OF_A_RANK = ("pt_nccl", "pt_gloo", "pt_tcpstore", "pt_autograd")
"""Beginnings of the names of threads that a rank has, and a loader's worker does not."""

WAITS_FOR_A_CHILD = "do_wait"
"""Where the kernel holds a thread that waits for the end of a child: that of a launcher."""

_LAUNCHERS = re.compile(
    r"(^|/)(torchrun|accelerate|deepspeed|horovodrun|mpirun|mpiexec|srun)$|torch\.distributed\.(run|launch)|accelerate\."
)
FORK_SERVER = "forkserver import main"
_HELPERS = ("resource_tracker", "compile_worker", FORK_SERVER)
_OURS = re.compile(
    r"(^|/)dynotune$|/dynotune/__main__\.py$|from dynotune\.launch\.process\.supervisor import"
)
LONGEST_NAME = 60


class Rank(NamedTuple):
    """One process that computes, with its loaders' workers.

    `number`: its rank, by its environment; None if that does not say.
    """

    process: ProcessFiles
    workers: tuple[ProcessFiles, ...]
    number: int | None


class Target(NamedTuple):
    """The program below a process id.

    Args:
        pid: as it was given.
        others: processes of the program that are neither ranks nor workers, such as launchers.
        notes: what was found on the way from the process id to the program.
    """

    pid: int
    ranks: tuple[Rank, ...]
    others: tuple[ProcessFiles, ...]
    notes: tuple[str, ...]

    @property
    def command(self) -> tuple[str, ...]:
        """Return the first rank's command; of a rank that multiprocessing started, that of the process that
        did."""
        first = self.ranks[0].process
        parent = next((one for one in self.others if one.pid == first.parent), first)
        return (parent if first.is_spawned else first).arguments

    @property
    def pids(self) -> list[int]:
        """Return the ids of all processes of the program, ranks and workers first."""
        of_ranks = [one.pid for rank in self.ranks for one in (rank.process, *rank.workers)]
        return [*of_ranks, *(one.pid for one in self.others)]


def find(pid: int, proc: Path = PROC) -> Target:
    """Find the program that a process is, or starts, or belongs to as a loader's worker.

    Raises:
        UsageError: the process is this dynotune.
        CannotRunHere: the process is gone, belongs to another user, or runs no Python.
    """
    _refuse(pid, proc)
    notes: list[str] = []
    first = process_files.read(pid, proc)
    if first is not None and first.name == WORKER and (parent := _starter(first, proc)) is not None:
        notes.append(f"Process {pid} is a loader worker of process {parent.pid}, which was observed instead.")
        first = parent
    if first is None:
        raise gone(pid)
    below = descendants(first.pid)
    # If dynotune was started from the same shell, it is below that shell too, together with its own children.
    ours = set(descendants(os.getpid())) if os.getpid() in below else set()
    pids = [one for one in below if one not in ours and process_files.owner(one, proc) == os.geteuid()]
    tree = [one for one in (process_files.read(each, proc) for each in pids) if one is not None]
    tree = [one for one in tree if not _is_ours(one)]
    ranks = _ranks(tree, proc)
    if not ranks:
        raise _no_python(pid, first)
    if first.pid != ranks[0].process.pid:
        found = ", ".join(f"{rank.process.pid} ({quoted(rank.process)})" for rank in ranks[:8])
        notes.append(
            f"Process {first.pid} ({quoted(first)}) is not the program itself. Below it runs {found}."
        )
    known = {one.pid for rank in ranks for one in (rank.process, *rank.workers)}
    return Target(pid, ranks, tuple(one for one in tree if one.pid not in known), tuple(notes))


def workers_of(
    process: ProcessFiles, known: Mapping[int, ProcessFiles], proc: Path = PROC
) -> dict[int, ProcessFiles]:
    """Return the workers that the loaders of a process have now, by id; `known` ones are not read again."""
    found: dict[int, ProcessFiles] = {}
    left = _children(process.pid, proc)
    while left:
        pid = left.pop()
        one = known.get(pid) or process_files.read(pid, proc)
        if one is not None and (pid in known or _is_worker(one, process, proc)):
            found[pid] = one
        elif one is not None and _is_fork_server(one):
            left += _children(pid, proc)
    return found


def _starter(process: ProcessFiles, proc: Path) -> ProcessFiles | None:
    """Return the process that started a worker, itself or through a fork server; None if it has ended."""
    parent = process_files.read(process.parent, proc)
    return (
        process_files.read(parent.parent, proc) if parent is not None and _is_fork_server(parent) else parent
    )


def _children(pid: int, proc: Path) -> list[int]:
    files = (process_files.content(path / "children") or b"" for path in threads(pid, proc))
    return [int(word) for content in files for word in content.split()]


def quoted(process: ProcessFiles) -> str:
    """Return the process's name, quoted and bounded."""
    return words.plain(process.name, longest=LONGEST_NAME)


def gone(pid: int) -> CannotRunHere:
    return CannotRunHere(
        f"There is no process {pid}: it has ended.", hint="Give the id of a process that runs."
    )


def _refuse(pid: int, proc: Path) -> None:
    if pid == os.getpid():
        raise UsageError(f"Process {pid} is this dynotune.", hint="Give the id of the program's process.")
    user = process_files.owner(pid, proc)
    if user is None:
        raise gone(pid)
    if user != os.geteuid():
        # Also for root: the interpreter and the environment of another user would be run with root's rights.
        raise CannotRunHere(
            f"Process {pid} belongs to another user (user id {user}).",
            hint=f"Run dynotune as that user: sudo -u '#{user}' dynotune diagnose --pid {pid}",
        )


def _no_python(pid: int, first: ProcessFiles) -> CannotRunHere:
    if _is_ours(first):
        return CannotRunHere(
            f"Process {pid} is a dynotune process, and no program runs below it.",
            hint="Give the id of the program's process.",
        )
    if not first.executable and not first.libraries:
        return CannotRunHere(
            f"Process {pid} ({quoted(first)}) is about to end, or belongs to the kernel.",
            hint="Give the id of a process that runs.",
        )
    return CannotRunHere(
        f"Process {pid} ({quoted(first)}) is not a Python process and has no Python process below it.",
        hint="Give the id of the Python process, or of a shell or launcher above it.",
    )


def _is_ours(process: ProcessFiles) -> bool:
    """Tell whether the process is a dynotune or its supervisor, whose command is a program of its own."""
    ours = tuple(itertools.takewhile(lambda argument: argument != "--", process.arguments))[:5]
    is_module = ("-m", "dynotune") in itertools.pairwise(ours)
    return is_module or any(_OURS.search(argument) for argument in ours)


def _ranks(tree: Sequence[ProcessFiles], proc: Path) -> tuple[Rank, ...]:
    """Return the processes of the tree that compute: those with torch, without launchers, workers and
    helpers."""
    pythons = [one for one in tree if one.is_python and not _is_helper(one)]
    by_pid = {one.pid: one for one in pythons}
    servers = {one.pid: one.parent for one in tree if _is_fork_server(one)}
    starters = {one.pid: servers.get(one.parent, one.parent) for one in pythons}
    workers = {
        one.pid
        for one in pythons
        if starters[one.pid] in by_pid and _is_worker(one, by_pid[starters[one.pid]], proc)
    }
    candidates = [one for one in pythons if one.pid not in workers]
    if any(one.has_torch for one in candidates):
        candidates = [one for one in candidates if one.has_torch]
    parents = {one.pid: one.parent for one in tree}
    chosen: list[ProcessFiles] = []
    for one in candidates:
        below = [
            other for other in candidates if other.pid != one.pid and _is_above(one.pid, other.pid, parents)
        ]
        is_below = any(_is_above(other.pid, one.pid, parents) for other in chosen)
        if not is_below and not (below and _is_launcher(one, below, proc)):
            chosen.append(one)
    ranks = [
        Rank(one, tuple(by_pid[pid] for pid in sorted(workers) if starters[pid] == one.pid), _number(one))
        for one in chosen
    ]
    return tuple(sorted(ranks, key=lambda rank: (rank.number is None, rank.number or 0, rank.process.pid)))


def _is_helper(process: ProcessFiles) -> bool:
    """Tell whether a process serves others; a worker that a fork server made has the server's arguments."""
    if process.name == WORKER:
        return False
    return any(word in argument for argument in process.arguments[:8] for word in _HELPERS)


def _is_fork_server(process: ProcessFiles) -> bool:
    """Tell whether a process forks others for multiprocessing: Python's usual way from version 3.14 on."""
    return process.name != WORKER and any(FORK_SERVER in word for word in process.arguments[:8])


def _is_worker(process: ProcessFiles, parent: ProcessFiles, proc: Path) -> bool:
    """Tell whether a child is a worker of its parent's loader: torch names it so, or is too old to name
    any."""
    if process.name == WORKER:
        return True
    if _names_workers(process) or _is_rank(process, proc):
        return False
    return process.has_torch and (process.arguments == parent.arguments or process.is_spawned)


def _names_workers(process: ProcessFiles) -> bool:
    path = process.torch_file("utils/data/_utils/worker.py")
    if path is None:
        return False
    try:
        return WORKER.encode() in untrusted.read(path, process_files.MOST_BYTES)
    except OSError:
        return False


def _is_rank(process: ProcessFiles, proc: Path) -> bool:
    names = (process_files.content(path / "comm") or b"" for path in threads(process.pid, proc))
    return any(name.decode(errors="replace").startswith(OF_A_RANK) for name in names)


def _is_launcher(process: ProcessFiles, below: Iterable[ProcessFiles], proc: Path) -> bool:
    """Tell whether a process only starts the ones below it."""
    if process.name == LAUNCHER or any(_LAUNCHERS.search(argument) for argument in process.arguments[:4]):
        return True
    held = process_files.content(proc / str(process.pid) / "wchan") or b""
    return held.decode(errors="replace").startswith(WAITS_FOR_A_CHILD) or any(one.is_spawned for one in below)


def _is_above(pid: int, other: int, parents: dict[int, int]) -> bool:
    seen = set()
    while other in parents and other not in seen:
        seen.add(other)
        other = parents[other]
        if other == pid:
            return True
    return False


def _number(process: ProcessFiles) -> int | None:
    values = (process.variable(name) for name in RANK_VARIABLES)
    return next((int(value) for value in values if value and value.isdigit() and len(value) < 8), None)


def threads(pid: int, proc: Path = PROC) -> list[Path]:
    """Return the folders of a process's threads; [] if the process has ended."""
    try:
        return [Path(entry.path) for entry in os.scandir(proc / str(pid) / "task")]
    except OSError:
        return []
