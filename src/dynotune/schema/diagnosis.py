"""What is concluded from an observation: findings, and the documents that carry them."""

from typing import Literal

import msgspec

from dynotune.schema.attribution import Predicted, Shares
from dynotune.schema.claims import Claim
from dynotune.schema.facts import Facts, Unknown, Value
from dynotune.schema.observation import Timing
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import Place

Severity = Literal["high", "medium", "low"]
Kind = Literal["speed", "start", "jitter", "memory", "correctness", "measurement"]
Bottleneck = Literal["input", "transfer", "host", "device", "communication", "memory", "none"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Conclusion of a rule. It promises no speed-up: `compare` proves one.

    Args:
        kind: what is lost: speed of steps, time to the first one, evenness, memory, right results, right measuring.
        share: of a step, the upper bound of what its absence would save; Unknown where nothing bounds it.
        candidates: settings worth proving; `predicted`: what some of them would save of a step, by setting.
        remedy: what to change, where no setting does it, or beside it.
        commands: shell lines for an administrator; never executed.
        also: ids of more general findings that this one explains.
    """

    id: str
    severity: Severity
    kind: Kind = "speed"
    claim: str
    share: float | Unknown
    evidence: list[str] = []
    where: Place = Place()
    candidates: list[Setting] = []
    predicted: dict[str, Predicted] = {}
    remedy: str = ""
    commands: list[str] = []
    also: list[str] = []


class NotKnown(msgspec.Struct, frozen=True):
    """A rule that could not judge: `missing` is what it needed, `reason` why that is not known."""

    id: str
    missing: str
    reason: str


class UpperBound(msgspec.Struct, frozen=True, kw_only=True):
    """Bound that one part alone reaches.

    Args:
        part: "loader": its batches of a step, drawn one after another; "step": a step that is given one batch again
            and again; "both": the plain window's.
        page_cache: declared for the loader, "warm" or "cold".
    """

    part: Literal["loader", "step", "both"]
    step_s: float
    num_steps: int
    samples_per_s: float | None = None
    page_cache: str = ""
    notes: list[str] = []


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Forecast of the loader with one thing changed. Nobody has proved it: `compare` does.

    Args:
        setting: that changes it; "" where the program has to.
        loader_s: the batches of a step, drawn one after another.
        step_s: a step; `least_step_s`: no step can be shorter.
    """

    change: str
    setting: str = ""
    loader_s: float
    step_s: float
    least_step_s: float
    note: str = ""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True, tag="diagnosis"):
    """Document of `dynotune diagnose --json`."""

    schema: str = "dynotune.diagnosis/2"
    command: list[str]
    verdict: str
    bottleneck: Bottleneck
    shares: Shares | Unknown
    findings: list[Finding]
    unknown: list[NotKnown]
    steps: Timing | Unknown
    busy_share: float | None = None
    upper_bounds: list[UpperBound] | Unknown = Unknown("not asked for")
    forecasts: list[Forecast] | Unknown = Unknown("not asked for")
    facts: Facts = {}
    notes: list[str] = []


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A fact in which two machines differ. `matters`: why it can; "" where it is only another name."""

    fact: str
    here: Value | Unknown
    there: Value | Unknown
    matters: str = ""


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """Document of `dynotune doctor --json`: machine and environment alone.

    Args:
        differences: from another machine; None where none was given.
        claims: advice whose traces were seen, with what is so.
    """

    schema: str = "dynotune.examination/2"
    findings: list[Finding]
    unknown: list[NotKnown]
    facts: Facts
    differences: list[Difference] | None = None
    claims: list[Claim] = []
    notes: list[str] = []
