"""What a snapshot of torch's caching allocator says. Defined, fact by fact, in docs/reference/trace.md."""

from __future__ import annotations

import msgspec

from dynotune.schema.facts import Unknown
from dynotune.schema.trace_summary import Place


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the program and what it had asked for and not released.

    Args:
        where: the user's innermost function at the allocation; "" where no stack was recorded, or where the
            allocation is older than the history and was released since.
        requested_bytes: as the program asked, before rounding.
    """

    where: Place
    requested_bytes: int
    num_blocks: int


class Peak(msgspec.Struct, frozen=True, kw_only=True, tag="peak"):
    """The highest level within the history.

    Args:
        requested_bytes: `requested_bytes.all.peak` of torch's statistics, over the history.
        event: number of events after which it was reached first, 0 for the history's beginning.
        at_s: since the history's first event; None where events have no times.
        start_bytes: level before the first event: above 0, the history does not go back to the beginning.
        holders: the largest, descending.
    """

    requested_bytes: int
    event: int
    at_s: float | None
    start_bytes: int
    holders: list[Holder]


class History(msgspec.Struct, frozen=True, kw_only=True, tag="history"):
    """The recorded events of one device.

    Args:
        peak_reserved_bytes: highest level of reserved memory within the history.
        num_segment_allocs, num_segment_frees: cudaMalloc and cudaFree of segments; for expandable segments,
            mappings and unmappings.
        num_late_segment_allocs: those in the second half of the history.
        num_flushes: allocations that gave cached segments back to the driver before they got memory or failed;
            None where no stacks were recorded.
        num_empty_caches: calls of torch.cuda.empty_cache that gave segments back; None likewise.
        num_ooms: allocations that failed.
        flushed_from: where most flushes came from.
        oom_from: where most failures came from.
    """

    num_events: int
    duration_s: float | None
    peak: Peak | Unknown
    peak_reserved_bytes: int | Unknown
    num_segment_allocs: int
    num_segment_frees: int
    num_late_segment_allocs: int
    num_flushes: int | None
    num_empty_caches: int | None
    num_ooms: int
    flushed_from: Place = Place()
    oom_from: Place = Place()


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The allocator of one device when the snapshot was taken.

    Args:
        reserved_bytes: of all segments, got from the driver.
        allocated_bytes: of blocks that tensors hold.
        active_bytes: these and the blocks released while another stream may still use them.
        requested_bytes: what the program asked for in active blocks; None in snapshots older than torch 2.1.
        inactive_split_bytes: free blocks of segments that are partly in use, so that the segment cannot be given
            back; expandable segments are left out, as in torch's statistics.
        fragmentation: inactive_split_bytes / reserved_bytes; None where nothing is reserved.
        largest_free_bytes: largest free block.
        expandable: whether any segment is expandable; None without segments or where it is not told.
        holders: of active blocks, descending.
    """

    device: int
    reserved_bytes: int
    allocated_bytes: int
    active_bytes: int
    requested_bytes: int | None
    inactive_split_bytes: int
    fragmentation: float | None
    num_segments: int
    largest_free_bytes: int
    expandable: bool | None
    holders: list[Holder]
    history: History | Unknown


class MemoryCause(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that is wasted, or time that the allocator loses; how much time, a snapshot cannot tell.

    Args:
        id: of the finding; docs/reference/trace.md defines each.
        num_bytes: memory concerned; None where it is about events.
        share: of the device's reserved memory; None likewise.
        claim: one sentence.
        evidence: the figures behind it.
    """

    id: str
    device: int
    num_bytes: int | None = None
    share: float | None = None
    claim: str
    where: Place = Place()
    evidence: list[str] = []


class MemorySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A file of `torch.cuda.memory._dump_snapshot`. `settings`: the allocator's, as the snapshot names them."""

    schema: str = "dynotune.memory_snapshot/1"
    file: str
    devices: list[DeviceMemory]
    settings: dict[str, str] = {}
    causes: list[MemoryCause] = []
    notes: list[str] = []
