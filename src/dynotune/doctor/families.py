"""Families of findings, read from families.toml."""

from typing import Literal

import msgspec

from dynotune.schema.data_file import table
from dynotune.schema.delays import DelayedPart
from dynotune.schema.diagnosis import Bottleneck

Family = Literal[
    "algorithms",
    "batches",
    "code",
    "compile",
    "distributed",
    "environment",
    "environment_variables",
    "host",
    "jitter",
    "kernels",
    "lines",
    "loader",
    "machine_gpu",
    "machine_host",
    "machine_memory",
    "memory",
    "memory_terms",
    "phases",
    "precision",
    "serving",
    "startup",
    "sync",
    "transfer",
    "work",
]
"""The subject of a rule: what its findings are about. The reference lists findings by family."""


class FamilyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of the findings of a family.

    Args:
        bottlenecks: bottlenecks of a command to which the findings belong.
        delayed: parts of a step in which the time lies that the findings claim, as delays name them. Empty
            for findings about communication, starts, the machine, or work of some steps, which no delay
            tests.
    """

    bottlenecks: tuple[Bottleneck, ...] = ()
    delayed: tuple[DelayedPart, ...] = ()


FAMILIES = table(__package__, "families.toml", dict[Family, FamilyEntry])
