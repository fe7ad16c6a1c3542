"""Pinning: page-locked memory as the source of copies, and the cost of locking memory."""

from dynotune.doctor import policy
from dynotune.doctor.bounds import behind_pageable_copies, delay_of_device, is_pinned, place_of, to_device
from dynotune.doctor.declaration import Judgement, Judgements, cuda_rule, rule
from dynotune.doctor.loaders import main_loader
from dynotune.doctor.observation_view import ObservationView, evidence_of, required
from dynotune.doctor.rules.transfer import MADE, NO_WAIT
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import Loader
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import Copies, Place

PIN = Setting("loader.pin_memory", True)


@cuda_rule()
def pin_memory_off(view: ObservationView) -> Judgements:
    pageable = [row for row in to_device(view) if row.pinned is False]
    losses = view.losses("pin-memory-off")
    # If every copy is of pageable memory, the host also waits for that reason.
    waits = [] if is_pinned(view) else view.losses("h2d-blocking")
    share = sum(loss.share for loss in losses) * _above_bus(view, pageable) + sum(loss.share for loss in waits)
    share += behind_pageable_copies(view)
    # Pinning a tensor that is made only for the copy takes as long as the copy.
    share -= delay_of_device(view, MADE)
    if not pageable or share < policy.LEAST_SHARE:
        return
    loader = main_loader(view)
    from_loader = loader is not None and not loader.pin_memory and loader.batch_is_pinnable is not False
    yield Judgement(
        share=min(share, 1.0),
        evidence=[*evidence_of([*losses, *waits]), *_loader_in_words(loader)],
        where=place_of([*losses, *waits]),
        candidates=[PIN, NO_WAIT] if from_loader else [],
        remedy="Pin the batches (pin_memory=True) and copy them with non_blocking=True."
        if from_loader
        else "Copy from a buffer that is pinned once, with non_blocking=True.",
    )


@rule()
def custom_batch_not_pinned(view: ObservationView) -> Judgements:
    loader = main_loader(view)
    if not view.uses_cuda or loader is None or not loader.pin_memory or loader.batch_is_pinnable is not False:
        return
    pageable = [row for row in to_device(view) if row.pinned is False]
    losses = view.losses("pin-memory-off") + ([] if is_pinned(view) else view.losses("h2d-blocking"))
    share = min(1.0, sum(loss.share for loss in losses))
    if not pageable or share < policy.LEAST_SHARE:
        return
    yield Judgement(share=share, losses=losses, evidence=[*_loader_in_words(loader)])


@rule()
def pin_device_arg(view: ObservationView) -> Judgements:
    for loader in view.loaders:
        if loader.pin_memory_device:
            yield Judgement(
                severity="low",
                claim=f"pin_memory_device={loader.pin_memory_device!r} is deprecated; newer torch ignores it.",
                share=Unknown("it costs nothing"),
                where=loader.place,
            )
            return


@rule()
def pin_thread_bound(view: ObservationView) -> Judgements:
    loader = main_loader(view)
    wait = view.attribution.shares.input
    if not view.uses_cuda or loader is None or not loader.pin_memory or wait < policy.LEAST_SHARE:
        return
    pin_s, step_s = required(loader.loading, "what pinning takes").pin_s, view.timing.step_s
    tensors = loader.batch or []
    if pin_s is None or pin_s < policy.PIN_BUSY * step_s:
        return
    yield Judgement(
        claim=f"Pinning a batch takes {pin_s * 1e3:.3g} ms of one thread, in steps of {step_s * 1e3:.3g} ms.",
        share=wait,
        evidence=[f"a batch: {len(tensors)} tensors, {sum(each.num_bytes for each in tensors) / 1e6:.3g} MB"],
        where=loader.place,
    )


@cuda_rule()
def pin_in_hot_loop(view: ObservationView) -> Judgements:
    calls = view.per_step("live.pin_memory_calls") or 0.0
    pinning = calls >= policy.CALLS_PER_STEP
    losses = view.losses("pin-in-hot-loop", *(["pinned-alloc-slow"] if pinning else []))
    share = max(sum(loss.share for loss in losses), view.attribution.counterfactual_savings.get("pin-in-hot-loop", 0.0))
    if not losses or share < policy.LEAST_SHARE:
        return
    loader = main_loader(view)
    place = view.process.live.get("live.pin_memory_place")
    yield Judgement(
        share=share,
        evidence=[*evidence_of(losses), *([f"pin_memory(): {calls:.3g} calls per step"] if pinning else [])],
        where=Place(place) if isinstance(place, str) and place and not place_of(losses).function else place_of(losses),
        candidates=[PIN] if loader is not None and not loader.pin_memory else [],
    )


def _above_bus(view: ObservationView, rows: list[Copies]) -> float:
    """Return the share of the copies' time beyond the time at the bus's full rate; 1 if that rate is not known."""
    generation, width = (view.number_or_none(f"gpu.pcie_max_{what}") for what in ("generation", "width"))
    lane = policy.PCIE_LANE_BYTES_PER_S.get(int(generation or 0))
    measured = [row for row in rows if row.num_bytes and row.total_s]
    if lane is None or not width or not measured:
        return 1.0
    rate = sum(row.num_bytes or 0 for row in measured) / sum(row.total_s for row in measured)
    return max(0.0, 1.0 - rate / (lane * width))


def _loader_in_words(loader: Loader | None) -> list[str]:
    return (
        []
        if loader is None
        else [f"{loader.name.rpartition('.')[2]}(pin_memory={loader.pin_memory}) in {loader.place.function or '?'}"]
    )
