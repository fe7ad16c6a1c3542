"""What a knob may ask of the machine. Each is called with the facts it needs known."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from dynotune.schema.facts import Facts

ON_GPU: dict[str, Any] = {
    "needs": ("gpu.count",),
    "applies": lambda facts: facts["gpu.count"] != 0,
    "unless": "it acts on the GPU, and none was found here",
}
"""What a knob asks that acts on the GPU alone."""


def compute_capability_from(*least: int) -> Callable[[Facts], bool]:
    """Whether the GPU's `gpu.compute_capability`, written as "9.0", is at least `least`."""
    return lambda facts: version_of(facts["gpu.compute_capability"]) >= least


def torch_from(*least: int) -> Callable[[Facts], bool]:
    """Whether the command's torch (`torch.version`) is at least `least`."""
    return lambda facts: version_of(facts["torch.version"]) >= least


def version_of(fact: object) -> tuple[int, ...]:
    """The leading numbers of a version: "2.13.0+cu130" is (2, 13, 0), "9.0" is (9, 0)."""
    match = re.match(r"\d+(\.\d+)*", str(fact))
    return tuple(int(part) for part in match[0].split(".")) if match else ()
