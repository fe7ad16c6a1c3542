"""What a change can save of a plain step at most: arithmetic that rules on kernels, precision and code share."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dynotune.doctor import policy
from dynotune.doctor.machine import known
from dynotune.doctor.observation_view import Missing, Seen
from dynotune.schema.diagnosis import Severity
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import LostTime, Model
from dynotune.schema.trace_summary import Operator, Place

_PRODUCTS = "mm addmm bmm baddbmm addmv mv dot convolution mkldnn_convolution linear cudnn_convolution"
PRODUCTS = frozenset(f"aten::{name}" for name in (*_PRODUCTS.split(), "convolution_backward"))
"""Operators that multiply matrices or convolve."""
_SEVERITIES: tuple[Severity, ...] = ("low", "medium", "high")


# The device


def of_faster_device(seen: Seen) -> float:
    """Of a plain step, what a device without work to do would save.

    Where the device hardly waits for host or loader, all of its work is. Where it waits, host or loader set the pace,
    and a faster device shortens the step by no more than the host waits for the device in turn: without such waits by
    nothing. Of a program without a device: the time of its operators, which the host itself runs.
    """
    attribution = seen.attribution
    shares = attribution.shares
    if attribution.busy_share is None or shares.host + shares.input <= policy.DEVICE_SETS_PACE:
        return shares.device
    trace, step_s = seen.trace, seen.timing.step_s
    if not trace.num_steps or not step_s:
        return shares.device
    rank = trace.devices[0].rank if trace.devices else None
    waited_s = sum(row.total_s for row in trace.syncs if row.rank == rank) / trace.num_steps
    return min(shares.device, waited_s / step_s)


def saved(seen: Seen, share: float) -> float:
    """The part of `share`, which kernels take, that a step gets shorter by without them."""
    return max(0.0, min(share, of_faster_device(seen)))


def of_compiling(seen: Seen) -> float:
    """Of a plain step, what compiling the model can save at most.

    All that the device waits for the host, what it pauses between queued kernels, and what fusing spares of its work.
    It shortens the host's work and the device's alike, so the latter counts though the host sets the pace now; not
    where the loader does.

    Raises:
        Missing: what fusing could spare is not known, or how many steps were recorded.
    """
    attribution, trace, step_s = seen.attribution, seen.trace, seen.timing.step_s
    fusable_s, shares = seen.kernels.fusable_s, attribution.shares
    if fusable_s is None:
        raise Missing("what fusing could spare", "the trace does not tell kernels apart")
    if not trace.num_steps or not step_s:
        raise Missing("steps in the trace", "they are neither marked nor found")
    fused = min(fusable_s / trace.num_steps / step_s, shares.device)
    if shares.input > policy.DEVICE_SETS_PACE:
        fused = saved(seen, fused)
    # Of pauses, those of kernels that were queued late are in the host's share; the others are in no other part.
    pauses = min(seen.lost("launch-latency"), shares.other)
    return min(1.0, shares.host + pauses + fused)


def lost_elsewhere(losses: Iterable[LostTime], *operators: str) -> float:
    """Sum of the losses whose operator has none of these words in its name."""
    return sum(loss.share for loss in losses if not is_at(loss.where, *operators))


def is_at(where: Place, *words: str) -> bool:
    """Whether the place's operator has one of these words in its name."""
    return any(word in where.operator.lower() for word in words)


# Operators on the host


def operators(seen: Seen, matches: Callable[[str], object]) -> list[Operator]:
    """Those that were recorded and whose name `matches`; the two hundred that took most time are known."""
    return [row for row in seen.trace.operators if matches(row.name)]


def operators_per_step(seen: Seen, matches: Callable[[str], object]) -> float:
    """How many of these operators a step calls.

    Raises:
        Missing: the recorded steps were not counted.
    """
    num_steps = seen.trace.num_steps
    if not num_steps:
        raise Missing("steps in the trace", "they are neither marked nor found")
    return sum(row.num for row in operators(seen, matches)) / num_steps


def operator_share(seen: Seen, matches: Callable[[str], object]) -> float:
    """Of a plain step of a program without a device, the time inside these operators themselves."""
    all_s = sum(row.self_s for row in seen.trace.operators)
    own_s = sum(row.self_s for row in operators(seen, matches))
    return own_s / all_s * seen.attribution.shares.device if all_s else 0.0


def host_share(seen: Seen, matches: Callable[[str], bool]) -> float:
    """Of a plain step, the host's own time in these operators, at most what the device waits for the host.

    Recording slows the host: its time there is no less than in a plain step.
    """
    num_steps, step_s = seen.trace.num_steps, seen.timing.step_s
    if not num_steps or not step_s:
        return seen.attribution.shares.host
    own_s = sum(row.self_s for row in operators(seen, matches)) / num_steps
    return min(own_s / step_s, seen.attribution.shares.host)


def waits_for_host(seen: Seen) -> float:
    """Of a plain step, what the device waits for the host; without a device, Python between operators.

    Of the latter no more than was recorded: recording slows Python, and a plain step that is longer by more was held
    up by others on the machine.
    """
    attribution = seen.attribution
    share = attribution.shares.host
    if attribution.busy_share is not None:
        return share
    num_steps, step_s = seen.trace.num_steps, seen.timing.step_s
    row = max(seen.trace.hosts, key=lambda row: row.window_s, default=None)
    if row is None or not num_steps or not step_s:
        return share
    recorded_s = max(0.0, row.window_s - row.loader_s - row.operator_s - row.communication_s) / num_steps
    return min(share, recorded_s / step_s)


def after_waits(seen: Seen) -> float:
    """Of a plain step, work of the host that the device waits for only because the host had waited: for the device, or
    for a batch. Without the wait it would be done while the device is busy.
    """
    of_copies = behind_pageable_copies(seen) or beyond(seen, "h2d-blocking")
    return of_copies + sum(beyond(seen, cause) for cause in ("sync-per-step", "loader-bound"))


def behind_pageable_copies(seen: Seen) -> float:
    """Of a plain step, what it would save if the host did not wait for copies to the device, all of which read pageable
    memory, beyond the idle time right after such waits: work is queued late for small copies, too.

    No more than the device waits for the host, and nothing that is due to tensors which are made on the host.
    """
    copies = [row for row in seen.trace.copies if row.kind == "HtoD"]
    if not copies or any(row.pinned is not False for row in copies):
        return 0.0
    without, made = seen.attribution.counterfactual_savings, "create-on-cpu-then-move"
    save = without.get("h2d-blocking", 0.0) - max(without.get(made, 0.0), seen.lost(made))
    return max(0.0, min(save - seen.lost("h2d-blocking"), seen.attribution.shares.host))


def beyond(seen: Seen, cause: str) -> float:
    """Of a plain step, what it would save without this cause, beyond the idle time in which that was seen.

    0 where it was not seen to hold the device up: then no finding bears that cost, and it stays where it is.
    """
    lost = seen.lost(cause)
    return max(0.0, seen.attribution.counterfactual_savings.get(cause, 0.0) - lost) if lost else 0.0


def unless_waited(seen: Seen, share: float) -> float:
    """At most what the device waits for host or loader, of a share that was measured on the host alone.

    Without a device, and where it is not known what a step waits for, all of it.
    """
    attribution = seen.observation.attribution
    if isinstance(attribution, Unknown) or attribution.busy_share is None:
        return share
    shares = attribution.shares
    return min(share, shares.host + shares.input + shares.other)


def goes_backward(seen: Seen) -> bool:
    """Whether gradients are computed: an optimizer stepped, or the trace holds a backward pass."""
    return seen.is_training or any(row.name.startswith("autograd::engine") for row in seen.trace.operators)


# What is known


def capability(seen: Seen) -> tuple[int, int]:
    """Compute capability of the device in use, (9, 0)."""
    value = known(seen, "live.compute_capability") or seen.text("gpu.compute_capability")
    return version(str(value))


def bytes_per_s(seen: Seen) -> float:
    """What the memory that the program works in moves at least: of the device, else of the host."""
    if not seen.uses_cuda:
        return policy.HOST_BYTES_PER_S
    try:
        return policy.DEVICE_BYTES_PER_S.get(capability(seen), policy.SLOWEST_DEVICE_BYTES_PER_S)
    except Missing:
        return policy.SLOWEST_DEVICE_BYTES_PER_S


def version(text: str) -> tuple[int, int]:
    """Major and minor: `2.11.0+cu130` is (2, 11).

    Raises:
        Missing: it is no version.
    """
    parts = text.split("+")[0].split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (ValueError, IndexError):
        raise Missing("a version", f"{text!r} is none") from None


def main_model(seen: Seen) -> Model | None:
    """The first of the outermost modules, which has most parameters."""
    return seen.models[0] if seen.models else None


def num_input_shapes(seen: Seen) -> int:
    """Most distinct input shapes of an outermost module; 0 where they were not followed."""
    return max((model.call.num_input_shapes or 0 for model in seen.models if model.call is not None), default=0)


def place_of(losses: Iterable[LostTime], model: Model | None = None) -> Place:
    """Where most is lost; else where the model is called."""
    largest = max(losses, key=lambda loss: loss.share, default=None)
    if largest is not None and largest.where != Place():
        return largest.where
    return model.call.place if model is not None and model.call is not None else Place()


def at_most(severity: Severity, most: Severity) -> Severity:
    """The lesser of both."""
    return min(severity, most, key=_SEVERITIES.index)


def at_least(severity: Severity, least: Severity) -> Severity:
    """The greater of both."""
    return max(severity, least, key=_SEVERITIES.index)


def severity_of(share: float | Unknown, otherwise: Severity) -> Severity:
    """By the share; `otherwise` where nothing bounds it."""
    return otherwise if isinstance(share, Unknown) else policy.severity(share)
