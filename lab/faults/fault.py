"""What is said of a program that carries a fault."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Fault:
    """A program in programs/ and what it plants.

    `devices`: cpu, cuda, or cuda-x2 (two GPUs; the program is still given `--device cuda`). `doses`: the
    shares of the step, in percent, that the fault is to cost; 1 says that the fault is there but that no cost
    is claimed. Dose 0, the twin, is never listed. `env` belongs to the fault: it is set at every dose but 0.
    `args` and `launcher` belong to the program: they stay the same at dose 0. `implies`: other ids that are
    true of the program by its nature.
    """

    id: str
    program: str
    devices: tuple[str, ...]
    doses: tuple[int, ...]
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    launcher: tuple[str, ...] = ()
    implies: tuple[str, ...] = ()
    plants: tuple[str, ...] = ()
    kind: Literal["training", "inference"] = "training"
    notes: str = ""
