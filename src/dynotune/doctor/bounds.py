"""Bound the saving of a change as a share of an unrecorded step, for rules on kernels, precision and code."""

import re
from collections.abc import Callable, Iterable

from dynotune.doctor import policy
from dynotune.doctor.machine import version
from dynotune.doctor.observation_view import Missing, ObservationView, or_else
from dynotune.schema.attribution import LostTime
from dynotune.schema.diagnosis import SEVERITIES, Severity
from dynotune.schema.facts import Unknown
from dynotune.schema.model import Model
from dynotune.schema.trace_summary import Called, Copies, Operator, Place

_PRODUCTS = "mm addmm bmm baddbmm addmv mv dot convolution mkldnn_convolution linear cudnn_convolution"
PRODUCTS = frozenset(f"aten::{name}" for name in (*_PRODUCTS.split(), "convolution_backward"))
"""Operators that multiply matrices or convolve."""
_LOWERS_CLOCK = re.compile(r"power|thermal|slowdown")


def faster_device_saving(view: ObservationView) -> float:
    """Return what an infinitely fast device would save of an unrecorded step.

    If the device hardly waits for host or loader, this is all of its work, because the speed of the host does
    not show behind a busy device. Otherwise the timeline is replayed without the device's work. Without a
    timeline, a faster device shortens the step at most by the time that the host waits for the device. For a
    program without a device, return the time of its operators, which the host itself runs.
    """
    attribution = view.attribution
    shares = attribution.shares
    if attribution.busy_share is None or shares.host + shares.input <= policy.DEVICE_SETS_PACE:
        return shares.device
    if "device" in attribution.counterfactual_savings:
        return min(shares.device, attribution.counterfactual_savings["device"])
    trace, step_s = view.trace, view.timing.step_s
    if not trace.num_steps or not step_s:
        return shares.device
    rank = trace.devices[0].rank if trace.devices else None
    waited_s = sum(row.total_s for row in trace.syncs if row.rank == rank) / trace.num_steps
    return min(shares.device, waited_s / step_s)


def faster_host_saving(view: ObservationView) -> float:
    """Return what an infinitely fast host would save of an unrecorded step; 1 if there is no timeline to
    replay."""
    return view.attribution.counterfactual_savings.get("host", 1.0)


def saving(view: ObservationView, share: float) -> float:
    """Return the share of a step that is saved without kernels that take `share` of the step."""
    return max(0.0, min(share, faster_device_saving(view)))


def idle_in_doubt(view: ObservationView) -> float:
    """Return the share of an unrecorded step that counts as idle but may be work, as the device's clock was
    lowered.

    A recorded step takes longer and leaves the device idle for longer, so its kernels may have run at a
    higher clock. 0 if that is not known.
    """
    attribution, reasons = view.observation.attribution, view.fact_or_none("window.clock_reasons")
    highest, clock = (view.number_or_none(name) for name in ("gpu.max_sm_clock_mhz", "window.sm_clock_mhz"))
    lowered = isinstance(reasons, list) and any(_LOWERS_CLOCK.search(str(reason)) for reason in reasons)
    if (
        isinstance(attribution, Unknown)
        or attribution.busy_share is None
        or not highest
        or not clock
        or not lowered
    ):
        return 0.0
    return attribution.busy_share * max(0.0, min(highest / clock, attribution.slowed or 1.0) - 1.0)


def bound_of_compiling(view: ObservationView) -> float:
    """Return the most that compiling the model saves of an unrecorded step.

    It saves the device's waits for the host, its pauses between queued kernels, and the work that fusing
    saves. Compiling shortens the host's work, too, so the device's work counts even if the host sets the pace
    now. It does not count if the loader sets the pace.

    Raises Missing: the saving of fusing, or the number of recorded steps, is not known.
    """
    attribution, trace, step_s = view.attribution, view.trace, view.timing.step_s
    fusable_s, shares = view.kernels.fusable_s, attribution.shares
    if fusable_s is None:
        raise Missing("what fusing could spare", "the trace does not tell kernels apart")
    if not trace.num_steps or not step_s:
        raise Missing("steps in the trace", "they are neither marked nor found")
    fused = min(fusable_s / trace.num_steps / step_s, shares.device)
    if shares.input > policy.DEVICE_SETS_PACE:
        fused = saving(view, fused)
    # Pauses before kernels that were queued late are in the host's share; no other share contains the other
    # pauses.
    pauses = min(view.lost("launch-latency"), shares.other)
    return min(1.0, shares.host + pauses + fused)


def is_at(where: Place, *words: str) -> bool:
    """Tell whether the name of the place's operator contains one of these words."""
    return any(word in where.operator.lower() for word in words)


def operators(view: ObservationView, matches: Callable[[str], object]) -> list[Operator]:
    """Return the operators whose name `matches`, among the two hundred of each rank that took most time.

    Operators of several ranks are one row, with their mean number and time in a rank.
    """
    by_name: dict[str, list[Operator]] = {}
    for row in view.trace.operators:
        if matches(row.name):
            by_name.setdefault(row.name, []).append(row)
    ranks = max(1, len(view.trace.hosts))
    return [_of_mean_rank(rows, ranks) if ranks > 1 else rows[0] for rows in by_name.values()]


def _of_mean_rank(rows: list[Operator], ranks: int) -> Operator:
    """Return the rows of one operator, one for each rank that has it, as those of a mean rank."""
    callers = {
        caller: Called(
            num=round(sum(row.callers[caller].num for row in rows if caller in row.callers) / ranks),
            self_s=sum(row.callers[caller].self_s for row in rows if caller in row.callers) / ranks,
        )
        for caller in dict.fromkeys(caller for row in rows for caller in row.callers)
    }
    num, self_s = (sum(getattr(row, name) for row in rows) / ranks for name in ("num", "self_s"))
    return Operator(name=rows[0].name, num=round(num), self_s=self_s, callers=callers)


def operator_share(view: ObservationView, matches: Callable[[str], object]) -> float:
    """Return the share of an unrecorded step without a device that these operators take themselves, without
    their callees."""
    all_s = sum(row.self_s for row in operators(view, lambda name: True))
    own_s = sum(row.self_s for row in operators(view, matches))
    return own_s / all_s * view.attribution.shares.device if all_s else 0.0


def host_share(view: ObservationView, matches: Callable[[str], bool]) -> float:
    """Return the host's own time in these operators as a share of an unrecorded step, at most the device's
    wait for the host.

    Recording slows the host, so the recorded time is an upper bound for an unrecorded step.
    """
    num_steps, step_s = view.trace.num_steps, view.timing.step_s
    if not num_steps or not step_s:
        return view.attribution.shares.host
    own_s = sum(row.self_s for row in operators(view, matches)) / num_steps
    return min(own_s / step_s, view.attribution.shares.host)


def waits_for_host(view: ObservationView) -> float:
    """Return the device's wait for the host as a share of an unrecorded step; without a device, Python
    between operators.

    Python counts at most as long as recorded: recording slows Python, so extra time in an unrecorded step
    came from other programs on the machine.
    """
    attribution = view.attribution
    share = attribution.shares.host
    if attribution.busy_share is not None:
        return share
    num_steps, step_s = view.trace.num_steps, view.timing.step_s
    row = max(view.trace.hosts, key=lambda row: row.window_s, default=None)
    if row is None or not num_steps or not step_s:
        return share
    recorded_s = max(0.0, row.window_s - row.loader_s - row.operator_s - row.communication_s) / num_steps
    return min(share, recorded_s / step_s)


def after_waits(view: ObservationView) -> float:
    """Return the share of an unrecorded step in which the device waits for host work that follows a wait of
    the host.

    The host waited for the device or for a batch. Without that wait it would do this work while the device is
    busy.
    """
    of_copies = behind_pageable_copies(view) or delay_of_device(view, "h2d-blocking")
    return of_copies + sum(delay_of_device(view, cause) for cause in ("sync-per-step", "loader-bound"))


def behind_pageable_copies(view: ObservationView) -> float:
    """Return the share of an unrecorded step that waits for pageable copies cost beyond the idle time right
    after them.

    0 unless all copies to the device read pageable memory. Small copies also delay the queueing of later
    work. The cost is at most the device's wait for the host, without the part due to tensors that are made on
    the host.
    """
    copies = [row for row in view.trace.copies if row.kind == "HtoD"]
    if not copies or any(row.pinned is not False for row in copies):
        return 0.0
    without, made = view.attribution.counterfactual_savings, "create-on-cpu-then-move"
    save = without.get("h2d-blocking", 0.0) - max(without.get(made, 0.0), view.lost(made))
    return max(0.0, min(save - view.lost("h2d-blocking"), view.attribution.shares.host))


def to_device(view: ObservationView) -> list[Copies]:
    """Return the copies to the device of the first recorded rank."""
    copies = [row for row in view.trace.copies if row.kind == "HtoD"]
    return [row for row in copies if row.rank == copies[0].rank]


def is_pinned(view: ObservationView) -> bool:
    """Tell whether at least a quarter of the copies to the device read page-locked memory."""
    rows = to_device(view)
    num = sum(row.num for row in rows if row.pinned)
    return num > 0 and 4 * num >= sum(row.num for row in rows)


def delay_of_device(view: ObservationView, cause: str) -> float:
    """Return the share of an unrecorded step that this cause costs beyond the idle time in which the cause
    was seen.

    0 if the cause did not delay the device: no finding then has such a cost, and the time stays in its old
    share. A wait for a copy of page-locked memory also delays the device later, because its queue is empty
    after the wait.
    """
    lost = view.lost(cause)
    bears = lost or (cause == "h2d-blocking" and is_pinned(view))
    return max(0.0, view.attribution.counterfactual_savings.get(cause, 0.0) - lost) if bears else 0.0


def unless_waited(view: ObservationView, share: float) -> float:
    """Limit a share that was measured on the host to the time that the device waits for host or loader.

    Return the whole share without a device, or if the waits of a step are not known.
    """
    attribution = view.observation.attribution
    if isinstance(attribution, Unknown) or attribution.busy_share is None:
        return share
    shares = attribution.shares
    return min(share, shares.host + shares.input + shares.other)


def goes_backward(view: ObservationView) -> bool:
    """Tell whether gradients are computed: an optimizer stepped, or the trace holds a backward pass."""
    return view.is_training or any(row.name.startswith("autograd::engine") for row in view.trace.operators)


def capability(view: ObservationView) -> tuple[int, int]:
    """Return the compute capability of the device in use, such as (9, 0)."""
    value = view.fact_or_none("live.compute_capability") or view.text("gpu.compute_capability")
    return version(str(value))


def bytes_per_s(view: ObservationView) -> float:
    """Return the lowest bandwidth of the memory that the program works in: the device's, else the host's."""
    if not view.uses_cuda:
        return policy.HOST_BYTES_PER_S
    known = or_else(lambda: capability(view), (0, 0))
    return policy.DEVICE_BYTES_PER_S.get(known, policy.SLOWEST_DEVICE_BYTES_PER_S)


def main_model(view: ObservationView) -> Model | None:
    """Return the outermost module with the most parameters."""
    return view.models[0] if view.models else None


def num_input_shapes(view: ObservationView) -> int:
    """Return the most distinct input shapes of any outermost module; 0 if shapes were not counted."""
    return max(
        (model.call.num_input_shapes or 0 for model in view.models if model.call is not None), default=0
    )


def inputs_grow(view: ObservationView, model: Model) -> bool:
    """Tell whether most calls of a module had longer inputs than the call before.

    In training, batches that are sorted by length grow, too, but not always by the same amount.
    """
    call = model.call
    if call is None or call.num < policy.FEWEST_CALLS or call.num_grown < policy.MOST_CALLS_GROW * call.num:
        return False
    return not view.is_training or (call.growth > 0 and call.growth % call.num_grown == 0)


def place_of(losses: Iterable[LostTime], model: Model | None = None) -> Place:
    """Return the place of the largest loss; without one, the place where the model is called."""
    largest = max(losses, key=lambda loss: loss.share, default=None)
    if largest is not None and largest.where != Place():
        return largest.where
    return model.call.place if model is not None and model.call is not None else Place()


def at_most(severity: Severity, most: Severity) -> Severity:
    """Return the lesser severity."""
    return max(severity, most, key=SEVERITIES.index)


def at_least(severity: Severity, least: Severity) -> Severity:
    """Return the greater severity."""
    return min(severity, least, key=SEVERITIES.index)


def severity_of(share: float | Unknown, otherwise: Severity) -> Severity:
    """Return the severity of a known share; `otherwise` if the share is unknown."""
    return otherwise if isinstance(share, Unknown) else policy.severity(share)
