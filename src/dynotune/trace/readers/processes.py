"""The processes of one chrome trace: which process launched which device work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynotune.trace.readers.chrome_events import Id, Place
from dynotune.trace.readers.columns import DeviceRows, MemoryRows, Numbering
from dynotune.trace.timeline import UNKNOWN, HostKind, HostSpans, launches, taken

_NOBODY = -1
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Process:
    """The spans and memory events of one process.

    Args:
        pid: id of the process; None if the file is of one process, whatever ids the file contains.
        device: device spans; `launch` is the row in `host` of the call that queued the work, or UNKNOWN.
    """

    pid: Id
    host: HostSpans
    device: DeviceRows
    memory: MemoryRows


def split(
    host: HostSpans, device: DeviceRows, memory: MemoryRows, places: list[Place], names: list[str]
) -> tuple[list[Process], tuple[str, ...]]:
    """Return the processes that launched device work, and notes on lost work.

    If fewer than two processes launched device work, one process stands for all.

    Args:
        host, device, memory: rows in order of time.
        places, names: the values for the numbers in the columns `place` and `name`.
    """
    numbers: Numbering[Id] = Numbering()
    pid = np.array([numbers[pid] for pid, _ in places], dtype=np.int32)
    calls = (host.kind == HostKind.CALL) & (host.correlation != UNKNOWN)
    callers = _distinct(pid[host.thread[calls]])
    if len(callers) > 1:
        parts = [taken(host, pid[host.thread] == caller) for caller in callers]
        launch = np.stack([launches(device.launch, part) for part in parts])
        has_launched = (launch != UNKNOWN).any(axis=1)
        if has_launched.sum() > 1:
            chosen = np.flatnonzero(has_launched)
            starts_graph = np.array(["graph" in name.lower() for name in names], dtype=np.bool_)
            callers_spans = [parts[i] for i in chosen]
            owner, notes = _owners(launch[chosen], callers_spans, device, pid[device.place], starts_graph)
            ids = list(numbers)
            found = [
                Process(
                    pid=ids[callers[i]],
                    host=parts[i],
                    device=taken(replace(device, launch=launch[i]), owner == number),
                    memory=taken(memory, pid[memory.place] == callers[i]),
                )
                for number, i in enumerate(chosen)
            ]
            num_others = len(host) - sum(len(process.host) for process in found)
            if num_others:
                notes += (f"{num_others:,} spans of processes that launched nothing were left out",)
            return found, notes
    return [Process(None, host, replace(device, launch=launches(device.launch, host)), memory)], ()


def _owners(
    launch: NDArray[np.int64],
    parts: list[HostSpans],
    device: DeviceRows,
    group: NDArray[np.int32],
    starts_graph: NDArray[np.bool_],
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the index of the process that queued each span of `device`, or _NOBODY.

    Every process counts its calls from the same number, so calls of several processes may have equal numbers.
    If the calls of one process explain all work of a group (one process id in the file), the group belongs to
    that process; else each device span is assigned separately.
    """
    is_tied = launch != UNKNOWN
    lag_ns = np.full(launch.shape, _NEVER)
    for number, part in enumerate(parts):
        tied = is_tied[number]
        lag_ns[number, tied] = device.start_ns[tied] - part.start_ns[launch[number, tied]]
    owner = np.full(launch.shape[1], _NOBODY, dtype=np.int64)
    num_guesses = 0
    for one in _distinct(group):
        rows = np.flatnonzero(group == one)
        tied = rows[is_tied[:, rows].any(axis=0)]
        if not len(tied):
            continue
        whole = [i for i, part in enumerate(parts) if _explains(launch[i, tied], part, starts_graph)]
        if whole:
            chosen, is_guess = _likeliest(lag_ns[np.ix_(whole, tied)])
            owner[rows] = whole[chosen]
            num_guesses += is_guess * len(tied)
        else:
            owner[tied] = np.where(lag_ns[:, tied] < 0, _NEVER, lag_ns[:, tied]).argmin(axis=0)
            num_guesses += int((is_tied[:, tied].sum(axis=0) > 1).sum())
    notes: tuple[str, ...] = ()
    if num_guesses:
        fit = f"{num_guesses:,} device activities fit calls of several processes"
        notes += (f"{fit} and were given to the likeliest",)
    if num_lost := int((owner == _NOBODY).sum()):
        notes += (f"{num_lost:,} device activities fit no call of any process and were left out",)
    return owner, notes


def _explains(launch: NDArray[np.int64], calls: HostSpans, starts_graph: NDArray[np.bool_]) -> bool:
    """Return whether the calls can have queued all of the work.

    A call that starts no CUDA graph queues one piece of work.
    """
    plain = launch[~starts_graph[calls.name[launch]]]
    return bool((launch != UNKNOWN).all()) and len(_distinct(plain)) == len(plain)


def _likeliest(lag_ns: NDArray[np.int64]) -> tuple[int, bool]:
    """Return the process (row) with the fewest contradictions, then the nearest calls; and if others tie.

    Device work that starts before its call is a contradiction.
    """
    num_contradictions = (lag_ns < 0).sum(axis=1)
    least = np.flatnonzero(num_contradictions == num_contradictions.min())
    return int(least[np.median(lag_ns[least], axis=1).argmin()]), len(least) > 1


def _distinct(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Return the distinct non-negative numbers.

    np.unique would import numpy.ma, which takes longer than this.
    """
    return np.flatnonzero(np.bincount(numbers))
