"""Transfer: copies between host and device, and what they wait for."""

from __future__ import annotations

from collections.abc import Iterator

from dynotune.doctor import policy
from dynotune.doctor.bounds import beyond
from dynotune.doctor.loaders import main_loader
from dynotune.doctor.observation_view import Missing, Seen, evidence_of
from dynotune.doctor.registry import rule
from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import LostTime, Tensor
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import Copies, Place

NO_WAIT = Setting("transfer.non_blocking", True)
MADE = "create-on-cpu-then-move"


@rule("program")
def h2d_blocking(seen: Seen) -> Iterator[Finding]:
    """The host waits for each copy to the device.

    Sees: synchronisations that ended with a copy of page-locked memory, after which the device had nothing to do until
    the host had queued more.

    Costs: what a step would save if the host did not wait: with `non_blocking=True` it would have queued the next work
    meanwhile. Copies of tensors that were made for it count for `create-on-cpu-then-move`.

    Wrong when: the program refills the buffer right after the copy, which must then be waited for.
    """
    if not seen.uses_cuda:
        return
    losses = seen.losses("h2d-blocking")
    without = seen.attribution.counterfactual_savings.get("h2d-blocking", 0.0)
    share = max(sum(loss.share for loss in losses), without) - beyond(seen, MADE)
    if not losses or share < policy.LEAST_SHARE or not is_pinned(seen):
        return
    yield Finding(
        id="h2d-blocking",
        severity=policy.severity(share),
        claim="The host waits for copies to the device, and the device then waits for the host.",
        share=share,
        evidence=evidence_of(losses),
        where=place_of(losses),
        candidates=[NO_WAIT],
        remedy="Copy with non_blocking=True.",
    )


@rule("program", explains=["pcie-saturated"])
def h2d_not_overlapped(seen: Seen) -> Iterator[Finding]:
    """Copies to the device run while nothing else does.

    Sees: copies of page-locked memory to the device beside which nothing ran.

    Costs: their time, at most as much as the rest of the step has to hide them under.

    Wrong when: the device's memory has no room for a second batch.
    """
    if not seen.uses_cuda:
        return
    losses = seen.losses("h2d-not-overlapped")
    lost = sum(loss.share for loss in losses)
    share = min(lost, 1.0 - lost)
    if share < policy.LEAST_SHARE:
        return
    yield Finding(
        id="h2d-not-overlapped",
        severity=policy.severity(share),
        claim=f"For {lost:.0%} of a step the device only receives data.",
        share=share,
        evidence=evidence_of(losses),
        where=place_of(losses),
        remedy="Copy the next batch on a stream of its own beside the current one (wait_stream, record_stream).",
    )


@rule("program", explains=["h2d-not-overlapped", "pcie-saturated"])
def transfer_float(seen: Seen) -> Iterator[Finding]:
    """Images go to the device as floats.

    Sees: the largest tensor of a batch holds images in float32 or float64 whose values can have been bytes, and
    copies to the device cost time. Where no loader tells the batch, a model whose input is such images, of as many
    bytes as a copy has.

    Costs: of that time the part that the same images as bytes would not need: three quarters, or seven eighths.

    Wrong when: the values were computed on the host, and are no longer those of pixels.
    """
    if not seen.uses_cuda:
        return
    losses = seen.losses("pin-memory-off", "h2d-not-overlapped")
    lost = sum(loss.share for loss in losses)
    if lost < policy.LEAST_SHARE:
        return
    images, distinct = _float_images(seen)
    if images is None or (distinct is not None and distinct > policy.IMAGE_VALUES):
        return
    item_bytes = 8 if images.dtype.endswith("float64") else 4
    share = lost * (1 - 1 / item_bytes) * min(1.0, images.num_bytes / max(1.0, _bytes_per_step(seen)))
    if share < policy.LEAST_SHARE:
        return
    yield Finding(
        id="transfer-float",
        severity=policy.severity(share),
        claim=f"Images are sent as {images.dtype.removeprefix('torch.')}: {item_bytes} times the pixels' bytes.",
        share=share,
        evidence=[
            f"{images.shape} {images.dtype}, {images.num_bytes / 1e6:.3g} MB a batch",
            *([f"{distinct} distinct values in 4,096"] if distinct is not None else []),
            *evidence_of(losses, 1),
        ],
        where=place_of(losses),
        remedy="Send them as uint8, and convert and normalise on the device.",
    )


def _float_images(seen: Seen) -> tuple[Tensor | None, int | None]:
    """The largest images in float that are copied to the device, and how many distinct values some of them have."""
    loader = main_loader(seen)
    if loader is None:
        inputs = [each for model in seen.models if model.call is not None for each in model.call.inputs]
        copied = [row.median_bytes for row in to_device(seen) if row.median_bytes]
        batch = [each for each in inputs if any(abs(each.num_bytes / size - 1) < policy.SAME_SIZE for size in copied)]
        distinct = None
    elif loader.batch is None:
        raise Missing("a batch of the loader", "none was looked at")
    else:
        batch = [each for each in loader.batch if each.device == "cpu"]
        distinct = None if isinstance(loader.loading, Unknown) else loader.loading.num_distinct
    return max(filter(_is_float_image, batch), key=lambda each: each.num_bytes, default=None), distinct


def _is_float_image(tensor: Tensor) -> bool:
    shape = tensor.shape
    if len(shape) not in (4, 5) or not tensor.dtype.endswith(("float32", "float64")):
        return False
    channels_first = shape[-3] in (1, 3, 4) and min(shape[-2:]) >= policy.IMAGE_SIDE
    channels_last = shape[-1] in (1, 3, 4) and min(shape[-3:-1]) >= policy.IMAGE_SIDE
    return channels_first or channels_last


@rule("program", explains=["h2d-blocking", "pin-memory-off", "h2d-not-overlapped"])
def many_small_copies(seen: Seen) -> Iterator[Finding]:
    """Data goes to the device in many small pieces.

    Sees: more than a hundred copies a step to the device, most of less than 64 KiB.

    Costs: their own time, and that in which the device waits for the host to queue the next one.

    Wrong when: the pieces come one by one, at their own time.
    """
    if not seen.uses_cuda:
        return
    num_steps = seen.trace.num_steps or 0
    small = [row for row in to_device(seen) if (row.median_bytes or policy.SMALL_COPY_BYTES) < policy.SMALL_COPY_BYTES]
    if not num_steps or sum(row.num for row in small) <= policy.MANY_SMALL_COPIES * num_steps:
        return
    losses = seen.losses("many-small-copies", "h2d-blocking")
    # A small copy that runs alone also counts for its kind of memory: the larger of both is what it costs.
    own = seen.lost("many-small-copies")
    share = min(1.0, max(own, seen.lost("pin-memory-off", "h2d-not-overlapped")) + seen.lost("h2d-blocking"))
    if share < policy.LEAST_SHARE:
        return
    num = sum(row.num for row in small) / num_steps
    yield Finding(
        id="many-small-copies",
        severity=policy.severity(share),
        claim=f"{num:,.0f} small copies a step go to the device, each with the cost of a call.",
        share=share,
        evidence=evidence_of(losses),
        where=place_of(losses),
        remedy="Pack them into one tensor on the host, copy that once, and take views of it on the device.",
    )


@rule("program")
def create_on_cpu_then_move(seen: Seen) -> Iterator[Finding]:
    """Tensors are made on the host, then copied to the device.

    Sees: operators that fill a new tensor on the host (`torch.randn`, `torch.zeros`, `torch.tensor` of a list),
    directly followed by its copy to the device, while the device had nothing to do.

    Costs: what a step would save without making, copying and waiting for these copies.

    Wrong when: the random numbers must be those of the host's generator.
    """
    if not seen.uses_cuda:
        return
    losses = seen.losses(MADE)
    share = max(sum(loss.share for loss in losses), seen.attribution.counterfactual_savings.get(MADE, 0.0))
    if not losses or share < policy.LEAST_SHARE:
        return
    yield Finding(
        id="create-on-cpu-then-move",
        severity=policy.severity(share),
        claim="Tensors are made on the host and then copied, while the device waits.",
        share=share,
        evidence=evidence_of(losses),
        where=place_of(losses),
        remedy="Make them where they are used: pass device= to the function that makes them.",
    )


# What the rules share


def calls_per_step(seen: Seen, name: str) -> float:
    """A count within the window, a step; 0 where it is not known."""
    try:
        return seen.number(name) / max(1, seen.timing.num_steps)
    except Missing:
        return 0.0


def to_device(seen: Seen) -> list[Copies]:
    """Copies of the first rank that was recorded."""
    copies = [row for row in seen.trace.copies if row.kind == "HtoD"]
    return [row for row in copies if row.rank == copies[0].rank]


def is_pinned(seen: Seen) -> bool:
    """Whether a good part of the copies to the device is of page-locked memory."""
    rows = to_device(seen)
    num = sum(row.num for row in rows if row.pinned)
    return num > 0 and 4 * num >= sum(row.num for row in rows)


def _bytes_per_step(seen: Seen) -> float:
    return sum(row.num_bytes or 0 for row in to_device(seen)) / (seen.trace.num_steps or 1)


def place_of(losses: list[LostTime]) -> Place:
    return max(losses, key=lambda loss: loss.share).where if losses else Place()
