"""The link between host and GPU. An idle GPU slows its link down: it is judged at work alone."""

from __future__ import annotations

from collections.abc import Iterator

from dynotune.doctor import policy
from dynotune.doctor.machine import (
    DIAGNOSE,
    at_work,
    bounded,
    gpu_in_words,
    gpu_label,
    gpus,
    in_words,
    is_watched,
    shares,
    weighed,
    window_of,
)
from dynotune.doctor.observation_view import Missing, Seen
from dynotune.doctor.registry import rule
from dynotune.schema.diagnosis import Finding

LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Line rate of a PCIe lane by its generation, one direction, after the line's encoding."""


@rule("machine")
def pcie_width_degraded(seen: Seen) -> Iterator[Finding]:
    """A GPU's PCIe link has fewer lanes than it could have.

    Sees: fewer lanes under load than the most that GPU and slot allow. An idle GPU may drop lanes, so it is not judged.

    Costs: bandwidth between host and GPU, in proportion: at most that part of the time in which a step waits for
    copies.

    Wrong when: the slot has fewer lanes than the driver believes.
    """
    yield from _degraded(seen, "width", "lanes", "Reseat the card; look at the riser and the firmware's bifurcation.")


@rule("machine")
def pcie_gen_degraded(seen: Seen) -> Iterator[Finding]:
    """A GPU's PCIe link runs at an older generation than it could.

    Sees: a lower generation under load than the highest that GPU and system allow. Idle GPUs slow their link down to
    save power, so an idle one is not judged.

    Costs: half of the bandwidth between host and GPU for each generation: at most that part of the time in which a
    step waits for copies.

    Wrong when: the load was too light for the link to speed up.
    """
    yield from _degraded(seen, "generation", "generation", "Look at the slot and its setting in the firmware.")


def _degraded(seen: Seen, what: str, unit: str, remedy: str) -> Iterator[Finding]:
    slow, evidence, parts_lost, idle = [], [], [], None
    for gpu in gpus(seen):
        most = seen.number(f"{gpu}.pcie_max_{what}")
        try:
            now = at_work(seen, gpu, f"pcie_{what}")
        except Missing as missing:
            idle = idle or missing
            continue
        if now >= most or now < 1:
            continue  # a link without lanes is none
        slow.append(gpu_in_words(seen, gpu))
        lanes = f"{now:g} of {most:g} lanes" if unit == "lanes" else f"generation {now:g} of {most:g}"
        evidence.append(f"{gpu_label(seen, gpu)}: {lanes} under load")
        parts_lost.append(1 - now / most if unit == "lanes" else 1 - 0.5 ** (most - now))
    if slow:
        parts = shares(seen)
        share, severity = bounded(seen, None if parts is None else parts.transfer * max(parts_lost), "medium")
        yield Finding(
            id="pcie-width-degraded" if unit == "lanes" else "pcie-gen-degraded",
            severity=severity,
            claim=f"The PCIe link of {in_words(slow)} runs below its highest {'width' if unit == 'lanes' else unit}.",
            share=share,
            evidence=evidence,
            remedy=remedy,
            commands=["nvidia-smi -q -d PCIE", "sudo lspci -vv | grep -A40 NVIDIA | grep LnkSta"],
        )
    elif idle is not None:
        raise idle


@rule("machine")
def pcie_saturated(seen: Seen) -> Iterator[Finding]:
    """The PCIe link to the GPU is full.

    Sees: bytes a second over the link, averaged over the window of a watched command, against the line rate.

    Costs: the time in which a step waits for copies: fewer bytes are copied sooner.

    Wrong when: several GPUs behind one switch share an uplink: then it is full earlier than this says.
    """
    if not gpus(seen):
        return
    if not is_watched(seen):
        raise Missing("traffic of a running command", DIAGNOSE)
    generation, width = seen.number("gpu.pcie_max_generation"), seen.number("gpu.pcie_max_width")
    if int(generation) not in LANE_BYTES_PER_S or width < 1:
        raise Missing("the link's line rate", f"{width:g} lanes of generation {generation:g} are not known here")
    rate = LANE_BYTES_PER_S[int(generation)] * width
    used = {
        "to the GPU": seen.number("window.pcie_rx_bytes_per_s"),
        "from the GPU": seen.number("window.pcie_tx_bytes_per_s"),
    }
    way = max(used, key=lambda each: used[each])
    if used[way] < policy.SATURATED_LINK * rate:
        return
    parts = shares(seen)
    share, severity = bounded(seen, None if parts is None else parts.transfer, "medium")
    yield Finding(
        id="pcie-saturated",
        severity=severity,
        claim=f"The PCIe link {way} carries {used[way] / rate:.0%} of its line rate all the time.",
        share=share,
        evidence=[
            f"{used[way] / 1e9:.1f} GB/s {way}",
            f"{width:g} lanes of generation {generation:g} have {rate / 1e9:.1f} GB/s",
        ],
        remedy="Move fewer bytes: send images as uint8 and convert them on the GPU, or decode there.",
    )


@rule("machine")
def pcie_replays(seen: Seen) -> Iterator[Finding]:
    """The PCIe link of a GPU repeats packets.

    Sees: the counter of replayed packets, and how it grew while a command ran. A counter at zero is sound at any time.

    Costs: bandwidth; and a link with errors may train down to fewer lanes or an older generation.

    Wrong when: the counter grew long ago, when the card was put in.
    """
    counted = [gpu for gpu in gpus(seen) if seen.number(f"{gpu}.pcie_replays")]
    if not counted:
        return
    if not is_watched(seen):
        raise Missing("growth of the replay counter", f"it is not zero, and {DIAGNOSE}")
    grown = sum(seen.number(f"{window_of(gpu)}.pcie_replays") for gpu in counted)
    if grown >= policy.MANY_REPLAYS:
        yield Finding(
            id="pcie-replays",
            severity=weighed(seen, "medium"),
            claim=f"The PCIe link repeated {grown:g} packets while the command ran.",
            share=bounded(seen, None, "medium")[0],
            evidence=[seen.mentions(f"{gpu}.pcie_replays") for gpu in counted],
            remedy="Reseat the card; look at riser and cables.",
            commands=["nvidia-smi -q -d PCIE"],
        )
