"""Evenness of steps: how the slowest steps differ from the others."""

from dynotune.doctor import policy
from dynotune.doctor.bounds import unless_waited
from dynotune.doctor.declaration import Judgement, Judgements, rule
from dynotune.doctor.loaders import starts_workers_each_epoch
from dynotune.doctor.observation_view import ObservationView
from dynotune.doctor.periodic_work import periodic, sampling, seen
from dynotune.doctor.slow_steps import ms, slow_steps, usual_step_s
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import Place

_ASKED = """\
Remove the call of gc.collect() from the loop, or call it once an epoch: objects without cycles are freed at once \
anyway. gc.disable() does not stop calls of gc.collect()."""  # noqa: E501


@rule(family="jitter")
def gc_jitter(view: ObservationView) -> Judgements:
    garbage, timing = view.process.collections, view.timing
    slow = slow_steps(view, "garbage")
    if isinstance(garbage, Unknown):
        if slow:
            yield slow.judgement("had a garbage collection")
        return
    share = unless_waited(view, min(1.0, garbage.total_s / timing.window_s))
    if share < policy.LEAST_SHARE:
        return
    one = garbage.num_oldest == 1 and garbage.longest_s > policy.MOST_OF_A_LOSS * garbage.total_s
    asked = garbage.asked_at if garbage.asked_s > policy.MOST_OF_A_LOSS * garbage.total_s else ""
    yield Judgement(
        claim=f"One garbage collection delayed the host for {ms(garbage.longest_s)}."
        if one
        else (
            f"Garbage collections that the program asks for take {garbage.asked_s / timing.window_s:.0%} "
            "of the time."
        )
        if asked
        else f"Collecting garbage takes {garbage.total_s / timing.window_s:.0%} of the host's time.",
        kind="jitter" if one else "speed",
        severity="low" if one else policy.severity(share),
        share=share,
        evidence=[
            (
                f"{garbage.num} collections, {garbage.num_oldest} of the oldest generation, "
                f"{ms(garbage.total_s)} together"
            ),
            f"the longest collection took {ms(garbage.longest_s)}",
            *([f"{garbage.num_objects:,} objects"] if garbage.num_objects is not None else []),
            *([f"gc.collect() is called at {asked}"] if asked else []),
            *(slow.evidence() if slow else []),
        ],
        where=Place(function=asked),
        remedy=_ASKED if asked else "",
    )


@rule(family="jitter")
def alloc_jitter(view: ObservationView) -> Judgements:
    if slow := slow_steps(view, "allocation"):
        yield slow.judgement("allocated device memory")


@rule(family="jitter")
def recompile_jitter(view: ObservationView) -> Judgements:
    if slow := slow_steps(view, "compilation"):
        yield slow.judgement("compiled something")


@rule(family="jitter")
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
        claim=(
            f"A step that begins an epoch takes {timing.epoch_begin_s / usual_s:.1f} times as long as others."
        ),
        share=share,
        evidence=[
            f"{ms(timing.epoch_begin_s)} against {ms(usual_s)}, {times} in {timing.num_steps} steps",
            *(line for work in periodic(view, "epoch") for line in seen(view, work)),
        ],
        where=next((loader.place for loader in (begun or view.loaders)), Place()),
        candidates=[Setting("loader.persistent_workers", True)] if begun else [],
        remedy=""
        if begun
        else (
            "The time goes to the sampler, which orders all items anew: make epochs longer, or draw with "
            "replacement."
        )
        if sampler
        else "Draw from one iterator across epochs, or make the data set start faster.",
    )


@rule(family="jitter")
def loader_jitter(view: ObservationView) -> Judgements:
    if slow := slow_steps(view, "loader"):
        loader = next((loader for loader in view.loaders if loader.num_workers), None)
        remedy = "Make samples equally expensive (cut large ones beforehand), or load in workers."
        yield slow.judgement(
            "waited for a late batch",
            "" if loader else remedy,
            where=loader.place if loader else view.loaders[0].place if view.loaders else Place(),
            candidates=[Setting("loader.prefetch_factor", 2 * (loader.prefetch_factor or 2))]
            if loader
            else [],
        )
