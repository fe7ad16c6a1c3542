"""GPUs: power, heat, clocks, health, other processes on them, and the PCIe link between host and GPU."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dynotune.doctor import machine, policy
from dynotune.doctor.declaration import Judgement, Judgements, machine_rule
from dynotune.doctor.observation_view import Missing, ObservationView, needs
from dynotune.schema.diagnosis import Severity

THERMAL = ("sw-thermal", "hw-thermal")
HARDWARE = ("hw-slowdown", "hw-power-brake")
EXPLAINING = ("sw-power-cap", "sync-boost", *THERMAL, *HARDWARE)


@machine_rule(family="machine_gpu")
def gpu_power_capped(view: ObservationView) -> Judgements:
    limits = [
        (gpu, view.number(f"{gpu}.power_limit_w"), view.number(f"{gpu}.default_power_limit_w"))
        for gpu in machine.gpus(view)
    ]
    lowered = [
        (gpu, limit, default) for gpu, limit, default in limits if limit < policy.LOWERED_POWER * default
    ]
    if not lowered:
        return
    part = max(1 - limit / default for _, limit, default in lowered)
    parts = machine.shares(view)
    capped = view.fact_or_none("window.clock_reasons")
    bound = None
    if parts is not None and isinstance(capped, list):
        held = any(str(reason).startswith("sw-power-cap") for reason in capped)
        bound = parts.device * part if held else 0.0
    names = machine.in_words([machine.gpu_in_words(view, gpu) for gpu, _, _ in lowered])
    yield Judgement(
        otherwise="medium" if part >= 1 - policy.MUCH_LOWERED_POWER else "low",
        claim=f"The power limit of {names} was lowered, by {part:.0%} of its default.",
        share=machine.measured(bound),
        evidence=[
            f"{machine.gpu_label(view, gpu)}: {limit:g} W, its default is {default:g} W"
            for gpu, limit, default in lowered
        ],
        commands=[
            f"sudo nvidia-smi{machine.gpu_option(view, gpu)} -pl {default:g}" for gpu, _, default in lowered
        ],
    )


class Slowed(NamedTuple):
    """A GPU that could work faster: evidence, and a bound of its cost in shares of a step, if measured."""

    seen: str
    bound: float | None


def slowed_gpus(
    view: ObservationView,
    look: Callable[[str], Slowed | None],
    *,
    claim: str,
    otherwise: Severity,
    commands: Sequence[str] = (),
) -> Judgements:
    """Yield one judgement for all GPUs that `look` finds slowed.

    Args:
        claim: the claim's text, with `{names}` for the GPUs.
        commands: shell lines, with `{option}` for the option that restricts nvidia-smi to one GPU.

    Raises Missing: no GPU is slowed, as far as is known.
    """
    slowed: dict[str, Slowed] = {}
    unknown = None
    for gpu in machine.gpus(view):
        try:
            found = look(gpu)
        except Missing as missing:
            unknown = unknown or missing
            continue
        if found is not None:
            slowed[gpu] = found
    if not slowed and unknown is not None:
        raise unknown
    if slowed:
        bounds = [each.bound for each in slowed.values() if each.bound is not None]
        text = claim.format(names=machine.in_words([machine.gpu_in_words(view, gpu) for gpu in slowed]))
        lines = [each.format(option=machine.gpu_option(view, gpu)) for gpu in slowed for each in commands]
        yield Judgement(
            otherwise=otherwise,
            claim=text[0].upper() + text[1:],
            share=machine.measured(max(bounds) if len(bounds) == len(slowed) else None),
            evidence=[f"{machine.gpu_label(view, gpu)}: {each.seen}" for gpu, each in slowed.items()],
            commands=list(dict.fromkeys(lines)),
        )


def _held_by(
    view: ObservationView, reasons: tuple[str, ...], unless: str = ""
) -> Callable[[str], Slowed | None]:
    """Return a `look` function for these clock event reasons. `unless`: another reason that explains
    these."""

    def look(gpu: str) -> Slowed | None:
        idle = None
        try:
            at_load = machine.load(view, gpu)
        except Missing as missing:
            # A reason that is set on an idle GPU counts. An idle GPU without such a reason proves nothing.
            now, idle = view.fact_or_none(f"{gpu}.clock_reasons"), missing
            at_load = machine.Load(
                0.0, dict.fromkeys(map(str, now), 1.0) if isinstance(now, list) else {}, 0.0, "now"
            )
        held = max(at_load.reasons.get(reason, 0.0) for reason in reasons)
        if held < policy.LEAST_REASON_SHARE or at_load.reasons.get(unless, 0.0) >= policy.LEAST_REASON_SHARE:
            if idle is not None:
                raise idle
            return None
        names = machine.in_words([reason for reason in reasons if at_load.reasons.get(reason)])
        often = "" if at_load.when == "now" else f" in {held:.0%} of the samples"
        heat = view.number_or_none(f"{gpu}.temperature_c")
        hot = "" if heat is None else f", {heat:g} °C"
        return Slowed(f"{names}{often}, {at_load.when}{hot}", _lost(view, gpu, at_load, held))

    return look


def _lost(view: ObservationView, gpu: str, at_load: machine.Load, held: float = 1.0) -> float | None:
    """Return a bound of the share of a step that the highest clock saves; `held` is the share of samples
    below it."""
    parts, highest = machine.shares(view), view.number_or_none(f"{gpu}.max_sm_clock_mhz")
    if parts is None or not highest or not at_load.clock_mhz:
        return None
    # If more than half of the samples are below the highest clock, the median clock is one of them.
    return parts.device * (max(1 - at_load.clock_mhz / highest, 0.0) if held >= 0.5 else held)


@machine_rule(family="machine_gpu")
def gpu_thermal_slowdown(view: ObservationView) -> Judgements:
    yield from slowed_gpus(
        view, _held_by(view, THERMAL), claim="{names} slowed down because of heat.", otherwise="high"
    )


@machine_rule(family="machine_gpu")
def gpu_hw_slowdown(view: ObservationView) -> Judgements:
    yield from slowed_gpus(
        view,
        _held_by(view, HARDWARE, unless="hw-thermal"),
        claim="The hardware lowered the clocks of {names}.",
        otherwise="high",
    )


@machine_rule(family="machine_gpu")
def gpu_sync_boost(view: ObservationView) -> Judgements:
    yield from slowed_gpus(
        view,
        _held_by(view, ("sync-boost",)),
        claim="{names} ran at the clocks of the slowest GPU in its group.",
        otherwise="medium",
    )


@machine_rule(family="machine_gpu")
def gpu_clocks_locked_low(view: ObservationView) -> Judgements:
    def look(gpu: str) -> Slowed | None:
        at_load = machine.load(view, gpu, least_percent=policy.BUSY_FOR_CLOCKS_PERCENT)
        highest, clock = view.number(f"{gpu}.max_sm_clock_mhz"), at_load.clock_mhz
        named = any(at_load.reasons.get(name, 0.0) >= policy.LEAST_REASON_SHARE for name in EXPLAINING)
        if named or clock >= policy.LOW_CLOCK * highest:
            return None
        seen = f"{clock:g} of {highest:g} MHz {at_load.when}, {at_load.utilisation_percent:.0f}% busy"
        return Slowed(seen, _lost(view, gpu, at_load))

    yield from slowed_gpus(
        view,
        look,
        claim="The clocks of {names} stay low under load, and the driver names no reason.",
        otherwise="high",
        commands=["sudo nvidia-smi{option} -rgc", "sudo nvidia-smi{option} -rac"],
    )


@machine_rule(family="machine_gpu")
def persistence_off(view: ObservationView) -> Judgements:
    off = [gpu for gpu in machine.gpus(view) if not view.truth(f"{gpu}.persistence")]
    if off:
        yield Judgement(
            severity="low",
            evidence=[f"{machine.gpu_label(view, gpu)}: persistence mode is off" for gpu in off],
        )


@machine_rule(family="machine_gpu")
def gpu_shared(view: ObservationView) -> Judgements:
    if view.is_watched and not view.uses_cuda:
        return  # the command uses no GPU
    evidence, worst, hidden = [], [], None
    for gpu in machine.gpus(view):
        try:
            num = view.number(f"{gpu}.num_processes")
        except Missing as missing:
            num, hidden = 0, hidden or missing
        busy, held = view.number_or_none(f"{gpu}.utilisation_percent"), _held(view, gpu)
        if not num and not (hidden and (held or (busy or 0) >= policy.BUSY_PERCENT)):
            continue
        who = view.fact_or_none(f"{gpu}.processes")
        names = (
            ", ".join(map(str, who[:3]))
            if isinstance(who, list)
            else "processes that cannot be seen from here"
        )
        evidence += [
            f"{machine.gpu_label(view, gpu)}: {names}",
            *view.fact_evidence(f"{gpu}.utilisation_percent", f"{gpu}.memory_used_bytes"),
        ]
        worst.append(0 if (busy or 0) >= policy.BUSY_PERCENT else 1 if held else 2)
    if evidence:
        severities: tuple[Severity, ...] = ("high", "medium", "low")
        yield Judgement(
            severity=severities[min(worst)],
            claim=(
                "Other processes compute on the GPU.",
                "Other processes use memory of the GPU.",
                "Another process has the GPU open.",
            )[min(worst)],
            share=machine.NOT_MEASURED,
            evidence=evidence,
        )
    elif hidden is not None:
        raise hidden


def _held(view: ObservationView, gpu: str) -> bool:
    """Tell whether other processes hold more of the GPU's memory than the driver keeps for itself."""
    used, total = view.number_or_none(f"{gpu}.memory_used_bytes"), view.number_or_none(f"{gpu}.memory_bytes")
    return bool(used and total) and used >= max(policy.SHARED_MEMORY * total, policy.HIDDEN_MEMORY_BYTES)  # type: ignore[operator]


@machine_rule(family="machine_gpu")
def mig_slice(view: ObservationView) -> Judgements:
    if not machine.no_gpu(view) and view.truth("gpu.mig"):
        yield Judgement(severity="low", evidence=["MIG mode is on"])


@machine_rule(family="machine_gpu")
def row_remap_pending(view: ObservationView) -> Judgements:
    pending = [gpu for gpu in machine.gpus(view) if view.truth(f"{gpu}.remapped_rows_pending")]
    if pending:
        yield Judgement(
            severity="medium",
            share=0.0,
            evidence=[
                *(f"{machine.gpu_label(view, gpu)}: remapped rows are pending" for gpu in pending),
                *view.fact_evidence(*(f"{gpu}.ecc_uncorrected" for gpu in pending)),
            ],
            commands=[f"sudo nvidia-smi --gpu-reset{machine.gpu_option(view, gpu)}" for gpu in pending],
        )


@machine_rule(family="machine_gpu")
def pcie_width_degraded(view: ObservationView) -> Judgements:
    yield from _degraded(view, "width", "{now:g} of {most:g} lanes under load")


@machine_rule(family="machine_gpu")
def pcie_gen_degraded(view: ObservationView) -> Judgements:
    yield from _degraded(view, "generation", "generation {now:g} of {most:g} under load")


def _degraded(view: ObservationView, what: str, way: str) -> Judgements:
    """Judge the PCIe link only under load, since an idle GPU slows its link down."""

    def look(gpu: str) -> Slowed | None:
        most, now = view.number(f"{gpu}.pcie_max_{what}"), machine.at_work(view, gpu, f"pcie_{what}")
        if now >= most or now < 1:
            return None  # no lanes: the GPU has no PCIe link
        parts = machine.shares(view)
        lost = 1 - now / most if what == "width" else 1 - 0.5 ** (most - now)
        return Slowed(way.format(now=now, most=most), None if parts is None else parts.transfer * lost)

    yield from slowed_gpus(
        view, look, claim=f"The PCIe link of {{names}} runs below its highest {what}.", otherwise="medium"
    )


@machine_rule(family="machine_gpu")
def pcie_saturated(view: ObservationView) -> Judgements:
    if not machine.gpus(view):
        return
    needs(machine.is_watched(view), "traffic of a running command", machine.DIAGNOSE)
    generation, width = view.number("gpu.pcie_max_generation"), view.number("gpu.pcie_max_width")
    if int(generation) not in policy.PCIE_LANE_BYTES_PER_S or width < 1:
        raise Missing(
            "the link's line rate", f"{width:g} lanes of generation {generation:g} are not known here"
        )
    rate = policy.PCIE_LANE_BYTES_PER_S[int(generation)] * width
    used = {
        "to the GPU": view.number("window.pcie_rx_bytes_per_s"),
        "from the GPU": view.number("window.pcie_tx_bytes_per_s"),
    }
    way = max(used, key=lambda each: used[each])
    if used[way] < policy.SATURATED_LINK * rate:
        return
    yield Judgement(
        otherwise="medium",
        claim=f"The PCIe link {way} carries {used[way] / rate:.0%} of its line rate on average.",
        share=machine.part_of_step(view, "transfer"),
        evidence=[
            f"{used[way] / 1e9:.1f} GB/s {way}",
            f"{width:g} lanes of generation {generation:g} have {rate / 1e9:.1f} GB/s",
        ],
    )


@machine_rule(family="machine_gpu")
def pcie_replays(view: ObservationView) -> Judgements:
    counted = [gpu for gpu in machine.gpus(view) if view.number(f"{gpu}.pcie_replays")]
    if not counted:
        return
    needs(machine.is_watched(view), "growth of the replay counter", f"it is not zero, and {machine.DIAGNOSE}")
    grown = sum(view.number(f"{machine.window_of(gpu)}.pcie_replays") for gpu in counted)
    if grown >= policy.MANY_REPLAYS:
        yield Judgement(
            otherwise="medium",
            claim=f"The PCIe link repeated {grown:g} packets while the command ran.",
            evidence=[view.mentions(f"{gpu}.pcie_replays") for gpu in counted],
        )
