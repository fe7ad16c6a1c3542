"""Calls of the CUDA runtime and driver that cost more than a launch: calls that wait and calls that
allocate."""

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dynotune.schema.trace_summary import Calls, Place
from dynotune.trace.facts.copies import kind_of
from dynotune.trace.facts.nesting import outermost
from dynotune.trace.timeline import UNKNOWN, DeviceKind, HostKind, Ints, Timeline, told_by_name, touching

# https://docs.nvidia.com/cuda/cuda-runtime-api/api-sync-behavior.html: a synchronous copy waits, except
# between two places of one device. A query does not wait.
_WAITS = re.compile(
    r"(cuda|hip)(Device|Stream|Event|Thread)Synchronize|cu(Ctx|Stream|Event)Synchronize|hipCtxSynchronize"
    r"|(cuda|hip)Memcpy([23]D)?(To|From)?(Array|Symbol)?|hipMemcpyWithStream|(cu|hip)Memcpy(HtoD|DtoH|HtoA|AtoH|[23]D)?"
)
_ALLOCATES = re.compile(
    r"cuda(Malloc|Free)(Async|Host|Managed|Pitch|FromPoolAsync|Array|3D)?|cuda(HostAlloc|HostRegister|HostUnregister)"
    r"|hip(Malloc|Free)(Async|Host|Managed|Pitch|FromPoolAsync|Array|3D)?|hipExtMallocWithFlags"
    r"|hip(HostAlloc|HostMalloc|HostFree|HostRegister|HostUnregister)"
    r"|cuMem(Alloc|Free)(Async|Host|Managed|Pitch|FromPoolAsync)?|cuMemHost(Alloc|Register|Unregister)"
    r"|(cu|hip)Mem(Create|Release|Map|Unmap|AddressReserve|AddressFree|SetAccess)"
)
# cudaMemcpyAsync_v3020, cuMemAlloc_v2_ptsz: the version of the interface does not matter.
_VERSION = re.compile(r"(_v\d+)?(_ptds|_ptsz|_spt)?$")
_ASYNCHRONOUS_COPY = re.compile(
    r"(cuda|hip)Memcpy(2D|3D)?(ToArray|FromArray|FromSymbol)?Async|(cu|hip)Memcpy(DtoH|2D|3D)?Async"
)


def plain_name(name: str) -> str:
    return _VERSION.sub("", name)


def waits(timeline: Timeline) -> NDArray[np.bool_]:
    """Return for each host span whether the span is a CUDA call that waits for the device.

    Besides calls whose names tell it, asynchronous copies from a device to pageable memory wait: the call
    returns when the copy is done (https://docs.nvidia.com/cuda/cuda-runtime-api/api-sync-behavior.html).
    """
    device = timeline.device
    found = _calls_named(timeline, _WAITS)
    asynchronous = _calls_named(timeline, _ASYNCHRONOUS_COPY)
    copies = np.flatnonzero((device.kind == DeviceKind.COPY) & (device.launch != UNKNOWN))
    names = np.unique(device.name[copies])
    blocking = [index for index in names if kind_of(timeline.names[index]) == ("DtoH", False)]
    launched = device.launch[copies[np.isin(device.name[copies], blocking)]]
    found[launched[asynchronous[launched]]] = True
    return found


def syncs(
    timeline: Timeline, window: tuple[int, int], place_of: Callable[[Ints], list[Place]]
) -> list[Calls]:
    """Return calls in the window that wait for the device, by CUDA function and place, longest total time
    first."""
    return grouped(timeline, waits(timeline), window, place_of)


def allocations(
    timeline: Timeline, window: tuple[int, int], place_of: Callable[[Ints], list[Place]]
) -> list[Calls]:
    """Return the window's calls that allocate, map, pin or free memory, by function and place, longest time
    first."""
    return grouped(timeline, _calls_named(timeline, _ALLOCATES), window, place_of)


def _calls_named(timeline: Timeline, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    host = timeline.host
    found: NDArray[np.bool_] = host.kind == HostKind.CALL
    found[found] = told_by_name(
        timeline.names, host.name[found], lambda name: pattern.fullmatch(plain_name(name))
    )
    return found


def grouped(
    timeline: Timeline,
    selected: NDArray[np.bool_],
    window: tuple[int, int],
    place_of: Callable[[Ints], list[Place]],
) -> list[Calls]:
    """Return the selected host calls in the time window, by CUDA function and place, largest total time
    first."""
    host, (start, end) = timeline.host, window
    rows = outermost(host, np.flatnonzero(selected & touching(host, window)))
    if not len(rows):
        return []
    duration = np.minimum(host.end_ns[rows], end) - np.maximum(host.start_ns[rows], start)
    groups: dict[tuple[str, Place], int] = {}
    plain = {index: plain_name(timeline.names[index]) for index in np.unique(host.name[rows]).tolist()}
    keys = (
        (plain[name], place) for name, place in zip(host.name[rows].tolist(), place_of(rows), strict=True)
    )
    of_row = np.array([groups.setdefault(key, len(groups)) for key in keys], dtype=np.int64)
    num = np.bincount(of_row).tolist()
    total = np.bincount(of_row, weights=duration).tolist()
    found = [
        Calls(rank=timeline.rank, call=call, num=num[group], total_s=total[group] / 1e9, where=place)
        for (call, place), group in groups.items()
    ]
    found.sort(
        key=lambda row: (-row.total_s, row.call, row.where.function, row.where.operator, row.where.call)
    )
    return found
