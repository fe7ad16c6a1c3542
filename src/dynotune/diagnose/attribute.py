"""Attribute an unrecorded step to parts, and state the most that each cause in the trace can cost of it.

docs/reference/diagnosis.md defines this. `step_parts` rescales the recorded step to the plain one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dynotune.diagnose.step_parts import Parts, parts_of, plain_parts, without_first_gap
from dynotune.schema.attribution import Attribution, LostTime, Shares
from dynotune.schema.causes import CAUSES, KnownCause
from dynotune.schema.facts import Unknown
from dynotune.schema.timing import Timing
from dynotune.schema.trace_summary import Cause, Copies, DeviceTime, HostTime, TraceSummary
from dynotune.text import words

NOTED_SHORTER = 0.05
"""Relative difference between an unrecorded step and the recorded parts from which on the diagnosis has a
note on it."""
NOTED_SLOWER = 0.2
"""Relative slowdown of recorded steps from which on there is a note; the host's work is then less certain."""

IMBALANCE = "rank-imbalance"

_NOT_KNOWN = KnownCause(lost="work", words="")
"""What stands for a cause of another version: it belongs to the device's computation."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    """One recorded step, in seconds. `device` and `host` are its rows in the trace; None if there is no such
    row."""

    step_s: float
    num_steps: float
    device: DeviceTime | None
    host: HostTime | None

    def is_of(self, rank: int | None) -> bool:
        return self.device is None or self.device.rank == rank


def attribute(
    timing: Timing,
    trace: TraceSummary,
    *,
    uses_device: bool | None = None,
    slowed: float | None = None,
    garbage_s: float = 0.0,
    without: Mapping[str, float] | None = None,
) -> Attribution | Unknown:
    """Split a step of the plain window into parts, and return the most that each cause in the trace can cost
    of it.

    Args:
        uses_device: whether the program is known to use a device; if so, a trace without device work is
            useless.
        slowed: recorded over unrecorded step time, if the trace was already rescaled to the unrecorded step.
        garbage_s: seconds of an unrecorded step that garbage collection takes.
        without: for each cause, the seconds that a step of the trace would save without that cause.

    Returns:
        Unknown if the trace has no work, has no steps, or lacks the device's work.
    """
    recorded = _recorded(trace)
    if isinstance(recorded, Unknown):
        return recorded
    if timing.step_s <= 0:
        return Unknown("the plain window's step has no length")
    slowed = slowed or recorded.step_s / timing.step_s
    if recorded.device is not None:
        seen, plain = _on_device(timing, recorded, recorded.device, garbage_s)
    elif uses_device:
        return Unknown("the profiler recorded no device work, though the program uses a device")
    elif recorded.host is None:
        return Unknown("the trace does not show what the host did")
    else:
        seen, plain = _on_host(timing, recorded, recorded.host, garbage_s)
    to_host, between = _exposed_shares([row for row in trace.copies if recorded.is_of(row.rank)])
    behind_copy = _behind_copies(trace, seen, recorded)
    parts = {
        "input": plain.loader,
        "transfer": plain.copy * to_host + plain.sync * behind_copy,
        "host": plain.host + plain.late + plain.garbage + plain.sync * (1 - behind_copy),
        # The two shares may sum to a little more than 1 because of rounding.
        "device": plain.compute + plain.copy * max(0.0, 1 - to_host - between),
        "communication": plain.communication + plain.copy * between,
        "other": plain.queued + plain.other + plain.unseen,
    }
    fits = min(1.0, recorded.step_s / timing.step_s)
    total = sum(parts.values())  # the step, up to rounding
    losses = [_loss(cause, seen, plain, trace, recorded, timing.step_s) for cause in trace.causes]
    return Attribution(
        shares=Shares(**{name: part / total for name, part in parts.items()}),
        lost_time=sorted(
            (loss for loss in losses if loss.share > 0), key=lambda loss: (-loss.share, loss.id)
        ),
        busy_share=None if recorded.device is None else min(1.0, plain.busy / timing.step_s),
        slowed=slowed,
        notes=_notes(timing, seen, plain, slowed, has_device=recorded.device is not None),
        counterfactual_savings={cause: share * fits for cause, share in (without or {}).items()},
    )


def _recorded(trace: TraceSummary) -> _Recorded | Unknown:
    if not trace.window_s:
        return Unknown("the trace contains no work")
    if not trace.num_steps:
        return Unknown("the steps in the trace are not known")
    late = slowest_rank(trace)
    # Without a late rank, as for the trace's own shares: take the device with the longest window, then the
    # busiest.
    device = max(trace.devices, key=lambda row: (row.rank == late, row.window_s, row.busy_s), default=None)
    hosts = [row for row in trace.hosts if device is None or row.rank == device.rank]
    host = max(hosts, key=lambda row: (row.rank == late, row.window_s), default=None)
    window_s = trace.window_s if device is None else device.window_s
    return _Recorded(window_s / trace.num_steps, trace.num_steps, device, host)


def slowest_rank(trace: TraceSummary) -> int | None:
    """Return the rank that the others wait for, since only this rank's step shows what they wait for."""
    return trace.ranks.stragglers[0].rank if trace.ranks is not None and trace.ranks.stragglers else None


def _on_device(
    timing: Timing, recorded: _Recorded, device: DeviceTime, garbage_s: float
) -> tuple[Parts, Parts]:
    """Return the parts of the recorded step and of the unrecorded step on one device."""
    seen = parts_of(device, recorded.num_steps)
    usual = without_first_gap(seen, device, recorded.num_steps)
    wait_s = _idle_in_loader(timing, usual.loader, recorded)
    return seen, plain_parts(
        usual, timing.step_s, wait_s, most_wait_s=timing.wait_s or 0.0, garbage_s=garbage_s
    )


def _idle_in_loader(timing: Timing, recorded_idle_s: float, recorded: _Recorded) -> float:
    """Return the seconds of an unrecorded step in which the host waited for the loader and the device was
    idle.

    While the host waits, the device works off its queue, which takes as long as in the trace. If another
    thread draws from the loader, or the loader was not timed, the wait is taken from the trace alone.
    """
    host = recorded.host
    if timing.wait_s is None or (host is not None and host.loader_in_background):
        return recorded_idle_s
    worked_s = 0.0 if host is None else max(0.0, host.loader_s / recorded.num_steps - recorded_idle_s)
    return max(0.0, timing.wait_s - worked_s)


def _on_host(timing: Timing, recorded: _Recorded, host: HostTime, garbage_s: float) -> tuple[Parts, Parts]:
    """Return CPU parts: operators and collectives keep their seconds, Python gets the rest, up to its
    recorded time."""
    step_s, num = timing.step_s, recorded.num_steps
    waited = timing.wait_s is not None and not host.loader_in_background
    loader_s = min(step_s, timing.wait_s if waited and timing.wait_s is not None else host.loader_s / num)
    communication_s = min(step_s - loader_s, host.communication_s / num)
    device_s = min(step_s - loader_s - communication_s, host.operator_s / num)
    seen = Parts(
        loader=host.loader_s / num,
        communication=host.communication_s / num,
        compute=host.operator_s / num,
        host=max(0.0, recorded.step_s - (host.loader_s + host.communication_s + host.operator_s) / num),
    )
    rest_s = max(0.0, step_s - loader_s - communication_s - device_s)
    python_s = min(rest_s, seen.host)
    collecting_s = min(rest_s - python_s, garbage_s)
    plain = Parts(
        loader=loader_s,
        communication=communication_s,
        compute=device_s,
        host=python_s,
        garbage=collecting_s,
        unseen=rest_s - python_s - collecting_s,
    )
    return seen, plain


def _exposed_shares(copies: list[Copies]) -> tuple[float, float]:
    """Return two shares of the exposed copy time: copies between host and device, and copies between
    devices."""
    total_s = sum(row.exposed_s for row in copies)
    if not total_s:
        return 1.0, 0.0
    between_s = sum(row.exposed_s for row in copies if row.kind == "PtoP")
    within_s = sum(row.exposed_s for row in copies if row.kind == "DtoD")
    return (total_s - between_s - within_s) / total_s, between_s / total_s


def _behind_copies(trace: TraceSummary, seen: Parts, recorded: _Recorded) -> float:
    """Return the share of the idle time after synchronisations that follows waits for copies to the
    device."""
    if not seen.sync:
        return 0.0
    lost_s = sum(cause.share for cause in trace.causes if cause.id == "h2d-blocking") * recorded.step_s
    return min(1.0, lost_s / seen.sync)


def _loss(
    cause: Cause, seen: Parts, plain: Parts, trace: TraceSummary, recorded: _Recorded, step_s: float
) -> LostTime:
    """Return the loss to a cause as a share of an unrecorded step, at most 1.

    The share scales with the part of the step that the cause belongs to, and does not exceed that part.
    """
    known = CAUSES.get(cause.id, _NOT_KNOWN)
    if recorded.device is None and known.as_recorded:
        share = cause.share
    elif cause.id == IMBALANCE:
        # Ranks wait for the slowest one. Its shares are used, and it waits least, so the wait is a share of
        # the exposed communication of the other ranks, whose steps are as long.
        exposed_s = max((row.exposed_s for row in trace.communication), default=0.0)
        share = min(cause.lost_s, exposed_s) / recorded.num_steps / max(step_s, recorded.step_s)
    else:
        lost_s = cause.share * recorded.step_s
        work_s = min(lost_s, lost_s * cause.work_s / cause.lost_s) if cause.lost_s else 0.0
        part = known.part
        before_s, after_s = _part(seen, part), _part(plain, part)
        idle_s = min(after_s, (lost_s - work_s) * after_s / before_s) if before_s else 0.0
        if part == "compute":
            idle_s, work_s = 0.0, lost_s
        fits = plain.compute / seen.compute if seen.compute else 0.0
        worked_s = min(plain.compute + plain.copy, work_s * fits) if work_s else 0.0
        share = (idle_s + worked_s) / step_s
    evidence = list(cause.evidence)
    return LostTime(
        id=cause.id, share=min(1.0, share), claim=cause.claim, where=cause.where, evidence=evidence
    )


def _part(parts: Parts, name: str) -> float:
    """Return the seconds of a part; launches that delay the device count in the parts `late` or `queued`."""
    seconds: float = parts.queued + parts.late if name == "queued" else getattr(parts, name)
    return seconds


def _notes(timing: Timing, seen: Parts, plain: Parts, slowed: float, *, has_device: bool) -> list[str]:
    step, busy, unseen = map(words.duration, (timing.step_s, seen.busy, plain.unseen))
    spread = (
        f"{words.duration(timing.median_step_s)} in the middle, "
        f"{words.duration(timing.longest_step_s)} at most"
    )
    shorter = (
        f"An unrecorded step takes {step}, less than the {busy} that the device worked for a recorded step: "
        "the recorded steps are not like the others, or clocks changed. Shares are in proportion."
    )
    slower = (
        f"A recorded step took {slowed:.2f} times as long as an unrecorded one: the host's time is scaled "
        "back accordingly."
    )
    longer = (
        f"{unseen} of an unrecorded step are not in the recorded steps: other steps had more to do, or are "
        f"slow now and then ({spread}). What they waited for is not known."
    )
    found = []
    if slowed > 1 + NOTED_SLOWER:
        found = [slower]
    if has_device and seen.busy > timing.step_s * (1 + NOTED_SHORTER):
        found = [shorter]
    # Without a device, a recorder that slowed everything explains the time that recorded steps do not have.
    if plain.unseen > NOTED_SHORTER * timing.step_s and (has_device or not found):
        found.append(longer)
    return found
