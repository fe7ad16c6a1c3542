"""Evenness: what distinguishes the slowest hundredth of the steps."""

from __future__ import annotations

from dynotune.doctor import policy
from dynotune.doctor.bounds import unless_waited
from dynotune.doctor.declaration import Judgement, Judgements, rule
from dynotune.doctor.loaders import starts_workers_each_epoch
from dynotune.doctor.observation_view import ObservationView
from dynotune.doctor.phases import periodic, sampling, seen
from dynotune.doctor.slow_steps import ms, slow_steps, usual_step_s
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import Place


@rule(
    title="Python's garbage collector stops some steps.",
    sees="the time of all collections in the window; or, if not counted, slow steps with a collection of the oldest "
    "generation or of more than a millisecond.",
    costs="this time, and with a device at most the time for which it waits. Ranks that wait for one another all pay.",
    wrong_when="the collector frees what would fill memory otherwise. A single long collection has a low severity.",
    explains=["host-bound"],
)
def gc_jitter(view: ObservationView) -> Judgements:
    garbage, timing = view.process.collections, view.timing
    slow = slow_steps(view, "garbage")
    if isinstance(garbage, Unknown):
        if slow:
            yield slow.judgement("had a collection of garbage", _COLLECT_LATER)
        return
    share = unless_waited(view, min(1.0, garbage.total_s / timing.window_s))
    if share < policy.LEAST_SHARE:
        return
    one = garbage.num_oldest == 1 and garbage.longest_s > policy.MOST_OF_A_LOSS * garbage.total_s
    yield Judgement(
        claim=f"One collection of garbage held the host up for {ms(garbage.longest_s)}."
        if one
        else f"Collecting garbage takes {garbage.total_s / timing.window_s:.0%} of the host's time.",
        kind="jitter" if one else "speed",
        severity="low" if one else policy.severity(share),
        share=share,
        evidence=[
            f"{garbage.num} collections, {garbage.num_oldest} of the oldest generation, {ms(garbage.total_s)} together",
            f"the longest collection took {ms(garbage.longest_s)}",
            *([f"{garbage.num_objects:,} objects"] if garbage.num_objects is not None else []),
            *(slow.evidence() if slow else []),
        ],
        remedy=_COLLECT_LATER,
    )


_COLLECT_LATER = (
    "Call gc.freeze() after the setup, then gc.disable(), and gc.collect() where a pause does no harm; or raise "
    "gc.set_threshold()."
)


@rule(
    title="Some steps allocate device memory.",
    sees="steps among the slowest hundredth in which the allocator asked the driver for memory.",
    costs="the time that these steps took beyond a usual one.",
    wrong_when="the program had not seen its largest batch yet, and the cache is large enough since.",
    candidates=[Setting("alloc.expandable_segments", True)],
)
def alloc_jitter(view: ObservationView) -> Judgements:
    if slow := slow_steps(view, "allocation"):
        yield slow.judgement(
            "allocated device memory",
            "Pad batches to a few sizes, or run the largest batch first, so that the cache fits all of them.",
        )


@rule(
    title="Some steps compile code.",
    sees="steps among the slowest hundredth in which torch.compile compiled a graph.",
    costs="the time that these steps took beyond a usual one.",
    wrong_when="the window began before the program had seen all shapes, and no more will come.",
)
def recompile_jitter(view: ObservationView) -> Judgements:
    if slow := slow_steps(view, "compilation"):
        yield slow.judgement(
            "compiled something",
            "Pad inputs to a few shapes, mark sizes that change (torch._dynamo.mark_dynamic), or use dynamic=True.",
        )


@rule(
    title="Steps that begin an epoch are slow.",
    sees="steps that begin to iterate a loader take at least half a step longer than others.",
    costs="this time, once an epoch: a large share if epochs are short.",
    wrong_when="an evaluation between two epochs belongs to the step by which they are counted.",
    candidates=[Setting("loader.persistent_workers", True)],
)
def epoch_jitter(view: ObservationView) -> Judgements:
    timing = view.timing
    if timing.epoch_begin_s is None:
        return
    usual_s = usual_step_s(view)
    beyond_s = timing.epoch_begin_s - usual_s
    share = unless_waited(view, min(1.0, max(0.0, beyond_s * timing.num_epochs / timing.window_s)))
    if timing.epoch_begin_s < policy.SLOW_STEP * usual_s or share < policy.LEAST_SHARE:
        return
    sampler = sampling(view)
    begun = [] if sampler else [loader for loader in view.loaders if starts_workers_each_epoch(view, loader)]
    times = "once" if timing.num_epochs == 1 else f"{timing.num_epochs} times"
    yield Judgement(
        kind="jitter",
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
    title="Some batches come late.",
    sees="steps among the slowest hundredth that waited for the loader for most of their excess, and began no epoch.",
    costs="the time that these steps took beyond a usual one.",
    wrong_when="the page cache was cold when the window began.",
    candidates=["loader.prefetch_factor"],
)
def loader_jitter(view: ObservationView) -> Judgements:
    if slow := slow_steps(view, "loader"):
        loader = next((loader for loader in view.loaders if loader.num_workers), None)
        remedy = "Make samples equally expensive (cut large ones beforehand), or load in workers."
        yield slow.judgement(
            "waited for a late batch",
            "" if loader else remedy,
            where=loader.place if loader else view.loaders[0].place if view.loaders else Place(),
            candidates=[Setting("loader.prefetch_factor", 2 * (loader.prefetch_factor or 2))] if loader else [],
        )
