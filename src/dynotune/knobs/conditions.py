"""Conditions that a knob may put on the machine, each a test of one fact."""

import re
from collections.abc import Callable
from typing import NamedTuple


class Condition(NamedTuple):
    """A test of one fact; `unless` states why a knob does not apply if the test fails."""

    fact: str
    holds: Callable[[object], bool]
    unless: str


def version_of(fact: object) -> tuple[int, ...]:
    """Return the leading numbers of a version: "2.13.0+cu130" is (2, 13, 0), "9.0" is (9, 0)."""
    match = re.match(r"\d+(\.\d+)*", str(fact))
    return tuple(int(part) for part in match[0].split(".")) if match else ()


CONDITIONS = {
    "gpu": Condition("gpu.count", lambda count: count != 0, "it acts on the GPU, and none was found here"),
    "linux": Condition(
        "platform",
        lambda name: str(name).lower().startswith("linux"),
        "preloading a library works on Linux only",
    ),
    "torch 2.6": Condition(
        "torch.version",
        lambda version: version_of(version) >= (2, 6),
        "the DataLoader of torch before 2.6 cannot deliver out of order",
    ),
    "compute capability 8.0": Condition(
        "gpu.compute_capability",
        lambda capability: version_of(capability) >= (8, 0),
        "TF32 needs a GPU of compute capability 8.0 (Ampere) or newer",
    ),
}
"""Conditions that a knob may put on the machine, by their name in the catalogue."""
