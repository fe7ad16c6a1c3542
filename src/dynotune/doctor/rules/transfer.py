"""Transfer: copies between host and device, waits for them, and page-locked memory as their source."""

import re
from collections.abc import Iterable

from dynotune.doctor import bounds, policy
from dynotune.doctor.declaration import Judgement, Judgements, cuda_rule, rule
from dynotune.doctor.hot_lines import Seen, known, of_python, place, told
from dynotune.doctor.loaders import main_loader
from dynotune.doctor.observation_view import Missing, ObservationView, evidence_of, required
from dynotune.schema.attribution import LostTime
from dynotune.schema.facts import Unknown
from dynotune.schema.loader import Loader
from dynotune.schema.setting import Setting
from dynotune.schema.tensor import Tensor
from dynotune.schema.trace_summary import MANY_SMALL_COPIES, SMALL_COPY_BYTES, Copies, Place

PIN = Setting("loader.pin_memory", True)
NO_WAIT = Setting("transfer.non_blocking", True)
MADE = "create-on-cpu-then-move"
_RANDOM = re.compile(r"aten::(normal|uniform|random|bernoulli|exponential|randperm|multinomial)_?$")
_RANDOM_BY_TEXT = re.compile(r"\b(rand|randn|randint|randperm|normal|bernoulli|multinomial)(_like)?_?\(")


@cuda_rule(family="transfer")
def h2d_blocking(view: ObservationView) -> Judgements:
    losses = view.losses("h2d-blocking")
    without = view.attribution.counterfactual_savings.get("h2d-blocking", 0.0)
    share = max(sum(loss.share for loss in losses), without) - bounds.delay_of_device(view, MADE)
    if share < policy.LEAST_SHARE or not bounds.is_pinned(view):
        return
    # The copies that the host waited for are known, even if the wait left no idle time of its own.
    losses = losses or view.losses("h2d-not-overlapped")
    yield Judgement(share=share, losses=losses)


@cuda_rule(family="transfer")
def h2d_not_overlapped(view: ObservationView) -> Judgements:
    losses = view.losses("h2d-not-overlapped")
    lost = sum(loss.share for loss in losses)
    share = min(lost, 1.0 - lost)
    yield Judgement(
        claim=f"The device only receives data for {lost:.0%} of a step.", share=share, losses=losses
    )


@cuda_rule(family="transfer")
def transfer_float(view: ObservationView) -> Judgements:
    losses = view.losses("pin-memory-off", "h2d-not-overlapped")
    lost = sum(loss.share for loss in losses)
    if lost < policy.LEAST_SHARE:
        return
    images, distinct = _float_images(view)
    if images is None or (distinct is not None and distinct > policy.IMAGE_VALUES):
        return
    item_bytes = 8 if images.dtype.endswith("float64") else 4
    share = lost * (1 - 1 / item_bytes) * min(1.0, images.num_bytes / max(1.0, _bytes_per_step(view)))
    converting = _converting(view, images, bounds.place_of(losses))
    share = min(1.0, share + sum(loss.share for loss in converting))
    yield Judgement(
        claim=(
            f"Images are sent as {images.dtype.removeprefix('torch.')}: {item_bytes} times the pixels' bytes."
        ),
        share=share,
        evidence=[
            f"{images.shape} {images.dtype}, {images.num_bytes / 1e6:.3g} MB a batch",
            *([f"{distinct} distinct values in 4,096"] if distinct is not None else []),
            *evidence_of(losses, 1),
            *evidence_of(converting, 1),
        ],
        where=bounds.place_of(losses),
    )


def _float_images(view: ObservationView) -> tuple[Tensor | None, int | None]:
    """Return the largest float images that are copied to the device, and their number of distinct values."""
    loader = main_loader(view)
    if loader is not None and loader.batch is None:
        raise Missing("a batch of the loader", "no batch was looked at")
    own = [] if loader is None else [each for each in loader.batch or () if each.device == "cpu"]
    if loader is not None and any(map(_is_float_image, own)):
        distinct = None if isinstance(loader.loading, Unknown) else loader.loading.num_distinct
        return _largest_image(own), distinct
    if _is_about(sum(each.num_bytes for each in own), _bytes_per_step(view)):
        return None, None
    # The program itself may convert its inputs to floats before the copy.
    inputs = [each for model in view.models if model.call is not None for each in model.call.inputs]
    copied = [
        *(row.median_bytes for row in bounds.to_device(view) if row.median_bytes),
        _bytes_per_step(view),
    ]
    return _largest_image(
        each for each in inputs if any(_is_about(each.num_bytes, size) for size in copied)
    ), None


def _converting(view: ObservationView, images: Tensor, copied: Place) -> list[LostTime]:
    """Return the host's work in the function that copies, if the loader gave that function these images as
    bytes."""
    loader = main_loader(view)
    batch = loader.batch or () if loader is not None else ()
    if not any(each.dtype.endswith("uint8") and sorted(each.shape) == sorted(images.shape) for each in batch):
        return []
    return [loss for loss in view.losses("host-bound") if loss.where.function == copied.function]


def _largest_image(tensors: Iterable[Tensor]) -> Tensor | None:
    return max(filter(_is_float_image, tensors), key=lambda each: each.num_bytes, default=None)


def _is_about(num_bytes: int, size: float) -> bool:
    return size > 0 and abs(num_bytes / size - 1) < policy.SAME_SIZE


def _is_float_image(tensor: Tensor) -> bool:
    shape = tensor.shape
    if len(shape) not in (4, 5) or not tensor.dtype.endswith(("float32", "float64")):
        return False
    channels_first = shape[-3] in (1, 3, 4) and min(shape[-2:]) >= policy.IMAGE_SIDE
    channels_last = shape[-1] in (1, 3, 4) and min(shape[-3:-1]) >= policy.IMAGE_SIDE
    return channels_first or channels_last


@cuda_rule(family="transfer")
def many_small_copies(view: ObservationView) -> Judgements:
    num_steps = view.trace.num_steps or 0
    small = [
        row for row in bounds.to_device(view) if (row.median_bytes or SMALL_COPY_BYTES) < SMALL_COPY_BYTES
    ]
    if not num_steps or sum(row.num for row in small) <= MANY_SMALL_COPIES * num_steps:
        return
    losses = view.losses("many-small-copies", "h2d-blocking")
    # A small copy that runs alone also counts as a copy of its kind of memory: its cost is the larger of the
    # two.
    own = view.lost("many-small-copies")
    share = min(1.0, max(own, view.lost("pin-memory-off", "h2d-not-overlapped")) + view.lost("h2d-blocking"))
    num = sum(row.num for row in small) / num_steps
    yield Judgement(
        claim=f"{num:,.0f} small copies a step go to the device, and each costs a call.",
        share=share,
        losses=losses,
    )


@cuda_rule(family="transfer")
def create_on_cpu_then_move(view: ObservationView) -> Judgements:
    losses = view.losses(MADE)
    made = max(sum(loss.share for loss in losses), view.attribution.counterfactual_savings.get(MADE, 0.0))
    drawn = _drawing(view) if bounds.to_device(view) else 0.0
    share = max(made if losses else 0.0, drawn)
    lines = known(_drawing_lines, view) if drawn > made or not losses else []
    yield Judgement(
        share=share,
        evidence=[*told(lines), *evidence_of(losses)],
        where=place(lines, bounds.place_of(losses)),
    )


def _drawing_lines(view: ObservationView) -> list[Seen]:
    return of_python(view, lambda line: not line.callee and _RANDOM_BY_TEXT.search(line.text) is not None)


def _drawing(view: ObservationView) -> float:
    """Return the host's own time in the program's random operators, as a share of an unrecorded step; on a
    device, these only queue a kernel.
    """
    rows = [
        row for row in bounds.operators(view, _RANDOM.match) if row.callers.keys() & {"program", "unknown"}
    ]
    return bounds.host_share(view, {row.name for row in rows}.__contains__)


def _bytes_per_step(view: ObservationView) -> float:
    return sum(row.num_bytes or 0 for row in bounds.to_device(view)) / (view.trace.num_steps or 1)


@cuda_rule(family="transfer")
def pin_memory_off(view: ObservationView) -> Judgements:
    pageable = [row for row in bounds.to_device(view) if row.pinned is False]
    losses = view.losses("pin-memory-off")
    # If every copy is of pageable memory, the host also waits for that reason.
    waits = [] if bounds.is_pinned(view) else view.losses("h2d-blocking")
    share = sum(loss.share for loss in losses) * _above_bus(view, pageable) + sum(
        loss.share for loss in waits
    )
    share += bounds.behind_pageable_copies(view)
    # Pinning a tensor that is made only for the copy takes as long as the copy.
    share -= bounds.delay_of_device(view, MADE)
    if not pageable or share < policy.LEAST_SHARE:
        return
    loader = main_loader(view)
    from_loader = loader is not None and not loader.pin_memory and loader.batch_is_pinnable is not False
    yield Judgement(
        share=min(share, 1.0),
        evidence=[*evidence_of([*losses, *waits]), *_loader_in_words(loader)],
        where=bounds.place_of([*losses, *waits]),
        candidates=[PIN, NO_WAIT] if from_loader else [],
        remedy="Pin the batches (pin_memory=True) and copy them with non_blocking=True."
        if from_loader
        else "Copy from a buffer that is pinned once, with non_blocking=True.",
    )


@rule(family="transfer")
def custom_batch_not_pinned(view: ObservationView) -> Judgements:
    loader = main_loader(view)
    if not view.uses_cuda or loader is None or not loader.pin_memory or loader.batch_is_pinnable is not False:
        return
    pageable = [row for row in bounds.to_device(view) if row.pinned is False]
    losses = view.losses("pin-memory-off") + ([] if bounds.is_pinned(view) else view.losses("h2d-blocking"))
    share = min(1.0, sum(loss.share for loss in losses))
    if not pageable or share < policy.LEAST_SHARE:
        return
    yield Judgement(share=share, losses=losses, evidence=[*_loader_in_words(loader)])


@rule(family="transfer")
def pin_device_arg(view: ObservationView) -> Judgements:
    for loader in view.loaders:
        if loader.pin_memory_device:
            yield Judgement(
                severity="low",
                claim=(
                    f"pin_memory_device={loader.pin_memory_device!r} is deprecated; newer torch ignores it."
                ),
                share=Unknown("it costs nothing"),
                where=loader.place,
            )
            return


@rule(family="transfer")
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


@cuda_rule(family="transfer")
def pin_in_hot_loop(view: ObservationView) -> Judgements:
    calls = view.per_step("live.pin_memory_calls") or 0.0
    pinning = calls >= policy.CALLS_PER_STEP
    losses = view.losses("pin-in-hot-loop", *(["pinned-alloc-slow"] if pinning else []))
    share = max(
        sum(loss.share for loss in losses),
        view.attribution.counterfactual_savings.get("pin-in-hot-loop", 0.0),
    )
    if not losses or share < policy.LEAST_SHARE:
        return
    loader = main_loader(view)
    where, named = bounds.place_of(losses), view.process.live.get("live.pin_memory_place")
    yield Judgement(
        share=share,
        evidence=[*evidence_of(losses), *([f"pin_memory(): {calls:.3g} calls per step"] if pinning else [])],
        where=Place(named) if isinstance(named, str) and named and not where.function else where,
        candidates=[PIN] if loader is not None and not loader.pin_memory else [],
    )


def _above_bus(view: ObservationView, rows: list[Copies]) -> float:
    """Return the share of the copies' time beyond the time at the bus's full rate; 1 if that rate is not
    known."""
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
        else [
            (
                f"{loader.name.rpartition('.')[2]}(pin_memory={loader.pin_memory}) in "
                f"{loader.place.function or '?'}"
            )
        ]
    )
