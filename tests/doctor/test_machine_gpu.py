"""Rules on GPUs and their links: in which state each fires, is silent, and cannot tell."""

from __future__ import annotations

import pytest

from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Unknown

from .machines import BUSY, NO_GPU, NOBODY, WINDOW, found, missing
from .observations import attribution

TWO = {"gpu.count": 2}
HALF_CLOCK = {"window.sm_clock_mhz": 990}


def reasons(*names: str) -> dict[str, list[str]]:
    return {"window.clock_reasons": list(names)}


FIRES = {
    "gpu-power-capped": [
        ({"gpu.power_limit_w": 500.0}, "medium"),
        ({"gpu.power_limit_w": 660.0}, "low"),
    ],
    "gpu-thermal-slowdown": [
        (BUSY | {"gpu.clock_reasons": ["sw-thermal"]}, "high"),
        ({"gpu.clock_reasons": ["gpu-idle", "hw-thermal", "hw-slowdown"]}, "high"),
        (WINDOW | reasons("sw-thermal 0.30"), "high"),
    ],
    "gpu-hw-slowdown": [
        (BUSY | {"gpu.clock_reasons": ["hw-power-brake", "hw-slowdown"]}, "high"),
        (WINDOW | reasons("hw-slowdown 0.60"), "high"),
    ],
    "gpu-sync-boost": [(WINDOW | reasons("sync-boost 1.00"), "medium")],
    "gpu-clocks-locked-low": [
        (WINDOW | {"window.sm_clock_mhz": 1200}, "high"),
        (BUSY | {"gpu.sm_clock_mhz": 1200}, "high"),
    ],
    "persistence-off": [({"gpu.persistence": False}, "low")],
    "gpu-shared": [
        ({"gpu.processes": ["77 python"], "gpu.num_processes": 1, "gpu.utilisation_percent": 60}, "high"),
        (
            {"gpu.processes": ["77 python"], "gpu.num_processes": 1, "gpu.memory_used_bytes": 40 << 30},
            "medium",
        ),
        ({"gpu.processes": ["77 python"], "gpu.num_processes": 1}, "low"),
        ({"gpu.processes": NOBODY, "gpu.num_processes": NOBODY, "gpu.utilisation_percent": 60}, "high"),
        ({"gpu.processes": NOBODY, "gpu.num_processes": NOBODY, "gpu.memory_used_bytes": 40 << 30}, "medium"),
    ],
    "mig-slice": [
        ({"gpu.mig": True}, "low"),
        ({"gpu.mig": True, "gpu.count": Unknown("a GPU is split by MIG")}, "low"),
    ],
    "row-remap-pending": [({"gpu.remapped_rows_pending": True}, "medium")],
    "pcie-width-degraded": [
        (WINDOW | {"window.pcie_width": 8}, "medium"),
        (BUSY | {"gpu.pcie_width": 4}, "medium"),
    ],
    "pcie-gen-degraded": [
        (WINDOW | {"window.pcie_generation": 3}, "medium"),
        (BUSY | {"gpu.pcie_generation": 3}, "medium"),
    ],
    "pcie-saturated": [(WINDOW | {"window.pcie_rx_bytes_per_s": 50e9}, "medium")],
    "pcie-replays": [({"gpu.pcie_replays": 5000, **WINDOW, "window.pcie_replays": 200}, "medium")],
}

SILENT = {
    "gpu-power-capped": [{}, {"gpu.power_limit_w": 699.0}, NO_GPU],
    "gpu-thermal-slowdown": [BUSY, WINDOW, WINDOW | reasons("sw-thermal 0.02"), NO_GPU],
    "gpu-hw-slowdown": [
        WINDOW,
        WINDOW | reasons("hw-thermal 0.50", "hw-slowdown 0.50"),  # heat explains it
        NO_GPU,
    ],
    "gpu-sync-boost": [BUSY, WINDOW, NO_GPU],
    "gpu-clocks-locked-low": [
        WINDOW,
        BUSY,
        WINDOW | HALF_CLOCK | reasons("sw-power-cap 0.90"),  # its own work draws that much
        NO_GPU,
    ],
    "persistence-off": [{}, NO_GPU],
    "gpu-shared": [{}, NO_GPU],
    "mig-slice": [{}, NO_GPU],
    "row-remap-pending": [{}, NO_GPU],
    "pcie-width-degraded": [BUSY, WINDOW | {"window.pcie_width": 16}, NO_GPU],
    "pcie-gen-degraded": [BUSY | {"gpu.pcie_generation": 5}, WINDOW | {"window.pcie_generation": 5}, NO_GPU],
    "pcie-saturated": [WINDOW, NO_GPU],
    "pcie-replays": [{}, {"gpu.pcie_replays": 5000, **WINDOW, "window.pcie_replays": 0}, NO_GPU],
}

UNKNOWN = {
    "gpu-power-capped": [({"gpu.power_limit_w": NOBODY}, "gpu.power_limit_w")],
    "gpu-thermal-slowdown": [
        ({}, "a busy GPU"),
        (WINDOW | {"window.clock_reasons": NOBODY}, "window.clock_reasons"),
    ],
    "gpu-hw-slowdown": [({}, "a busy GPU")],
    "gpu-sync-boost": [({}, "a busy GPU")],
    "gpu-clocks-locked-low": [
        ({}, "a busy GPU"),
        (WINDOW | {"window.gpu_utilisation_percent": 3.0, "window.sm_clock_mhz": 345}, "a busy GPU"),
    ],
    "persistence-off": [({"gpu.persistence": NOBODY}, "gpu.persistence")],
    "gpu-shared": [({"gpu.processes": NOBODY, "gpu.num_processes": NOBODY}, "gpu.num_processes")],
    "mig-slice": [({"gpu.mig": NOBODY}, "gpu.mig")],
    "row-remap-pending": [({"gpu.remapped_rows_pending": NOBODY}, "gpu.remapped_rows_pending")],
    # An idle link is slow by design: this one stands at generation 1.
    "pcie-width-degraded": [({"gpu.pcie_width": 8}, "a busy GPU")],
    "pcie-gen-degraded": [({}, "a busy GPU"), (WINDOW, "window.pcie_generation")],
    "pcie-saturated": [({}, "traffic of a running command"), ({"gpu.count": NOBODY}, "gpu.count")],
    "pcie-replays": [({"gpu.pcie_replays": 3}, "growth of the replay counter")],
}


def cases(table):
    return [
        pytest.param(id_, case, id=f"{id_}-{at}")
        for id_, rows in table.items()
        for at, case in enumerate(rows)
    ]


@pytest.mark.parametrize(("id_", "case"), cases(FIRES))
def test_a_rule_on_gpus_fires(id_, case):
    changes, severity = case
    (finding,) = found(id_, changes)
    assert (finding.id, finding.severity) == (id_, severity)
    assert finding.claim.endswith(".")
    assert finding.evidence


@pytest.mark.parametrize(("id_", "changes"), cases(SILENT))
def test_a_rule_on_gpus_is_silent(id_, changes):
    assert found(id_, changes) == []


@pytest.mark.parametrize(("id_", "case"), cases(UNKNOWN))
def test_a_rule_on_gpus_cannot_tell(id_, case):
    changes, what = case
    assert missing(id_, changes) == what


@pytest.mark.parametrize("id_", [id_ for id_ in FIRES if id_ != "mig-slice"])
def test_without_knowing_whether_there_is_a_gpu_nothing_is_said_of_it(id_):
    assert missing(id_, {"gpu.count": NOBODY}) == "gpu.count"


def shared(id_: str, changes, **shares) -> Finding:
    (finding,) = found(id_, WINDOW | changes, attributed=attribution(**shares))
    return finding


def test_a_power_cap_costs_its_part_of_the_time_in_which_the_gpu_works():
    capped = {"gpu.power_limit_w": 350.0} | reasons("sw-power-cap 0.95")
    finding = shared("gpu-power-capped", capped, host=0.4)
    assert finding.share == pytest.approx(0.5 * 0.6)
    assert finding.severity == "high"


def test_a_power_cap_that_never_held_the_clocks_down_costs_nothing():
    finding = shared("gpu-power-capped", {"gpu.power_limit_w": 350.0})
    assert (finding.share, finding.severity) == (0.0, "low")


def test_a_hot_gpu_costs_at_most_the_samples_in_which_it_was_held_down():
    finding = shared("gpu-thermal-slowdown", reasons("hw-thermal 0.20"), input=0.5)
    assert finding.share == pytest.approx(0.2 * 0.5)


def test_a_gpu_held_down_all_the_time_costs_what_its_clocks_lack():
    finding = shared("gpu-hw-slowdown", HALF_CLOCK | reasons("hw-slowdown 1.00"), input=0.2)
    assert finding.share == pytest.approx(0.5 * 0.8)


def test_a_link_of_half_width_costs_at_most_half_of_the_transfers():
    finding = shared("pcie-width-degraded", {"window.pcie_width": 8}, transfer=0.3)
    assert finding.share == pytest.approx(0.15)


def test_of_several_gpus_those_that_are_meant_are_named_and_the_others_not():
    second = {"gpu1.power_limit_w": 300.0, "gpu1.default_power_limit_w": 700.0, "gpu1.index": 5}
    (finding,) = found("gpu-power-capped", TWO | second)
    assert "GPU 1" in finding.claim
    assert finding.commands == ["sudo nvidia-smi -i 5 -pl 700"]


def test_a_second_gpu_is_judged_by_its_own_samples():
    second = {"window1.gpu_utilisation_percent": 90.0, "window1.clock_reasons": ["hw-thermal 1.00"]}
    second |= {"window1.sm_clock_mhz": 700, "gpu1.max_sm_clock_mhz": 1980}
    (finding,) = found("gpu-thermal-slowdown", TWO | WINDOW | second)
    assert "GPU 1" in finding.claim
