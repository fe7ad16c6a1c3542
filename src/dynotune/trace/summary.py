"""Summarise timelines: all facts about all ranks, as docs/reference/trace.md defines them."""

from collections.abc import Callable, Sequence
from dataclasses import fields

import msgspec
import numpy as np

from dynotune.schema.facts import Unknown
from dynotune.schema.trace_summary import DeviceTime, Gap, Idle, Kernels, Overlap, Place, TraceSummary
from dynotune.trace.causes import ranking
from dynotune.trace.causes.figures import duration, percent
from dynotune.trace.facts import (
    attention,
    busy_time,
    call_order,
    communication,
    copies,
    cuda_calls,
    fusion,
    host_time,
    idle,
    kernels,
    loops,
    memory_levels,
    needless,
    operators,
    ranks,
    steps,
)
from dynotune.trace.facts.idle import first_gap
from dynotune.trace.facts.rank_facts import OnDevice, RankFacts
from dynotune.trace.facts.source_locations import Places
from dynotune.trace.timeline import UNKNOWN, HostKind, Ints, Timeline

NUM_GAPS = 20
"""Number of idle gaps that are listed: the longest gaps of all devices."""
NOTED_SHARE = 0.01
"""Least share of the time window from which idle time without a known cause is mentioned."""


def summarise(timelines: Sequence[Timeline]) -> TraceSummary:
    """Summarise the traces of one job's ranks, from one timeline per rank. There must be at least one."""
    facts = [gather(timeline) for timeline in timelines]
    compared = ranks.compare(timelines, [one.window for one in facts], [one.steps for one in facts])
    lead = max(facts, key=lambda one: one.window_ns)
    shares = _device_time(lead, lead.device).shares if lead.device is not None and lead.window_ns else None
    found = ranking.causes(facts, compared)
    of_operators = [row for one in facts for row in operators.facts(one.timeline, one.window)]
    return TraceSummary(
        files=[timeline.source for timeline in timelines],
        recorder=timelines[0].recorder,
        verdict=ranking.verdict(lead, shares, found, of_operators),
        window_s=lead.window_ns / 1e9 if lead.window_ns else None,
        num_steps=lead.num_steps,
        step_source=lead.steps.source,
        step_s=((lead.steps.end_ns - lead.steps.start_ns) / 1e9).tolist(),
        shares=shares,
        causes=found,
        devices=[_device_time(one, index) for one in facts for index in one.devices],
        gaps=_longest_gaps(facts),
        copies=[row for one in facts for row in one.copies],
        syncs=[row for one in facts for row in cuda_calls.syncs(one.timeline, one.window, _place_of(one))],
        allocations=[
            row for one in facts for row in cuda_calls.allocations(one.timeline, one.window, _place_of(one))
        ],
        kernels=[one.kernels for one in facts if one.kernels is not None],
        communication=[one.communication for one in facts if one.communication is not None],
        ranks=compared,
        operators=of_operators,
        memory=[row for one in facts for row in memory_levels.levels(one.timeline, one.window)],
        hosts=[host_time.host_time(one.timeline, one.window) for one in facts],
        unsynced=[
            row
            for one in facts
            for row in cuda_calls.grouped(
                one.timeline, call_order.read_too_early(one.timeline), one.window, _place_of(one)
            )
        ],
        loops=loops.loops(lead.timeline, lead.window, lead.num_steps or 0),
        attention=attention.written(lead.timeline, lead.window),
        recomputed=needless.recomputed(lead.timeline, lead.window),
        ungraded=needless.ungraded(lead.timeline, lead.window),
        unknown=_unknown(facts),
        notes=[note for one in facts for note in (*one.timeline.notes, *_notes(one))],
    )


def gather(timeline: Timeline) -> RankFacts:
    found = steps.find(timeline)
    window = steps.window(timeline, found)
    places = Places(timeline, window)
    devices = {index: _on_device(timeline, index, window, places) for index in timeline.devices}
    return RankFacts(
        timeline=timeline,
        window=window,
        steps=found,
        places=places,
        devices=devices,
        device=max(devices, key=lambda index: devices[index].busy.total_ns, default=None),
        kernels=_kernels(timeline, window, len(found) or None) if devices else None,
        copies=copies.facts(timeline, window),
        communication=communication.facts(timeline, window),
    )


def _kernels(timeline: Timeline, window: tuple[int, int], num_steps: int | None) -> Kernels:
    fusable_ns = fusion.fusable_ns(timeline, window)
    fusable_s = None if fusable_ns is None else fusable_ns / 1e9
    return msgspec.structs.replace(kernels.facts(timeline, window, num_steps), fusable_s=fusable_s)


def _on_device(timeline: Timeline, index: int, window: tuple[int, int], places: Places) -> OnDevice:
    gaps = idle.gaps(timeline, index, window)
    where = places.mostly(gaps.thread, gaps.start_ns, gaps.end_ns)
    return OnDevice(busy_time.busy(timeline, index, window), gaps, where)


def _place_of(facts: RankFacts) -> Callable[[Ints], list[Place]]:
    return lambda rows: facts.places.texts(facts.places.of_calls(rows))


def _device_time(facts: RankFacts, index: int) -> DeviceTime:
    busy, idle_ns = facts.devices[index].busy, facts.devices[index].gaps.idle_ns()
    properties = facts.timeline.properties.get(index)
    first, usual = first_gap(facts.timeline, facts.devices[index].gaps, facts.steps, facts.window) or (
        None,
        None,
    )
    return DeviceTime(
        rank=facts.timeline.rank,
        device=index,
        name="" if properties is None else properties.name,
        window_s=facts.window_ns / 1e9,
        busy_s=busy.total_ns / 1e9,
        compute_s=busy.any_compute_ns / 1e9,
        copy_s=busy.any_copy_ns / 1e9,
        communication_s=busy.any_communication_ns / 1e9,
        idle_s=sum(idle_ns.values()) / 1e9,
        overlap=Overlap(
            **{f"{kinds.name[:-3]}_s": getattr(busy, kinds.name) / 1e9 for kinds in fields(busy)}
        ),
        idle=Idle(**{f"{cause}_s": time_ns / 1e9 for cause, time_ns in idle_ns.items()}),
        late_s=facts.devices[index].gaps.late_ns() / 1e9,
        first_gap=first,
        usual_gap=usual,
    )


def _longest_gaps(facts: Sequence[RankFacts]) -> list[Gap]:
    rows = []
    for one in facts:
        for index, on_device in one.devices.items():
            gaps = on_device.gaps
            length = gaps.end_ns - gaps.start_ns
            longest = np.lexsort((gaps.start_ns, -length))[:NUM_GAPS]
            places = one.places.texts(on_device.gap_places.of(longest))
            by_cause = gaps.cause()
            rows += [
                Gap(
                    rank=one.timeline.rank,
                    device=index,
                    start_s=int(gaps.start_ns[row] - one.window[0]) / 1e9,
                    duration_s=int(length[row]) / 1e9,
                    cause=by_cause[row],
                    where=place,
                )
                for row, place in zip(longest.tolist(), places, strict=True)
            ]
    return sorted(rows, key=lambda row: -row.duration_s)[:NUM_GAPS]


def _unknown(facts: Sequence[RankFacts]) -> dict[str, Unknown]:
    """Return the facts that the traces lack according to their reader, and the facts that were not found in
    them."""
    reasons: dict[str, str] = {}
    for one in facts:
        reasons |= one.timeline.missing
        host, device = one.timeline.host, one.timeline.device
        told = {
            "steps": (one.steps.source is not None, "no step is marked, and no cycle repeats three times"),
            "device": (len(device) > 0, "no device activity was recorded"),
            "launches": (
                not len(device) or (device.launch != UNKNOWN).any(),
                "no call that queued device work was recorded, so no idle time has a known cause",
            ),
            "stacks": ((host.kind == HostKind.PYTHON).any(), "no Python functions were recorded"),
            "memory": (len(one.timeline.memory) > 0, "the allocator was not recorded"),
        }
        for fact, (is_told, reason) in told.items():
            if not is_told:
                reasons.setdefault(fact, reason)
    return {fact: Unknown(reason) for fact, reason in sorted(reasons.items())}


def _notes(facts: RankFacts) -> list[str]:
    if facts.busiest is None or not facts.window_ns:
        return []
    rank = "" if facts.timeline.rank is None else f"rank {facts.timeline.rank}: "
    notes = []
    before_ns = _left_over_ns(facts)
    if before_ns / facts.window_ns >= NOTED_SHARE:
        notes.append(
            f"{rank}the first {duration(before_ns)} of the window went to work that was queued before the "
            "recording "
            "began: a step is shorter than reported here"
        )
    other = facts.busiest.gaps.idle_ns()["other"] / facts.window_ns
    if other >= NOTED_SHARE:
        notes.append(
            f"{rank}{percent(other)} of the window is idle, and the work that ended it has no recorded launch"
        )
    return notes


def _left_over_ns(facts: RankFacts) -> int:
    """Return how long the busiest device ran work without a recorded launch before its first work with
    one."""
    device, start_ns = facts.timeline.device, facts.window[0]
    here = (device.device == facts.device) & (device.end_ns > start_ns)
    launched = device.start_ns[here & (device.launch != UNKNOWN)]
    if not len(launched):
        return 0
    left_over = device.end_ns[here & (device.launch == UNKNOWN) & (device.end_ns <= launched.min())]
    return max(0, int(left_over.max(initial=start_ns)) - start_ns)
