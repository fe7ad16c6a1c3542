"""The part of the attack that mutates files which may come from elsewhere.

Each mutated file is read in a worker process, which is watched from outside: its time, its memory and how it
ends.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import resource
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import psutil

from dynotune.schema.errors import DynotuneError

from .counts import Counts
from .formats import READERS, Reader

WHOLE = 20_000

# Of the processor: a machine with other work is no reader that hangs. And by the clock, for one that waits.
LONGEST_CPU_S, LONGEST_S = 10.0, 120.0
FILES_OF_A_WORKER = 500
MOST_MEMORY_BYTES = 2 << 30
BAD_INPUT = (2, 3)
# Of Python's own exceptions: a user can do nothing with them.
NOT_FOR_USERS = (
    "recursion",
    "codec can't",
    "has no attribute",
    "NoneType",
    "Traceback",
    " object at 0x",
    "<class '",
)


@dataclass
class Readings(Counts):
    """What came of mutated files, by the name of their reader.

    Args:
        refused: with an error that says what is wrong; `read`: nothing was found wrong. Both held.
    """

    refused: Counter[str] = field(default_factory=Counter)
    read: Counter[str] = field(default_factory=Counter)
    crashed: Counter[str] = field(default_factory=Counter)
    hung: Counter[str] = field(default_factory=Counter)
    memory: Counter[str] = field(default_factory=Counter)


def attack(number: int, seed: int, *, first: int = 0, keep: Path | None = None) -> Readings:
    """Read `number` mutated files, over all readers in turn.

    Args:
        seed, first: the file of number `i` depends on the seed and `i` alone: `first=i` begins with that one.
        keep: a folder for the files that made a reader fail.
    """
    counts = Readings()
    at, last = first, first + number
    with tempfile.TemporaryDirectory() as folder:
        seeds = _seeds(Path(folder))
        while at < last:
            at = _watched(seeds, seed, at, min(at + FILES_OF_A_WORKER, last), counts, Path(folder), keep)
    return counts


def _seeds(folder: Path) -> dict[str, list[Path]]:
    found = {}
    for reader in READERS:
        (own := folder / "seeds" / reader.name).mkdir(parents=True)
        reader.seeds(own)
        found[reader.name] = sorted(own.iterdir())
    return found


def _watched(
    seeds: dict[str, list[Path]],
    seed: int,
    at: int,
    last: int,
    counts: Readings,
    folder: Path,
    keep: Path | None,
) -> int:
    """Go on from file `at` in a worker until it is done or has failed beyond repair; the next file's
    number."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    worker = multiprocessing.get_context("fork").Process(
        target=_work, args=(theirs, seeds, seed, at, last, folder, keep), daemon=True
    )
    worker.start()
    theirs.close()
    try:
        while at < last:
            name = READERS[at % len(READERS)].name
            outcome, detail, goes_on = _told(ours, worker)
            counts.tried[name] += 1
            getattr(counts, outcome)[name] += 1
            if outcome in ("refused", "read"):
                counts.held[name] += 1
            else:
                counts.failures.append(f"{outcome}: {name}, --seed {seed} --first {at}: {detail}")
            at += 1
            if not goes_on:
                break
    finally:
        worker.kill()
        worker.join()
        ours.close()
    return at


def _told(ours: Connection, worker: Any) -> tuple[str, str, bool]:
    """What came of the next file, with the reason; whether the worker goes on."""
    began_s, cpu_s = time.monotonic(), _cpu_s(worker.pid)
    try:
        while not ours.poll(1.0):
            used_s, took_s = _cpu_s(worker.pid) - cpu_s, time.monotonic() - began_s
            if used_s > LONGEST_CPU_S or took_s > LONGEST_S:
                return "hung", f"{used_s:.0f} s of a core, {took_s:.0f} s in all", False
        return (*ours.recv(), True)
    except (EOFError, psutil.NoSuchProcess):
        worker.join()
        return "crashed", f"the process ended with {worker.exitcode}", False


def _cpu_s(pid: int) -> float:
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


def _work(
    told: Connection,
    seeds: dict[str, list[Path]],
    seed: int,
    at: int,
    last: int,
    folder: Path,
    keep: Path | None,
) -> None:
    faulthandler.enable()
    address_space = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (address_space + MOST_MEMORY_BYTES,) * 2)
    for number in range(at, last):
        reader = READERS[number % len(READERS)]
        random = Random(f"{seed} {number}")
        source = random.choice(seeds[reader.name])
        own = folder / f"file {number}"
        own.mkdir()
        content = reader.mutate(random, source.read_bytes(), own)
        path = own / source.name
        path.write_bytes(content)
        outcome = _outcome(reader, path)
        if keep is not None and outcome[0] not in ("refused", "read"):
            (keep / f"{number} {source.name}").write_bytes(content)
        _take_away(own)
        told.send(outcome)
    told.close()


def _outcome(reader: Reader, path: Path) -> tuple[str, str]:
    try:
        reader.read(path)
    except DynotuneError as error:
        said = f"{error.message} {error.hint}"
        if error.exit_code not in BAD_INPUT or any(text in said for text in NOT_FOR_USERS):
            return "crashed", f"exit code {error.exit_code}: {said[:300]}"
        return "refused", ""
    except MemoryError:
        return "memory", f"more than {MOST_MEMORY_BYTES >> 30} GiB"
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames][-4:]
        return "crashed", f"{type(error).__name__}: {str(error)[:200]} ({' < '.join(reversed(where))})"
    return "read", ""


def _take_away(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    folder.rmdir()
