"""Evenness: what distinguishes the slowest hundredth of the steps."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dynotune.doctor import policy
from dynotune.doctor.bounds import unless_waited
from dynotune.doctor.declaration import rule
from dynotune.doctor.loaders import starts_workers_each_epoch
from dynotune.doctor.observation_view import ObservationView, needs
from dynotune.doctor.phases import periodic, sampling, seen
from dynotune.doctor.slow_steps import ms, slow_steps
from dynotune.schema.diagnosis import Finding, Kind
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import Place


@rule(
    "gc-jitter",
    "program",
    title="Python's garbage collector stops some steps.",
    sees="the total time of all collections within the window. If that was not counted: steps among the slowest "
    "hundredth in which the oldest generation was collected, or a collection took longer than a millisecond.",
    costs="this time, and with a device at most the time for which the device waits, because it goes on with queued "
    "work. Ranks that wait for one another all pay for the slowest.",
    wrong_when="the collector frees objects that would fill memory otherwise. A single long collection shows that "
    "steps can stall, and not how often, so its severity is low.",
    explains=["host-bound"],
)
def gc_jitter(view: ObservationView) -> Iterator[Finding]:
    garbage, timing = view.process.collections, view.timing
    slow = slow_steps(view, "garbage")
    if isinstance(garbage, Unknown):
        if slow:
            yield _of_garbage(slow.share, "jitter", slow.claim("had a collection of garbage"), slow.evidence())
        return
    share = unless_waited(view, min(1.0, garbage.total_s / timing.window_s))
    if share < policy.LEAST_SHARE:
        return
    evidence = [
        f"{garbage.num} collections, {garbage.num_oldest} of the oldest generation, {ms(garbage.total_s)} together",
        f"the longest collection took {ms(garbage.longest_s)}",
        *([f"{garbage.num_objects:,} objects"] if garbage.num_objects is not None else []),
        *(slow.evidence() if slow else []),
    ]
    claim = f"Collecting garbage takes {garbage.total_s / timing.window_s:.0%} of the host's time."
    finding = _of_garbage(share, "speed", claim, evidence)
    if garbage.num_oldest == 1 and garbage.longest_s > policy.MOST_OF_A_LOSS * garbage.total_s:
        claim = f"One collection of garbage held the host up for {ms(garbage.longest_s)}."
        finding = msgspec.structs.replace(finding, severity="low", kind="jitter", claim=claim)
    yield finding


def _of_garbage(share: float, kind: Kind, claim: str, evidence: list[str]) -> Finding:
    return Finding(
        id="gc-jitter",
        kind=kind,
        severity=policy.severity(share),
        claim=claim,
        share=share,
        evidence=evidence,
        remedy="Call gc.freeze() after the setup, then gc.disable(), and gc.collect() where a pause does no harm; "
        "or raise gc.set_threshold().",
    )


@rule(
    "alloc-jitter",
    "program",
    title="Some steps allocate device memory.",
    sees="steps among the slowest hundredth in which the allocator asked the driver for memory.",
    costs="the time that these steps took beyond a usual one.",
    wrong_when="the program had not seen its largest batch yet, and the cache is large enough since.",
    candidates=[Setting("alloc.expandable_segments", True)],
)
def alloc_jitter(view: ObservationView) -> Iterator[Finding]:
    if slow := slow_steps(view, "allocation"):
        yield Finding(
            id="alloc-jitter",
            kind="jitter",
            severity=slow.severity,
            claim=slow.claim("allocated device memory"),
            share=slow.share,
            evidence=slow.evidence(),
            remedy="Pad batches to a few sizes, or run the largest batch first, so that the cache fits all of them.",
            candidates=[Setting("alloc.expandable_segments", True)],
        )


@rule(
    "recompile-jitter",
    "program",
    title="Some steps compile code.",
    sees="steps among the slowest hundredth in which torch.compile compiled a graph.",
    costs="the time that these steps took beyond a usual one.",
    wrong_when="the window began before the program had seen all shapes, and no more will come.",
)
def recompile_jitter(view: ObservationView) -> Iterator[Finding]:
    if slow := slow_steps(view, "compilation"):
        yield Finding(
            id="recompile-jitter",
            kind="jitter",
            severity=slow.severity,
            claim=slow.claim("compiled something"),
            share=slow.share,
            evidence=slow.evidence(),
            remedy="Pad inputs to a few shapes, mark sizes that change with torch._dynamo.mark_dynamic, or compile "
            "with dynamic=True.",
        )


@rule(
    "epoch-jitter",
    "program",
    title="Steps that begin an epoch are slow.",
    sees="steps that begin to iterate a loader take at least half a step longer than others.",
    costs="this time, once an epoch: a large share if epochs are short.",
    wrong_when="an evaluation between two epochs belongs to the step by which they are counted.",
    candidates=[Setting("loader.persistent_workers", True)],
)
def epoch_jitter(view: ObservationView) -> Iterator[Finding]:
    timing = view.timing
    if timing.epoch_begin_s is None:
        return
    usual_s = timing.typical_step_s or timing.median_step_s
    needs(usual_s > 0, "what a usual step takes", "the steps have no length")
    beyond_s = timing.epoch_begin_s - usual_s
    share = unless_waited(view, min(1.0, max(0.0, beyond_s * timing.num_epochs / timing.window_s)))
    if timing.epoch_begin_s < policy.SLOW_STEP * usual_s or share < policy.LEAST_SHARE:
        return
    sampler = sampling(view)
    begun = [] if sampler else [loader for loader in view.loaders if starts_workers_each_epoch(view, loader)]
    times = "once" if timing.num_epochs == 1 else f"{timing.num_epochs} times"
    yield Finding(
        id="epoch-jitter",
        kind="jitter",
        severity=policy.severity(share),
        claim=f"A step that begins an epoch takes {timing.epoch_begin_s / usual_s:.1f} times as long as others.",
        share=share,
        evidence=[
            f"{ms(timing.epoch_begin_s)} against {ms(usual_s)}, {times} in {timing.num_steps} steps",
            *(line for work in periodic(view, "epoch") for line in seen(view, work)),
        ],
        where=next((loader.place for loader in (begun or view.loaders)), Place()),
        candidates=[Setting("loader.persistent_workers", True)] if begun else [],
        remedy=""
        if begun
        else "The sampler takes the time, which orders all items anew: make epochs longer, or draw with replacement."
        if sampler
        else "Draw from one iterator across epochs, or make the data set start faster.",
    )


@rule(
    "loader-jitter",
    "program",
    title="Some batches come late.",
    sees="steps among the slowest hundredth that waited for the loader for more than half of their time beyond a usual "
    "step, and began no epoch.",
    costs="the time that these steps took beyond a usual one.",
    wrong_when="the page cache was cold when the window began.",
    candidates=["loader.prefetch_factor"],
)
def loader_jitter(view: ObservationView) -> Iterator[Finding]:
    if slow := slow_steps(view, "loader"):
        with_workers = next((loader for loader in view.loaders if loader.num_workers), None)
        prefetch = [] if with_workers is None else [_more_prefetching(with_workers.prefetch_factor)]
        yield Finding(
            id="loader-jitter",
            kind="jitter",
            severity=slow.severity,
            claim=slow.claim("waited for a late batch"),
            share=slow.share,
            evidence=slow.evidence(),
            where=with_workers.place if with_workers else view.loaders[0].place if view.loaders else Place(),
            candidates=prefetch,
            remedy=""
            if prefetch
            else "Make samples equally expensive (cut large ones beforehand), or load in workers.",
        )


def _more_prefetching(now: int | None) -> Setting:
    return Setting("loader.prefetch_factor", 2 * (now or 2))


RULES = (gc_jitter, alloc_jitter, recompile_jitter, epoch_jitter, loader_jitter)
