"""What making batches took, from the events of those who made them, brought to the loaders that they were made for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dynotune.launch.records.record import Record
from dynotune.schema import document
from dynotune.schema.errors import CONTRADICTIONS, RecordError
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import Line, Loader, Loading, SamplePart
from dynotune.schema.trace_summary import Place

_ENOUGH, NOTABLE = 20, 0.05
"""Looks that tell where time goes; a share of it that is worth a word."""
_NO_MEDIA = ("text", "tokenizing", "decompressing")
_UNSETTLED_S = 1.0
"""A worker that has just begun takes memory for its first batches: growth counts from here on."""


def with_loading(
    loaders: Sequence[Loader], pid: int, records: Sequence[Record], begin_s: float, end_s: float
) -> list[Loader]:
    """The loaders of process `pid` with what making their batches took from `begin_s` to `end_s`, CLOCK_MONOTONIC.

    Args:
        records: of all processes of the run: a worker has its own.

    Raises:
        RecordError: an event lacks what belongs to it.
    """
    try:
        groups: dict[_Key, list[_Events]] = {}
        for events in (events for record in records for events in _by_maker(record, pid)):
            groups.setdefault(_key(events[0]), []).append(events)
        own = next((record for record in records if record.pid == pid), None)
        pin_s = _pin_s(own, begin_s, end_s)
        return [_with_parts(_filled(loader, loaders, groups, pin_s, begin_s, end_s), own) for loader in loaders]
    except CONTRADICTIONS as error:
        raise RecordError(f"An event of {pid} or its workers is not as dynotune's agent writes it.") from error


_Events = list[dict[str, Any]]
_Key = tuple[str, str, int | None, int]


def _by_maker(record: Record, pid: int) -> list[_Events]:
    """One maker's events a list: a process that makes batches itself may make them for several loaders.

    A process that replaced itself goes on in the same record, and counts from its new begin.
    """
    makers: dict[tuple[_Key, float], _Events] = {}
    for event in record.events.get("fetching", []):
        if event["drawn_by"] == pid:
            makers.setdefault((_key(event), event["begin_s"]), []).append(event)
    return list(makers.values())


def _key(event: dict[str, Any]) -> _Key:
    return event["dataset"], event["collate"], event["num_items"], event["num_workers"]


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
        and (len(loaders) == 1 or (dataset == loader.dataset and (num_items == loader.num_items or loader.is_iterable)))
        and (len(loaders) == 1 or not loader.collate or collate == loader.collate)
    ]
    if len(own) != 1:
        reason = "its workers lived too briefly to tell" if not own else "several loaders are alike"
        return msgspec.structs.replace(loader, loading=Unknown(reason))
    loading = _loading(own[0], begin_s, end_s)
    if not isinstance(loading, Unknown) and loader.pin_memory:
        loading = msgspec.structs.replace(loading, pin_s=pin_s)
    return msgspec.structs.replace(loader, loading=loading)


def _with_parts(loader: Loader, own: Record | None) -> Loader:
    """Its parts as shares of all that goes into a sample; without workers they are those of the thread of the steps.

    Decoders that no cover timed count with what was seen of them.
    """
    loading = loader.loading
    if isinstance(loading, Unknown):
        return loader
    parts = loading.parts
    if not loader.num_workers and own is not None:
        threads = (own.last("state") or {}).get("threads", [])
        of_steps: Any = next((thread.get("parts", []) for thread in threads if thread["of_steps"]), [])
        parts = document.convert(of_steps, list[SamplePart])
    parts = _with_lock(parts, loading)
    made_s = sum(part.wall_s for part in parts if not part.what.startswith("queue"))
    if loading.pin_s and made_s:
        parts = [*parts, SamplePart(part="pin", num=0, wall_s=loading.pin_s * made_s / loading.fetch_s)]
    per_s = loading.fetch_s / made_s if made_s else 0.0
    seen = [part for part in parts if part.part == "decode" and part.what not in _NO_MEDIA]
    decode_s = max(loading.decode_s, per_s * sum(part.wall_s for part in seen))
    parts = shared(parts, per_s / loader.batch_size if per_s and loader.batch_size else None)
    decoders = loading.decoders or sorted({part.what for part in seen})
    loading = msgspec.structs.replace(loading, parts=parts, decode_s=decode_s, decoders=decoders)
    return msgspec.structs.replace(loader, loading=loading)


def shared(parts: Sequence[SamplePart], sample_per_s: float | None = None) -> list[SamplePart]:
    """The parts with their shares, the largest first; a second of them stands for `sample_per_s` of one sample."""
    total_s = sum(part.wall_s for part in parts)
    found = [
        msgspec.structs.replace(
            part,
            share=part.wall_s / total_s if total_s else 0.0,
            sample_s=None if sample_per_s is None else part.wall_s * sample_per_s,
        )
        for part in parts
    ]
    return sorted(found, key=lambda part: -part.wall_s)


def _with_lock(parts: list[SamplePart], loading: Loading) -> list[SamplePart]:
    """What reads or waits may stand still. Beside threads of the program's own, all else waits for the interpreter."""
    total_s = sum(part.wall_s for part in parts if not part.what.startswith("queue"))
    runs = [part for part in parts if part.part not in ("read", "wait") and not part.what.startswith("queue")]
    running_s = sum(part.wall_s for part in runs)
    if not loading.still_share or not running_s:
        return parts
    waits_s = min(running_s, loading.still_share * total_s - (total_s - running_s))
    if waits_s < NOTABLE * total_s:
        return parts
    left = 1 - waits_s / running_s
    parts = [msgspec.structs.replace(part, wall_s=part.wall_s * left) if part in runs else part for part in parts]
    num = round(sum(part.num for part in runs) * (1 - left))
    return [*parts, SamplePart(part="wait", what="the interpreter's lock", num=num, wall_s=waits_s)]


def _loading(makers: Sequence[_Events], begin_s: float, end_s: float) -> Loading | Unknown:
    grown = [_grown(events, begin_s, end_s) for events in makers]
    grown = [one for one in grown if one["num"]]
    num = sum(one["num"] for one in grown)
    if not num:
        return Unknown("no batch was made within the window")
    facts = makers[0][-1]
    is_worker = facts["worker"] is not None
    private = [one for events in makers if (one := _private(events)) is not None]
    return Loading(
        num_batches=int(num),
        **{name: sum(one[name] for one in grown) / num for name in ("fetch_s", "collate_s", "decode_s", "cpu_s")},
        longest_s=max(one["longest_s"] for one in grown),
        busy_share=min(1.0, sum(one["fetch_s"] for one in grown) / sum(one["over_s"] for one in grown))
        if is_worker
        else None,
        decoders=sorted({name for events in makers for name in events[-1]["decoders"]}),
        items=Place(facts["items_at"]),
        lines=_lines(makers),
        collate=Place(facts["collate_at"]),
        num_distinct=next((events[-1]["num_distinct"] for events in makers if "num_distinct" in events[-1]), None),
        num_objects=facts["num_objects"],
        num_threads=facts.get("num_threads"),
        # Of those that were followed; the others are alike.
        private_growth_bytes=round(sum(one[0] for one in private) / len(private) * facts["num_workers"])
        if private
        else None,
        private_over_s=max(one[1] for one in private) if private else None,
        parts=_parts(makers, begin_s, end_s),
        decoded=facts.get("decoded", []),
        **_reads(grown),
    )


def _grown(events: _Events, begin_s: float, end_s: float) -> dict[str, float]:
    """What the counts of one maker grew by within the window, or since its begin where that was not told apart."""
    within = [event for event in events if event["begin_s"] <= end_s and event["at_s"] >= begin_s]
    if not within:
        return {"num": 0}
    before = [event for event in events if event["at_s"] < begin_s]
    first = before[-1] if before else None
    last = next((event for event in reversed(within) if event["at_s"] <= end_s), within[0])
    grown = {name: last[name] - (first[name] if first else 0) for name in _COUNTS}
    # What the process read before it made batches is not told.
    told = events[0] if first is None else first
    grown.update((name, last[name] - told[name]) for name in _WAITS if name in last and name in told)
    grown.update({"over_" + name: last[name] - told[name] for name in ("num", "fetch_s")})
    grown["num_own_threads"] = last.get("num_own_threads", 0)
    since_s = first["at_s"] if first else last["begin_s"]
    spent = [event["longest_s"] for event in within if event["at_s"] <= last["at_s"]]
    return {**grown, "longest_s": max(spent), "over_s": max(last["at_s"] - since_s, 1e-9)}


def _lines(makers: Sequence[_Events]) -> list[Line]:
    """The lines of all makers together, since their begin."""
    summed: dict[Line, int] = {}
    for events in makers:
        for line in document.convert(events[-1].get("lines", []), list[Line]):
            key = msgspec.structs.replace(line, num=0, cpu_s=None)
            summed[key] = summed.get(key, 0) + line.num
    lines = [msgspec.structs.replace(line, num=num) for line, num in summed.items()]
    return sorted(lines, key=lambda line: -line.num)


_WAITS = ("ran_s", "delayed_s", "rchar", "read_bytes")
_COUNTS = ("num", "fetch_s", "collate_s", "decode_s", "cpu_s")


def _parts(makers: Sequence[_Events], begin_s: float, end_s: float) -> list[SamplePart]:
    """Of all makers together, within the window; since their begin where that was too short to see much."""
    within: dict[SamplePart, list[float]] = {}
    whole: dict[SamplePart, list[float]] = {}
    for events in makers:
        before = [event for event in events if event["at_s"] < begin_s]
        last = next((event for event in reversed(events) if event["at_s"] <= end_s), events[-1])
        for event, sums, sign in ((last, within, 1), (last, whole, 1), *((one, within, -1) for one in before[-1:])):
            for part in document.convert(event.get("parts", []), list[SamplePart]):
                found = sums.setdefault(msgspec.structs.replace(part, num=0, wall_s=0.0), [0, 0.0])
                found[0] += sign * part.num
                found[1] += sign * part.wall_s
    sums = within if sum(num for num, _ in within.values()) >= _ENOUGH else whole
    return [
        msgspec.structs.replace(part, num=int(num), wall_s=wall_s) for part, (num, wall_s) in sums.items() if num > 0
    ]


def _reads(grown: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Bytes of a batch, and how long threads stood still; what is mapped into memory is not read by calls."""
    over = sum(one["over_num"] for one in grown)
    if not over or not all(name in one for one in grown for name in _WAITS):
        return {}
    ran_s, delayed_s, over_s, read, storage = (
        sum(one[name] for one in grown) for name in (*_WAITS[:2], "over_fetch_s", *_WAITS[2:])
    )
    still = (
        max(0.0, 1 - (ran_s + delayed_s) / over_s) if over_s and any(one["num_own_threads"] for one in grown) else None
    )
    return {"read_bytes": max(read, storage) / over, "storage_bytes": storage / over, "still_share": still}


def _private(events: _Events) -> tuple[int, float] | None:
    """Growth of a worker's own memory once it had settled, and over how long."""
    told = [event for event in events if event["private_bytes"] is not None]
    told = [event for event in told if event["at_s"] - event["begin_s"] >= _UNSETTLED_S]
    if len(told) < 2:
        return None
    return told[-1]["private_bytes"] - told[0]["private_bytes"], told[-1]["at_s"] - told[0]["at_s"]


def _pin_s(record: Record | None, begin_s: float, end_s: float) -> float | None:
    """Mean time in which a batch was pinned."""
    events = record.events.get("pinning", []) if record is not None else []
    if not events:
        return None
    first = next((event for event in reversed(events) if event["at_s"] < begin_s), None)
    last = next((event for event in reversed(events) if event["at_s"] <= end_s), events[-1])
    num, total_s = last["num"], last["pin_s"]
    if first is not None and first is not last:
        num, total_s = num - first["num"], total_s - first["pin_s"]
    return float(total_s / num)
