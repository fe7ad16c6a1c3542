"""Events of the processes that make batches: their times and counts so far."""

from __future__ import annotations

import msgspec

from dynotune.schema.events.process import Count, Int
from dynotune.schema.loader import SamplePart


class BatchesFetched(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="fetching"):
    """Counts of the batches that one maker (process, data set and collate function) has made so far.

    Args:
        at_s, begin_s: time of the event, and begin of the maker's first batch (s, CLOCK_MONOTONIC).
        drawn_by: process that draws the batches.
        worker: the worker's number; None if the process makes the batches for itself.
        num_threads: torch's threads in the worker; None without a worker.
        num: number of batches.
        fetch_s, collate_s, decode_s, cpu_s: seconds of all batches, see `Loading`.
        longest_s: seconds of the longest batch since the maker's last event.
        decoders: names of decoders in use.
        decoded: paths of some files that were decoded.
        private_bytes: unshared memory of the worker; None if it was not read for this event.
        parts: time to make samples, by kind of work.
        read_bytes, storage_bytes: bytes read, and bytes of these from storage; None if the kernel does not
            count.
        num_faults, system_s: page faults without a disk, and seconds in the kernel, while batches were made.
        dataset, collate: names; `items_at`, `collate_at`: places in the code, as `Place.function`.
        num_items: None for an iterable data set.
        num_objects, num_distinct: see `Loading`.
    """

    at_s: float
    begin_s: float
    drawn_by: Int
    worker: Int | None = None
    num_workers: Int = 0
    num_threads: Int | None = None
    num: Count
    fetch_s: float
    collate_s: float = 0.0
    decode_s: float = 0.0
    cpu_s: float = 0.0
    longest_s: float
    decoders: list[str] = []
    decoded: list[str] = []
    private_bytes: Int | None = None
    parts: list[SamplePart] = []
    read_bytes: Int | None = None
    storage_bytes: Int | None = None
    num_faults: Int | None = None
    system_s: float | None = None
    dataset: str
    collate: str
    num_items: Int | None = None
    items_at: str = ""
    collate_at: str = ""
    num_objects: Int | None = None
    num_distinct: Int | None = None


class BatchesPinned(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="pinning"):
    """Until `at_s` (CLOCK_MONOTONIC), `num` batches were copied to page-locked memory, which took `pin_s`
    seconds."""

    at_s: float
    num: Count
    pin_s: float
