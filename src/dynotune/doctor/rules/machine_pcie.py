"""The PCIe link between host and GPU. An idle GPU slows its link down, so rules judge the link only under load."""

from dynotune.doctor import machine, policy
from dynotune.doctor.declaration import Judgement, Judgements, machine_rule
from dynotune.doctor.observation_view import Missing, ObservationView, needs
from dynotune.doctor.rules.machine_gpu import Slowed, slowed_gpus


@machine_rule()
def pcie_width_degraded(view: ObservationView) -> Judgements:
    yield from _degraded(view, "width", "{now:g} of {most:g} lanes under load")


@machine_rule()
def pcie_gen_degraded(view: ObservationView) -> Judgements:
    yield from _degraded(view, "generation", "generation {now:g} of {most:g} under load")


def _degraded(view: ObservationView, what: str, way: str) -> Judgements:
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


@machine_rule()
def pcie_saturated(view: ObservationView) -> Judgements:
    if not machine.gpus(view):
        return
    needs(machine.is_watched(view), "traffic of a running command", machine.DIAGNOSE)
    generation, width = view.number("gpu.pcie_max_generation"), view.number("gpu.pcie_max_width")
    if int(generation) not in policy.PCIE_LANE_BYTES_PER_S or width < 1:
        raise Missing("the link's line rate", f"{width:g} lanes of generation {generation:g} are not known here")
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


@machine_rule()
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
