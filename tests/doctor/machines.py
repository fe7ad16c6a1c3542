"""Machines made by hand: an H200 as it was recorded, idle, and what a test changes of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dynotune.doctor import Missing, ObservationView, all_rules
from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.observation import Observation

from .observations import observed

NOBODY = Unknown("nobody knows")
RECORDED = Path(__file__).parent / "facts" / "h200.json"
ENV = "env."

BUSY = {"gpu.utilisation_percent": 98, "gpu.clock_reasons": [], "gpu.sm_clock_mhz": 1980}
"""Somebody keeps the GPU at work now."""
WINDOW = {
    "window.gpu_utilisation_percent": 95.0,
    "window.clock_reasons": ["gpu-idle 0.02"],
    "window.sm_clock_mhz": 1980,
    "window.throttled_s_per_s": 0.0,
    "window.swapped_pages": 0,
    "window.major_faults": 0,
    "window.tree_cpu_s_per_s": 1.5,
    "window.pcie_rx_bytes_per_s": 1e9,
    "window.pcie_tx_bytes_per_s": 1e8,
}
"""A command was watched that keeps the GPU at work."""
SINCE = {"torch.bytecode": True, "torch.bytecode_writable": True}
"""What was not asked yet when it was recorded."""
NO_GPU = {"gpu.count": 0, "torch.cuda": None, "torch.version": "2.13.0+cpu"}


def h200(changes: Mapping[str, Any] | None = None) -> Facts:
    """The recorded facts with `changes`; a variable may be named alone, `CUDA_LAUNCH_BLOCKING`."""
    recorded: Facts = msgspec.json.decode(RECORDED.read_bytes(), type=Facts)
    return (
        recorded
        | SINCE
        | {name if "." in name else ENV + name: value for name, value in (changes or {}).items()}
    )


def alone(facts: Facts) -> Observation:
    """What `doctor` knows."""
    return Observation(facts=facts)


def found(id_: str, changes: Mapping[str, Any] | None = None, **program: Any) -> list[Finding]:
    """What one rule finds on the H200 with `changes`; `program`: of a command that was watched, as
    `observed`.

    Raises:
        Missing: what it needs is not known.
    """
    facts = h200(changes)
    observation = observed(facts=facts, **program) if program else alone(facts)
    return list(all_rules()[id_](ObservationView(observation)))


def missing(id_: str, changes: Mapping[str, Any] | None = None, **program: Any) -> str | None:
    """What the rule needs and does not know; None where it judges."""
    try:
        found(id_, changes, **program)
    except Missing as lacking:
        return lacking.name
    return None
