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
    """The highest level within the history; `at_s` is None where events have no times. `holders`: the largest first."""

    requested_bytes: int
    event: int
    at_s: float | None
    start_bytes: int
    holders: list[Holder]


class History(msgspec.Struct, frozen=True, kw_only=True, tag="history"):
    """The recorded events of one device; None where no stacks were recorded. `…_from`: where most of them came from."""

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

    None: `requested_bytes` before torch 2.1, `fragmentation` where nothing is reserved, `expandable` (whether any
    segment is) without segments or where it is not told. `holders`: of active blocks, descending.
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

    `share`: of the device's reserved memory; None, as `num_bytes`, where it is about events.
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
