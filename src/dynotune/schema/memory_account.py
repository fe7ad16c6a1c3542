"""Document `memory.json`, the result of `dynotune memory`."""

import msgspec

from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import Capacity, RankMemory


class MemoryAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Account of a command's memory: terms, batches that fit, possible savings. `ranks`: ranks of the first run."""

    schema: str = "dynotune.memory/1"
    command: list[str] = []
    file: str = ""
    pretended: str = ""
    ranks: list[RankMemory]
    capacity: Capacity | Unknown = Unknown("it takes two batches: --values arg.batch=8,16")
    findings: list[Finding] = []
    notes: list[str] = []
