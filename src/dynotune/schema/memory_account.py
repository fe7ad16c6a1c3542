"""`memory.json`, the answer of `dynotune memory`."""

from __future__ import annotations

import msgspec

from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import Capacity, Processes, RankMemory

NOT_TIMED = Unknown("it takes runs of one and of two at once: --processes")


class MemoryAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Where the memory of a command goes, what fits, and what would save memory.

    Args:
        ranks: of the first run, in the order of ranks.
    """

    schema: str = "dynotune.memory/1"
    command: list[str]
    ranks: list[RankMemory]
    capacity: Capacity | Unknown = Unknown("one batch was run; a second one (--values) or --slice predicts others")
    processes: Processes | Unknown = NOT_TIMED
    findings: list[Finding] = []
    notes: list[str] = []
