"""What a knob may ask of the machine. Each is called with the facts it needs known."""

from __future__ import annotations

import re
from collections.abc import Callable

from dynotune.schema.facts import Facts

NO_GPU = "it acts on the GPU, and none was found here"


def has_gpu(facts: Facts) -> bool:
    """Whether there is a GPU at all (`gpu.count`)."""
    return facts["gpu.count"] != 0


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
