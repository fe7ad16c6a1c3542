"""Compute the time and memory that making batches takes, from the makers' events, and assign this cost to
loaders."""

from collections.abc import Sequence

import msgspec

from dynotune.launch.records.record import Record
from dynotune.schema.errors import CONTRADICTIONS, RecordError
from dynotune.schema.events import BatchesFetched, BatchesPinned, StateRead
from dynotune.schema.facts import Unknown
from dynotune.schema.loader import Loader, Loading, SamplePart
from dynotune.schema.trace_summary import Place

_Events = list[BatchesFetched]
_Key = tuple[str, str, int | None, int]

_MAY_BE_UNKNOWN = ("read_bytes", "storage_bytes", "num_faults", "system_s")
_COUNTS = ("num", "fetch_s", "collate_s", "decode_s", "cpu_s")
_UNSETTLED_S = 1.0
"""A worker that has just begun takes memory for its first batches, so growth counts only after this time."""


def with_loading(
    loaders: Sequence[Loader], pid: int, records: Sequence[Record], begin_s: float, end_s: float
) -> list[Loader]:
    """Return the loaders of process `pid` with their batches' costs from `begin_s` to `end_s`
    (CLOCK_MONOTONIC).

    `records`: records of all processes, since each worker has its own. Raises RecordError: an event is
        incomplete.
    """
    for record in records:
        record.refuse_dropped(BatchesFetched, BatchesPinned, StateRead)
    try:
        groups: dict[_Key, list[_Events]] = {}
        for events in (events for record in records for events in _by_maker(record, pid)):
            groups.setdefault(_key(events[0]), []).append(events)
        own = next((record for record in records if record.pid == pid), None)
        pin_s = _pin_s(own, begin_s, end_s)
        return [
            _with_parts(_filled(loader, loaders, groups, pin_s, begin_s, end_s), own) for loader in loaders
        ]
    except CONTRADICTIONS as error:
        raise RecordError(
            f"An event of {pid} or its workers is not as dynotune's agent writes events."
        ) from error


def _by_maker(record: Record, pid: int) -> list[_Events]:
    """List the events of each maker: a process that makes batches itself may do so for several loaders.

    A process that replaced itself by exec continues the same record, and counts anew from that point.
    """
    makers: dict[tuple[_Key, float], _Events] = {}
    for event in record.all(BatchesFetched):
        if event.drawn_by == pid:
            makers.setdefault((_key(event), event.begin_s), []).append(event)
    return list(makers.values())


def _key(event: BatchesFetched) -> _Key:
    return event.dataset, event.collate, event.num_items, event.num_workers


def _filled(
    loader: Loader,
    loaders: Sequence[Loader],
    groups: dict[_Key, list[_Events]],
    pin_s: float | None,
    begin_s: float,
    end_s: float,
) -> Loader:
    own = [
        group
        for (dataset, collate, num_items, num_workers), group in groups.items()
        if num_workers == loader.num_workers
        and (
            len(loaders) == 1
            or (dataset == loader.dataset and (num_items == loader.num_items or loader.is_iterable))
        )
        and (len(loaders) == 1 or not loader.collate or collate == loader.collate)
    ]
    if len(own) != 1:
        reason = "several loaders are alike" if own else "its workers ended too soon, or were not waited for"
        return msgspec.structs.replace(loader, loading=Unknown(reason))
    loading = _loading(own[0], begin_s, end_s)
    if not isinstance(loading, Unknown) and loader.pin_memory:
        loading = msgspec.structs.replace(loading, pin_s=pin_s)
    return msgspec.structs.replace(loader, loading=loading)


def _with_parts(loader: Loader, own: Record | None) -> Loader:
    """Add the time of pinning to the parts of making a sample; without workers, the steps' thread does all
    parts."""
    loading = loader.loading
    if isinstance(loading, Unknown):
        return loader
    parts = loading.parts
    if not loader.num_workers and own is not None:
        threads = (own.last(StateRead) or StateRead()).threads
        parts = next((thread.parts for thread in threads if thread.of_steps), [])
    made_s = sum(part.wall_s for part in parts if not part.what.startswith("queue"))
    if loading.pin_s and made_s:
        parts = [*parts, SamplePart(part="pin", num=0, wall_s=loading.pin_s * made_s / loading.fetch_s)]
    loading = msgspec.structs.replace(loading, parts=sorted(parts, key=lambda part: -part.wall_s))
    return msgspec.structs.replace(loader, loading=loading)


def _loading(makers: Sequence[_Events], begin_s: float, end_s: float) -> Loading | Unknown:
    grown = [_grown(events, begin_s, end_s) for events in makers]
    grown = [one for one in grown if one["num"]]
    num = sum(one["num"] for one in grown)
    if not num:
        return Unknown("no batch was made within the window")
    facts = makers[0][-1]
    is_worker = facts.worker is not None
    private = [one for events in makers if (one := _private(events)) is not None]
    return Loading(
        num_batches=int(num),
        **{
            name: sum(one[name] for one in grown) / num
            for name in ("fetch_s", "collate_s", "decode_s", "cpu_s")
        },
        longest_s=max(one["longest_s"] for one in grown),
        busy_share=min(1.0, sum(one["fetch_s"] for one in grown) / sum(one["over_s"] for one in grown))
        if is_worker
        else None,
        decoders=sorted({name for events in makers for name in events[-1].decoders}),
        items=Place(facts.items_at),
        collate=Place(facts.collate_at),
        num_distinct=next((size for events in makers if (size := events[-1].num_distinct) is not None), None),
        num_objects=facts.num_objects,
        num_threads=facts.num_threads,
        # Use the workers that were followed; the other workers are alike.
        private_growth_bytes=round(sum(one[0] for one in private) / len(private) * facts.num_workers)
        if private
        else None,
        private_over_s=max(one[1] for one in private) if private else None,
        parts=_parts(makers, end_s),
        decoded=facts.decoded,
        **{
            name: sum(one[name] for one in grown) / num
            for name in _MAY_BE_UNKNOWN
            if all(name in one for one in grown)
        },
    )


def _grown(events: _Events, begin_s: float, end_s: float) -> dict[str, float]:
    """Return the growth of one maker's counts in the window, or since its begin if no event precedes the
    window."""
    within = [event for event in events if event.begin_s <= end_s and event.at_s >= begin_s]
    if not within:
        return {"num": 0}
    before = [event for event in events if event.at_s < begin_s]
    first = before[-1] if before else None
    last = next((event for event in reversed(within) if event.at_s <= end_s), within[0])
    names = (*_COUNTS, *(name for name in _MAY_BE_UNKNOWN if getattr(last, name) is not None))
    grown: dict[str, float] = {
        name: getattr(last, name) - (getattr(first, name) or 0 if first else 0) for name in names
    }
    since_s = first.at_s if first else last.begin_s
    spent = [event.longest_s for event in within if event.at_s <= last.at_s]
    return {**grown, "longest_s": max(spent), "over_s": max(last.at_s - since_s, 1e-9)}


def _parts(makers: Sequence[_Events], end_s: float) -> list[SamplePart]:
    """Add up the times of all makers' parts until `end_s`, from each maker's first event on, warm-up
    included."""
    summed: dict[SamplePart, list[float]] = {}
    for first, *others in makers:
        last = next((event for event in reversed(others) if event.at_s <= end_s), first)
        for event, sign in ((last, 1),) if last is first else ((last, 1), (first, -1)):
            for part in event.parts:
                found = summed.setdefault(msgspec.structs.replace(part, num=0, wall_s=0.0), [0, 0.0])
                found[0] += sign * part.num
                found[1] += sign * part.wall_s
    return [
        msgspec.structs.replace(part, num=int(num), wall_s=wall_s)
        for part, (num, wall_s) in summed.items()
        if num > 0
    ]


def _private(events: _Events) -> tuple[int, float] | None:
    """Return the growth of a worker's private memory after the worker's warm-up, and the time span of the
    growth."""
    known = [
        (event.private_bytes, event.at_s)
        for event in events
        if event.private_bytes is not None and event.at_s - event.begin_s >= _UNSETTLED_S
    ]
    if len(known) < 2:
        return None
    (first_bytes, first_s), (last_bytes, last_s) = known[0], known[-1]
    return last_bytes - first_bytes, last_s - first_s


def _pin_s(record: Record | None, begin_s: float, end_s: float) -> float | None:
    """Return the mean time (s) of pinning a batch."""
    events = record.all(BatchesPinned) if record is not None else []
    if not events:
        return None
    first = next((event for event in reversed(events) if event.at_s < begin_s), None)
    last = next((event for event in reversed(events) if event.at_s <= end_s), events[-1])
    num, total_s = last.num, last.pin_s
    if first is not None and first is not last:
        num, total_s = num - first.num, total_s - first.pin_s
    return total_s / num
