"""Copies between host and devices by kind: number, speed, time in which the device did nothing else."""

import re
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dynotune.schema.trace_summary import Copies
from dynotune.trace.facts import intervals
from dynotune.trace.timeline import UNKNOWN, DeviceKind, Ints, Timeline, told_by_name, touching

Kind = tuple[str, bool | None]

# CUPTI's kinds (CUpti_ActivityMemcpyKind) as torch.profiler abbreviates them; an array (A) lies on the
# device.
_DIRECTION = re.compile(r"(?<![A-Za-z])([HDAP])to([HDAP])(?![A-Za-z])")
# roctracer's names: CopyHostToDevice, hipMemcpyDeviceToHost.
_IN_WORDS = re.compile(r"(Host|Device|Peer)To(Host|Device|Peer)")
_MEMORY = re.compile(r"\((.+?) (?:->|to) (.+?)\)")
_ON_DEVICE = {"H": "H", "D": "D", "A": "D", "P": "P"}


@cache
def kind_of(name: str) -> Kind:
    """Return a copy's direction and whether host memory is pinned: "Memcpy HtoD (Pinned -> Device)": ("HtoD",
    True)."""
    found = _DIRECTION.search(name)
    if found:
        source, target = _ON_DEVICE[found[1]], _ON_DEVICE[found[2]]
    elif words := _IN_WORDS.search(name):
        source, target = words[1][0], words[2][0]
    else:
        return "unknown", None
    memory = _MEMORY.search(name)
    sides = (memory[1], memory[2]) if memory else ("", "")
    host = [side for end, side in zip((source, target), sides, strict=True) if end == "H"]
    if not host or not set(host) <= {"Pageable", "Pinned"}:
        return f"{source}to{target}", None
    return f"{source}to{target}", "Pageable" not in host


def uploads(timeline: Timeline) -> NDArray[np.bool_]:
    """Return for each device span whether the span is a copy from the host to the device."""
    to_device = told_by_name(timeline.names, timeline.device.name, lambda name: kind_of(name)[0] == "HtoD")
    found: NDArray[np.bool_] = (timeline.device.kind == DeviceKind.COPY) & to_device
    return found


def facts(timeline: Timeline, window: tuple[int, int]) -> list[Copies]:
    """Return one rank's copies in the window [start, end) of ns, one table row per kind, longest total time
    first."""
    device = timeline.device
    rows = np.flatnonzero((device.kind == DeviceKind.COPY) & touching(device, window))
    kinds: dict[Kind, int] = {}
    names = np.unique(device.name[rows])
    of_name = np.array(
        [kinds.setdefault(kind_of(timeline.names[name]), len(kinds)) for name in names], dtype=np.int64
    )
    of_row = of_name[np.searchsorted(names, device.name[rows])]
    exposed_ns = _exposed_ns(timeline, rows, of_row, window)
    found = [
        _row(timeline, rows[of_row == index], window, kind, int(exposed_ns[index]))
        for kind, index in kinds.items()
    ]
    return sorted(
        found, key=lambda row: (-row.total_s, row.kind, row.pinned is not None, row.pinned or False)
    )


def _row(timeline: Timeline, rows: Ints, window: tuple[int, int], kind: Kind, exposed_ns: int) -> Copies:
    device, (start, end) = timeline.device, window
    duration = np.minimum(device.end_ns[rows], end) - np.maximum(device.start_ns[rows], start)
    sized = rows[device.num_bytes[rows] != UNKNOWN]
    sizes = device.num_bytes[sized]
    # A copy counts as a whole, since the number of bytes that were copied inside the time window is not
    # known.
    time = int((device.end_ns[sized] - device.start_ns[sized]).sum())
    return Copies(
        rank=timeline.rank,
        kind=kind[0],
        pinned=kind[1],
        num=len(rows),
        num_bytes=int(sizes.sum()) if len(sized) else None,
        total_s=int(duration.sum()) / 1e9,
        bytes_per_s=int(sizes.sum()) * 1e9 / time if time else None,
        exposed_s=exposed_ns / 1e9,
        median_bytes=int(np.median(sizes)) if len(sized) else None,
    )


def _exposed_ns(timeline: Timeline, rows: Ints, kind: Ints, window: tuple[int, int]) -> Ints:
    """Return for each kind of copy the nanoseconds of the time window in which devices did only copies of
    this kind."""
    device = timeline.device
    exposed = np.zeros(kind.max(initial=-1) + 1, dtype=np.int64)
    for index in np.unique(device.device[rows]):
        work = np.flatnonzero((device.device == index) & (device.kind != DeviceKind.COPY))
        beside = intervals.union_of(timeline.device, work, window)
        here = device.device[rows] == index
        for own in np.unique(kind[here]):
            others = intervals.union_of(timeline.device, rows[here & (kind != own)], window)
            alone = intervals.difference(
                intervals.union_of(timeline.device, rows[here & (kind == own)], window), others
            )
            hidden = intervals.covered(beside, alone[:, 0], alone[:, 1]).sum()
            exposed[own] += intervals.length(alone) - hidden
    return exposed
