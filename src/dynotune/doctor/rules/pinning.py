"""Pinning: whether the memory that copies come from is page-locked, and what locking it takes."""

from __future__ import annotations

from collections.abc import Iterator

from dynotune.doctor import policy
from dynotune.doctor.bounds import behind_pageable_copies, beyond
from dynotune.doctor.loaders import main_loader
from dynotune.doctor.observation_view import Missing, Seen, evidence_of
from dynotune.doctor.registry import rule
from dynotune.doctor.rules.transfer import MADE, NO_WAIT, calls_per_step, is_pinned, place_of, to_device
from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import Loader
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import Copies, Place

PIN = Setting("loader.pin_memory", True)


@rule("program")
def pin_memory_off(seen: Seen) -> Iterator[Finding]:
    """Batches go to the device from pageable memory.

    Sees: copies from pageable memory to the device beside which nothing ran, and waits for them.

    Costs: the time of these copies, less what the bus needs at least; and the waits, with the work that is queued late
    for them, since CUDA returns from such a copy only when it has read the memory. Copies of tensors that were made for
    it count for `create-on-cpu-then-move`.

    Wrong when: the machine has no memory to spare that can be locked.
    """
    if not seen.uses_cuda:
        return
    pageable = [row for row in to_device(seen) if row.pinned is False]
    losses = seen.losses("pin-memory-off")
    # Where every copy is of pageable memory, that is also why the host waits for them.
    waits = [] if is_pinned(seen) else seen.losses("h2d-blocking")
    share = sum(loss.share for loss in losses) * _above_bus(seen, pageable) + sum(loss.share for loss in waits)
    share += behind_pageable_copies(seen)
    # Pinning a tensor that is made for the copy takes as long as copying it.
    share -= beyond(seen, MADE)
    if not pageable or share < policy.LEAST_SHARE:
        return
    loader = main_loader(seen)
    from_loader = loader is not None and not loader.pin_memory and loader.batch_is_pinnable is not False
    yield Finding(
        id="pin-memory-off",
        severity=policy.severity(share),
        claim="Data goes to the device from pageable memory, which CUDA copies twice and waits for.",
        share=min(share, 1.0),
        evidence=[*evidence_of([*losses, *waits]), *_loader_in_words(loader)],
        where=place_of([*losses, *waits]),
        candidates=[PIN, NO_WAIT] if from_loader else [],
        remedy="Pin the batches (pin_memory=True) and copy them with non_blocking=True."
        if from_loader
        else "Copy from a buffer that is pinned once, with non_blocking=True.",
    )


@rule("program", explains=["pin-memory-off", "h2d-blocking"])
def custom_batch_not_pinned(seen: Seen) -> Iterator[Finding]:
    """The loader cannot pin its batches.

    Sees: the loader was asked to pin, its batches are of a class that has no `pin_memory` and is no container that
    torch knows, and copies from pageable memory cost time.

    Costs: what these copies cost beside which nothing ran, and the waits for them.

    Wrong when: the batch holds no tensors, and is copied by other means.
    """
    loader = main_loader(seen)
    if not seen.uses_cuda or loader is None or not loader.pin_memory or loader.batch_is_pinnable is not False:
        return
    pageable = [row for row in to_device(seen) if row.pinned is False]
    losses = seen.losses("pin-memory-off") + ([] if is_pinned(seen) else seen.losses("h2d-blocking"))
    share = min(1.0, sum(loss.share for loss in losses))
    if not pageable or share < policy.LEAST_SHARE:
        return
    yield Finding(
        id="custom-batch-not-pinned",
        severity=policy.severity(share),
        claim="The loader pins nothing: its batches are of a class that it does not know how to pin.",
        share=share,
        evidence=[*evidence_of(losses), *_loader_in_words(loader)],
        where=place_of(losses),
        remedy="Give the batch's class a method pin_memory() that pins its tensors and returns the batch.",
    )


@rule("program")
def pin_device_arg(seen: Seen) -> Iterator[Finding]:
    """A loader is given `pin_memory_device`.

    Sees: a DataLoader was built with that argument.

    Costs: nothing: torch ignores it, and warns. It pins for the device in use.

    Wrong when: the program must run on a torch that still needs it.
    """
    for loader in seen.loaders:
        if loader.pin_memory_device:
            yield Finding(
                id="pin-device-arg",
                severity="low",
                claim=f"pin_memory_device={loader.pin_memory_device!r} is deprecated; newer torch ignores it.",
                share=Unknown("it costs nothing"),
                where=loader.place,
                remedy="Leave the argument out.",
            )
            return


@rule("program", explains=["loader-bound"])
def pin_thread_bound(seen: Seen) -> Iterator[Finding]:
    """The one thread that pins batches sets the pace.

    Sees: the program waits for its loader, and the thread that copies batches to page-locked memory works for nearly
    all of a step.

    Costs: at most the wait.

    Wrong when: that thread waits for Python's lock, which the program holds.
    """
    loader = main_loader(seen)
    wait = seen.attribution.shares.input
    if not seen.uses_cuda or loader is None or not loader.pin_memory or wait < policy.LEAST_SHARE:
        return
    if isinstance(loader.loading, Unknown):
        raise Missing("what pinning takes", loader.loading.reason)
    pin_s, step_s = loader.loading.pin_s, seen.timing.step_s
    if pin_s is None or pin_s < policy.PIN_BUSY * step_s:
        return
    yield Finding(
        id="pin-thread-bound",
        severity=policy.severity(wait),
        claim=f"Pinning a batch takes {pin_s * 1e3:.3g} ms of one thread, in steps of {step_s * 1e3:.3g} ms.",
        share=wait,
        evidence=[_batch_in_words(loader)],
        where=loader.place,
        candidates=[Setting("loader.pin_memory", False)],
        remedy="Send smaller types and fewer tensors a batch, or pin in threads of your own.",
    )


@rule("program", explains=["pinned-alloc-slow", "h2d-not-overlapped", "pcie-saturated"])
def pin_in_hot_loop(seen: Seen) -> Iterator[Finding]:
    """Memory is page-locked in every step.

    Sees: the program calls `pin_memory()` on the thread that queues work, while the device has nothing to do.

    Costs: what a step would save without these calls: that idle time, and copies to the device that begin too late for
    other work to run beside them. Pinning copies the tensor once more; that pays only where it happens beside other
    work.

    Wrong when: it is the loader's own thread that pins, which holds nobody up.
    """
    if not seen.uses_cuda:
        return
    calls = calls_per_step(seen, "live.pin_memory_calls")
    pinning = calls >= policy.CALLS_PER_STEP
    losses = seen.losses("pin-in-hot-loop", *(["pinned-alloc-slow"] if pinning else []))
    share = max(sum(loss.share for loss in losses), seen.attribution.counterfactual_savings.get("pin-in-hot-loop", 0.0))
    if not losses or share < policy.LEAST_SHARE:
        return
    loader = main_loader(seen)
    place = seen.process.live.get("live.pin_memory_place")
    yield Finding(
        id="pin-in-hot-loop",
        severity=policy.severity(share),
        claim="Each step page-locks memory while the device waits.",
        share=share,
        evidence=[*evidence_of(losses), *([f"pin_memory(): {calls:.3g} calls a step"] if pinning else [])],
        where=Place(place) if isinstance(place, str) and place and not place_of(losses).function else place_of(losses),
        candidates=[PIN] if loader is not None and not loader.pin_memory else [],
        remedy="Let the loader pin its batches, or fill one buffer that was pinned once.",
    )


def _above_bus(seen: Seen, rows: list[Copies]) -> float:
    """Of the copies' time the part beyond what the bus needs at its full rate; all where that is not known."""
    try:
        generation, width = seen.number("gpu.pcie_max_generation"), seen.number("gpu.pcie_max_width")
    except Missing:
        return 1.0
    lane = policy.PCIE_LANE_BYTES_PER_S.get(int(generation))
    known = [row for row in rows if row.num_bytes and row.total_s]
    if lane is None or not width or not known:
        return 1.0
    rate = sum(row.num_bytes or 0 for row in known) / sum(row.total_s for row in known)
    return max(0.0, 1.0 - rate / (lane * width))


def _loader_in_words(loader: Loader | None) -> list[str]:
    return (
        []
        if loader is None
        else [f"{loader.name.rpartition('.')[2]}(pin_memory={loader.pin_memory}) in {loader.place.function or '?'}"]
    )


def _batch_in_words(loader: Loader) -> str:
    tensors = loader.batch or []
    return f"a batch: {len(tensors)} tensors, {sum(each.num_bytes for each in tensors) / 1e6:.3g} MB"
