"""Evenness: what the slowest hundredth of the steps had that the others had not."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dynotune.doctor import policy
from dynotune.doctor.bounds import unless_waited
from dynotune.doctor.loaders import starts_workers_each_epoch
from dynotune.doctor.observation_view import Seen, needs
from dynotune.doctor.registry import rule
from dynotune.doctor.slow_steps import ms, slow_steps
from dynotune.schema.diagnosis import Finding, Kind
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import Place


@rule("program", explains=["host-bound"])
def gc_jitter(seen: Seen) -> Iterator[Finding]:
    """Python's garbage collector stops some steps.

    Sees: how long all collections within the window took together. Where that was not counted, steps among the slowest
    hundredth in which the oldest generation was collected, or a collection took longer than a millisecond.

    Costs: that time, and with a device at most what it waits: it goes on with what is queued. Ranks that wait for one
    another all pay for the slowest.

    Wrong when: objects are freed by it that would else fill memory. One long collection says that steps can be held up
    so, and not how often: then its severity is low.
    """
    found, timing = seen.process.collections, seen.timing
    slow = slow_steps(seen, "garbage")
    if isinstance(found, Unknown):
        if slow:
            yield _of_garbage(slow.share, "jitter", slow.claim("had a collection of garbage"), slow.evidence())
        return
    share = unless_waited(seen, min(1.0, found.total_s / timing.window_s))
    if share < policy.LEAST_SHARE:
        return
    evidence = [
        f"{found.num} collections, {found.num_oldest} of the oldest generation, {ms(found.total_s)} together",
        f"the longest collection took {ms(found.longest_s)}",
        *([f"{found.num_objects:,} objects"] if found.num_objects is not None else []),
        *(slow.evidence() if slow else []),
    ]
    claim = f"Collecting garbage takes {found.total_s / timing.window_s:.0%} of the host's time."
    finding = _of_garbage(share, "speed", claim, evidence)
    if found.num_oldest == 1 and found.longest_s > policy.MOST_OF_A_LOSS * found.total_s:
        claim = f"One collection of garbage held the host up for {ms(found.longest_s)}."
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
        remedy="Call gc.freeze() after setting up, and gc.collect() where a pause does no harm, with gc.disable() "
        "between; or raise gc.set_threshold().",
    )


@rule("program")
def alloc_jitter(seen: Seen) -> Iterator[Finding]:
    """Device memory is allocated in some steps.

    Sees: steps among the slowest hundredth in which the allocator asked the driver for memory.

    Costs: what these steps took beyond a usual one.

    Wrong when: the program had not seen its largest batch yet, and the cache has grown enough since.
    """
    if slow := slow_steps(seen, "allocation"):
        yield Finding(
            id="alloc-jitter",
            kind="jitter",
            severity=slow.severity,
            claim=slow.claim("allocated device memory"),
            share=slow.share,
            evidence=slow.evidence(),
            remedy="Pad batches to a few sizes, or run the largest one first.",
            candidates=[Setting("alloc.expandable_segments", True)],
        )


@rule("program")
def recompile_jitter(seen: Seen) -> Iterator[Finding]:
    """Something is compiled in some steps.

    Sees: steps among the slowest hundredth in which torch.compile compiled a graph.

    Costs: what these steps took beyond a usual one.

    Wrong when: the window began before all shapes had been seen, and no more will come.
    """
    if slow := slow_steps(seen, "compilation"):
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


@rule("program")
def epoch_jitter(seen: Seen) -> Iterator[Finding]:
    """Steps that begin an epoch are slow.

    Sees: how much longer than others the steps take that begin to iterate a loader, where that is at least half of a
    step.

    Costs: that time, once an epoch; so of short epochs a large share.

    Wrong when: evaluation lies between two epochs and belongs to the step by which they are counted.
    """
    timing = seen.timing
    if timing.epoch_begin_s is None:
        return
    usual_s = timing.typical_step_s or timing.median_step_s
    needs(usual_s > 0, "what a usual step takes", "the steps have no length")
    beyond_s = timing.epoch_begin_s - usual_s
    share = unless_waited(seen, min(1.0, max(0.0, beyond_s * timing.num_epochs / timing.window_s)))
    if timing.epoch_begin_s < policy.SLOW_STEP * usual_s or share < policy.LEAST_SHARE:
        return
    begun = [loader for loader in seen.loaders if starts_workers_each_epoch(seen, loader)]
    times = "once" if timing.num_epochs == 1 else f"{timing.num_epochs} times"
    yield Finding(
        id="epoch-jitter",
        kind="jitter",
        severity=policy.severity(share),
        claim=f"A step that begins an epoch takes {timing.epoch_begin_s / usual_s:.1f} times as long as others.",
        share=share,
        evidence=[f"{ms(timing.epoch_begin_s)} against {ms(usual_s)}, {times} in {timing.num_steps} steps"],
        where=next((loader.place for loader in (begun or seen.loaders)), Place()),
        candidates=[Setting("loader.persistent_workers", True)] if begun else [],
        remedy="" if begun else "Draw from one iterator that goes on across epochs, or make the data set start faster.",
    )


@rule("program")
def loader_jitter(seen: Seen) -> Iterator[Finding]:
    """Some batches come late.

    Sees: steps among the slowest hundredth that spent more than half of what they took beyond a usual one waiting for
    the loader, and began no epoch.

    Costs: what these steps took beyond a usual one.

    Wrong when: the page cache was cold at the window's begin.
    """
    if slow := slow_steps(seen, "loader"):
        with_workers = next((loader for loader in seen.loaders if loader.num_workers), None)
        prefetch = [] if with_workers is None else [_more_prefetching(with_workers.prefetch_factor)]
        yield Finding(
            id="loader-jitter",
            kind="jitter",
            severity=slow.severity,
            claim=slow.claim("waited for a late batch"),
            share=slow.share,
            evidence=slow.evidence(),
            where=with_workers.place if with_workers else seen.loaders[0].place if seen.loaders else Place(),
            candidates=prefetch,
            remedy="" if prefetch else "Make single samples take alike: cut large ones up front, or load in workers.",
        )


def _more_prefetching(now: int | None) -> Setting:
    return Setting("loader.prefetch_factor", 2 * (now or 2))
