"""Which process of a file each event belongs to: many a script merges the files of several ranks into one.

Work on a device does not name its process; the call that queued it does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynotune.trace.columns import DeviceRows, HostRows, Id, MemoryRows, Numbering, Place, taken
from dynotune.trace.timeline import UNKNOWN, HostKind, HostSpans, Ints, launches

_NOBODY = -1


@dataclass(frozen=True, slots=True)
class Process:
    """The rows of one process.

    Args:
        pid: None where the file is of one process, whatever ids it holds.
        launch: row in `host` of the call that queued each row of `device`; UNKNOWN where none is recorded.
    """

    pid: Id
    host: HostRows
    device: DeviceRows
    memory: MemoryRows
    launch: Ints


def split(
    host: HostRows, device: DeviceRows, memory: MemoryRows, places: list[Place]
) -> tuple[list[Process], tuple[str, ...]]:
    """The processes that launched device work, or all as one if fewer than two did; and what could not be assigned.

    Args:
        host, device, memory: in order of time.
        places: what their `place` counts.
    """
    numbers: Numbering[Id] = Numbering()
    pid = np.array([numbers[pid] for pid, _ in places], dtype=np.int32)
    calls = (host.kind == HostKind.CALL) & (host.correlation != UNKNOWN)
    callers = np.unique(pid[host.place[calls]])
    if len(callers) > 1:
        parts = [taken(host, pid[host.place] == caller) for caller in callers]
        launch = np.stack([launches(device.correlation, HostSpans(*part)) for part in parts])
        has_launched = (launch != UNKNOWN).any(axis=1)
        if has_launched.sum() > 1:
            chosen = np.flatnonzero(has_launched)
            owner, notes = _owners(launch[chosen], [parts[i] for i in chosen], device, pid[device.place])
            ids = list(numbers)
            found = [
                Process(
                    pid=ids[callers[i]],
                    host=parts[i],
                    device=taken(device, owner == number),
                    memory=taken(memory, pid[memory.place] == callers[i]),
                    launch=launch[i, owner == number],
                )
                for number, i in enumerate(chosen)
            ]
            num_others = len(host.place) - sum(len(process.host.place) for process in found)
            if num_others:
                notes += (f"{num_others:,} spans of processes that launched nothing were left out",)
            return found, notes
    whole = Process(None, host, device, memory, launches(device.correlation, HostSpans(*host)))
    return [whole], ()


def _owners(
    launch: NDArray[np.int64], parts: list[HostRows], device: DeviceRows, group: NDArray[np.int32]
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Index of the process that queued each row of `device`, or _NOBODY.

    Processes number their calls alike, so a number may be found in several. All work of a group (what the file
    gives as its process) goes to the one whose calls explain all of it; where none does, each row to the call
    nearest in time.
    """
    is_tied = launch != UNKNOWN
    lag_ns = np.full(launch.shape, np.iinfo(np.int64).max)
    for number, part in enumerate(parts):
        tied = is_tied[number]
        lag_ns[number, tied] = np.abs(device.start_ns[tied] - part.start_ns[launch[number, tied]])
    owner = np.where(is_tied.any(axis=0), lag_ns.argmin(axis=0), _NOBODY)
    is_guess = is_tied.sum(axis=0) > 1
    for one in np.unique(group):
        rows = np.flatnonzero(group == one)
        tied = rows[owner[rows] != _NOBODY]
        likeliest = np.bincount(owner[tied], minlength=len(parts)).argmax()
        if len(tied) and is_tied[likeliest, tied].all():
            owner[rows] = likeliest
            is_guess[rows] = False
    notes: tuple[str, ...] = ()
    if num_guesses := int(is_guess.sum()):
        notes += (
            f"{num_guesses:,} device activities fit calls of several processes; each was given to the nearest call's",
        )
    if num_lost := int((owner == _NOBODY).sum()):
        notes += (f"{num_lost:,} device activities fit no call of any process and were left out",)
    return owner, notes
