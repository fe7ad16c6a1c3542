"""GPUs: power, heat, clocks, health, and who else uses them."""

from __future__ import annotations

from collections.abc import Iterator

from dynotune.doctor import policy
from dynotune.doctor.machine import (
    NOT_MEASURED,
    Load,
    bounded,
    gpu_in_words,
    gpu_label,
    gpus,
    in_words,
    known,
    known_number,
    load,
    mentioned,
    no_gpu,
    selected,
    shares,
)
from dynotune.doctor.observation_view import Missing, Seen
from dynotune.doctor.registry import rule
from dynotune.schema.diagnosis import Finding, Severity

THERMAL = ("sw-thermal", "hw-thermal")
HARDWARE = ("hw-slowdown", "hw-power-brake")
EXPLAINING = ("sw-power-cap", "sync-boost", *THERMAL, *HARDWARE)


@rule("machine")
def gpu_power_capped(seen: Seen) -> Iterator[Finding]:
    """The power limit of a GPU was lowered.

    Sees: a power limit in force that is below the GPU's default. Of a command that was watched, also whether the
    limit held its clocks down.

    Costs: clocks, once the GPU draws that much: at most the part by which the limit was lowered, of the time in which
    the GPU works. A GPU that waits for its host draws less and loses nothing.

    Wrong when: the limit was lowered on purpose, for a rack that cannot cool or feed more.
    """
    lowered = []
    for gpu in gpus(seen):
        limit, default = seen.number(f"{gpu}.power_limit_w"), seen.number(f"{gpu}.default_power_limit_w")
        if limit < policy.LOWERED_POWER * default:
            lowered.append((gpu, limit, default))
    if not lowered:
        return
    part = max(1 - limit / default for _, limit, default in lowered)
    parts = shares(seen)
    capped = known(seen, "window.clock_reasons")
    bound = None
    if parts is not None and isinstance(capped, list):
        held = any(str(reason).startswith("sw-power-cap") for reason in capped)
        bound = parts.device * part if held else 0.0
    otherwise: Severity = "medium" if part >= 1 - policy.MUCH_LOWERED_POWER else "low"
    share, severity = bounded(seen, bound, otherwise)
    names = in_words([gpu_in_words(seen, gpu) for gpu, _, _ in lowered])
    yield Finding(
        id="gpu-power-capped",
        severity=severity,
        claim=f"The power limit of {names} was lowered, by {part:.0%} of its default.",
        share=share,
        evidence=[
            f"{gpu_label(seen, gpu)}: {limit:g} W, its default is {default:g} W" for gpu, limit, default in lowered
        ],
        remedy="Ask why the limit was lowered; raise it where power supply and cooling allow.",
        commands=[f"sudo nvidia-smi{selected(seen, gpu)} -pl {default:g}" for gpu, _, default in lowered],
    )


@rule("machine")
def gpu_thermal_slowdown(seen: Seen) -> Iterator[Finding]:
    """A GPU slows down because it is hot.

    Sees: clock event reasons for heat, set by the driver or by the hardware, under load or now.

    Costs: clocks. What the clocks are below their highest is the most that cooling gives back, of the time in which
    the GPU works.

    Wrong when: it was hot for the moment in which it was asked, after another program.
    """
    yield from _slowed(
        seen,
        THERMAL,
        id_="gpu-thermal-slowdown",
        claim="{names} slowed down because of heat.",
        remedy="Look at fans, air flow and the room's temperature; a GPU beside it that works is a cause too.",
        otherwise="high",
    )


@rule("machine")
def gpu_hw_slowdown(seen: Seen) -> Iterator[Finding]:
    """The hardware holds a GPU's clocks down.

    Sees: clock event reasons set by the hardware for another cause than heat: too much power drawn, or the brake that
    the power supply pulls.

    Costs: often half of the clocks, of the time in which the GPU works.

    Wrong when: it was set for the moment in which it was asked.
    """
    yield from _slowed(
        seen,
        HARDWARE,
        id_="gpu-hw-slowdown",
        claim="The hardware held the clocks of {names} down.",
        remedy="Look at the power supply, its cables and the board; the machine's log names the event.",
        otherwise="high",
        unless="hw-thermal",
    )


@rule("machine")
def gpu_sync_boost(seen: Seen) -> Iterator[Finding]:
    """A GPU keeps to the clocks of the slowest in its group.

    Sees: the clock event reason sync boost: an administrator put several GPUs into one group.

    Costs: the difference to the clock it would reach alone, of the time in which the GPU works.

    Wrong when: the group is wanted, so that all ranks of a job take equally long.
    """
    yield from _slowed(
        seen,
        ("sync-boost",),
        id_="gpu-sync-boost",
        claim="{names} kept to the clocks of the slowest GPU in its group.",
        remedy="Take it out of its sync boost group (dcgmi, or the cluster's configuration).",
        otherwise="medium",
    )


def _slowed(
    seen: Seen,
    reasons: tuple[str, ...],
    *,
    id_: str,
    claim: str,
    remedy: str,
    otherwise: Severity,
    unless: str = "",
) -> Iterator[Finding]:
    """A finding for all GPUs with one of these clock event reasons; idle ones without are not known.

    Args:
        unless: another reason that explains these.
    """
    slowed, evidence, bounds, idle = [], [], [], None
    for gpu in gpus(seen):
        try:
            at_load = load(seen, gpu)
        except Missing as missing:
            # Set while it is idle, it is set all the same; not set, that says nothing.
            now = known(seen, f"{gpu}.clock_reasons")
            at_load = Load(0.0, dict.fromkeys(map(str, now), 1.0) if isinstance(now, list) else {}, 0.0, "now")
            idle = idle or missing
        held = max((at_load.reasons.get(reason, 0.0) for reason in reasons), default=0.0)
        if held < policy.LEAST_REASON_SHARE or at_load.reasons.get(unless, 0.0) >= policy.LEAST_REASON_SHARE:
            continue
        name = gpu_in_words(seen, gpu)
        slowed.append(name)
        names = in_words([reason for reason in reasons if at_load.reasons.get(reason)])
        often = "" if at_load.when == "now" else f" in {held:.0%} of the samples"
        evidence += [
            f"{gpu_label(seen, gpu)}: {names}{often}, {at_load.when}",
            *mentioned(seen, f"{gpu}.temperature_c"),
        ]
        bounds.append(_lost(seen, gpu, at_load, held))
    if slowed:
        bound = None if None in bounds else max(bound for bound in bounds if bound is not None)
        share, severity = bounded(seen, bound, otherwise)
        said = claim.format(names=in_words(slowed))
        yield Finding(
            id=id_,
            severity=severity,
            claim=said[0].upper() + said[1:],
            share=share,
            evidence=evidence,
            remedy=remedy,
        )
    elif idle is not None:
        raise idle


def _lost(seen: Seen, gpu: str, at_load: Load, held: float) -> float | None:
    """Of a step, the most that the highest clock would save; `held` is the share of samples below it."""
    parts, highest = shares(seen), known_number(seen, f"{gpu}.max_sm_clock_mhz")
    if parts is None or not highest or not at_load.clock_mhz:
        return None
    # The median clock is one of those held down where more than half of them are.
    return parts.device * (max(1 - at_load.clock_mhz / highest, 0.0) if held >= 0.5 else held)


@rule("machine")
def gpu_clocks_locked_low(seen: Seen) -> Iterator[Finding]:
    """A busy GPU stays far below its highest clock, and names no reason.

    Sees: under load, clocks below 0.8 of the highest, without power, heat or hardware as the reason: then they
    were locked, or application clocks were set.

    Costs: what the clocks are below their highest, of the time in which the GPU works; less where its memory is
    the limit.

    Wrong when: the clocks were locked to measure with, or the work comes in bursts too short for it to clock up.
    """
    locked, evidence, bounds, idle = [], [], [], None
    for gpu in gpus(seen):
        try:
            at_load = load(seen, gpu, least_percent=policy.BUSY_FOR_CLOCKS_PERCENT)
        except Missing as missing:
            idle = idle or missing
            continue
        highest = seen.number(f"{gpu}.max_sm_clock_mhz")
        named = [name for name in EXPLAINING if at_load.reasons.get(name, 0.0) >= policy.LEAST_REASON_SHARE]
        if named or at_load.clock_mhz >= policy.LOW_CLOCK * highest:
            continue
        locked.append(gpu)
        evidence.append(
            f"{gpu_label(seen, gpu)}: {at_load.clock_mhz:g} of {highest:g} MHz {at_load.when}, "
            f"{at_load.utilisation_percent:.0f}% busy"
        )
        parts = shares(seen)
        bounds.append(None if parts is None else parts.device * (1 - at_load.clock_mhz / highest))
    if locked:
        bound = None if None in bounds else max(bound for bound in bounds if bound is not None)
        share, severity = bounded(seen, bound, "high")
        names = in_words([gpu_in_words(seen, gpu) for gpu in locked])
        yield Finding(
            id="gpu-clocks-locked-low",
            severity=severity,
            claim=f"The clocks of {names} stay low under load, for no reason that the driver names.",
            share=share,
            evidence=evidence,
            remedy="Undo locked clocks and application clocks.",
            commands=[f"sudo nvidia-smi{selected(seen, gpu)} {reset}" for gpu in locked for reset in ("-rgc", "-rac")],
        )
    elif idle is not None:
        raise idle


@rule("machine")
def persistence_off(seen: Seen) -> Iterator[Finding]:
    """The driver lets go of the GPU whenever no program uses it.

    Sees: persistence mode is off.

    Costs: the start of each program that finds the GPU unused: a second or more until the driver is ready. No step.

    Wrong when: another program keeps the GPU in use all the time, a display for instance.
    """
    off = [gpu for gpu in gpus(seen) if not seen.truth(f"{gpu}.persistence")]
    if off:
        yield Finding(
            id="persistence-off",
            severity="low",
            kind="start",
            claim="Persistence mode is off: each start waits until the driver has woken the GPU.",
            share=0.0,
            evidence=[f"{gpu_label(seen, gpu)}: persistence mode is off" for gpu in off],
            remedy="Run nvidia-persistenced, or switch persistence mode on; it lasts until the machine restarts.",
            commands=["sudo systemctl enable --now nvidia-persistenced", "sudo nvidia-smi -pm 1"],
        )


@rule("machine")
def gpu_shared(seen: Seen) -> Iterator[Finding]:
    """Somebody else uses the GPU.

    Sees: processes with a compute context, before the command starts; where a container hides processes, a GPU
    that is busy, or memory that is held, without any.

    Costs: the time in which the other computes, and what it holds of memory. Every measurement is invalid meanwhile.

    Wrong when: the other process is one's own and idle, as a notebook that is still open.
    """
    if seen.is_watched and not seen.uses_cuda:
        return  # whose GPU it is matters to nobody here
    evidence, worst, hidden = [], [], None
    for gpu in gpus(seen):
        try:
            num = seen.number(f"{gpu}.num_processes")
        except Missing as missing:
            num, hidden = 0, hidden or missing
        busy, held = known_number(seen, f"{gpu}.utilisation_percent"), _held(seen, gpu)
        if not num and not (hidden and (held or (busy or 0) >= policy.BUSY_PERCENT)):
            continue
        who = known(seen, f"{gpu}.processes")
        names = ", ".join(map(str, who[:3])) if isinstance(who, list) else "processes that cannot be seen from here"
        evidence += [
            f"{gpu_label(seen, gpu)}: {names}",
            *mentioned(seen, f"{gpu}.utilisation_percent", f"{gpu}.memory_used_bytes"),
        ]
        worst.append(0 if (busy or 0) >= policy.BUSY_PERCENT else 1 if held else 2)
    if evidence:
        severities: tuple[Severity, ...] = ("high", "medium", "low")
        yield Finding(
            id="gpu-shared",
            severity=severities[min(worst)],
            kind="measurement",
            claim=("Others compute on the GPU.", "Others hold memory of the GPU.", "Another process has the GPU open.")[
                min(worst)
            ],
            share=NOT_MEASURED,
            evidence=evidence,
            remedy="Choose another GPU with CUDA_VISIBLE_DEVICES, wait, or ask whose processes they are.",
            commands=["nvidia-smi"],
        )
    elif hidden is not None:
        raise hidden


def _held(seen: Seen, gpu: str) -> bool:
    """Others hold more of its memory than the driver keeps for itself."""
    used, total = known_number(seen, f"{gpu}.memory_used_bytes"), known_number(seen, f"{gpu}.memory_bytes")
    return bool(used and total) and used >= max(policy.SHARED_MEMORY * total, policy.HIDDEN_MEMORY_BYTES)  # type: ignore[operator]


@rule("machine")
def mig_slice(seen: Seen) -> Iterator[Finding]:
    """The GPU is split by MIG.

    Sees: MIG mode is on: a program gets a slice, with its part of the multiprocessors and of the memory's bandwidth.

    Costs: nothing that a program could change; but it is no whole GPU, and utilisation is not reported for slices.

    Wrong when: the slice is what was ordered.
    """
    if no_gpu(seen):
        return
    if seen.truth("gpu.mig"):
        yield Finding(
            id="mig-slice",
            severity="low",
            claim="The GPU is split by MIG: a program has a slice of it, not all of it.",
            share=NOT_MEASURED,
            evidence=["MIG mode is on"],
            remedy="Choose a larger profile where the program needs more.",
            commands=["nvidia-smi -L", "sudo nvidia-smi mig -lgip"],
        )


@rule("machine")
def row_remap_pending(seen: Seen) -> Iterator[Finding]:
    """A GPU waits for a reset to take faulty memory out of use.

    Sees: remapped rows are pending: uncorrectable errors were met, and the spare rows come into use at the next reset.

    Costs: no speed; programs that touch those rows end with an error, and it may be the machine's next slow rank.

    Wrong when: never; it only matters less where nothing touches that memory.
    """
    pending = [gpu for gpu in gpus(seen) if seen.truth(f"{gpu}.remapped_rows_pending")]
    if pending:
        yield Finding(
            id="row-remap-pending",
            severity="medium",
            kind="correctness",
            claim="Faulty memory of the GPU waits for a reset to be replaced by spare rows.",
            share=0.0,
            evidence=[
                *(f"{gpu_label(seen, gpu)}: remapped rows are pending" for gpu in pending),
                *mentioned(seen, *(f"{gpu}.ecc_uncorrected" for gpu in pending)),
            ],
            remedy="Reset the GPU when nobody uses it, in maintenance.",
            commands=[f"sudo nvidia-smi --gpu-reset{selected(seen, gpu)}" for gpu in pending],
        )
