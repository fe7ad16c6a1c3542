"""Conclusions from an observation: findings, and the documents that contain them."""

from typing import Literal, get_args

import msgspec

from dynotune.schema.account import RunAccount
from dynotune.schema.attribution import Predicted, Shares
from dynotune.schema.claims import Claim
from dynotune.schema.delays import DelayedPart, DelayTests
from dynotune.schema.facts import NOT_ASKED, Facts, Unknown, Value
from dynotune.schema.memory import Capacity, RankMemory
from dynotune.schema.setting import Setting
from dynotune.schema.timing import Timing
from dynotune.schema.trace_summary import Place

Severity = Literal["high", "medium", "low"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""Severities from the worst to the mildest."""
Kind = Literal["speed", "start", "jitter", "memory", "correctness", "measurement"]
Bottleneck = Literal["input", "transfer", "host", "device", "communication", "memory", "none"]


class _Tested(msgspec.Struct, frozen=True, kw_only=True, tag_field="how"):
    pass


class Switched(_Tested, frozen=True, kw_only=True, tag="switched"):
    """The finding's candidate was switched on and off in blocks.

    `arm`: the settings, as text. `speedup`: time without the candidate over time with it. `ci`: its interval
        at 95%.
    """

    arm: str
    speedup: float
    ci: tuple[float, float] | None
    num_blocks: int


class Delayed(_Tested, frozen=True, kw_only=True, tag="delayed"):
    """The part or place that the finding blames was delayed.

    Args:
        part, place, slope, ci: as in `DelayTest`.
        cost: the slope times the share of a step that the finding claims; None if it claims no share.
        tests_cause: whether the delay was of what the finding names. A delay of a whole part shows only that
            the part's time counts, and not which cause takes it.
    """

    part: DelayedPart
    place: str = ""
    slope: float
    ci: tuple[float, float]
    cost: float | None = None
    tests_cause: bool = True


class ReadFromTrace(_Tested, frozen=True, kw_only=True, tag="trace"):
    """No test reached the finding: it is read from the trace, the plain window, and other facts."""


Tested = Switched | Delayed | ReadFromTrace
"""How a finding was tested."""


class OwnOption(msgspec.Struct, frozen=True, kw_only=True):
    """An option of the program itself that does what a finding asks for. dynotune never gives it unasked.

    Args:
        value: the value to give; None for a larger one, and for a switch to leave out.
        words: what to add to the command, in place of the same option if the command has it.
        now: its present value; None if it has none.
        leave_out: whether the switch has to be left out of the command.
    """

    name: str
    value: str | None = None
    words: list[str] = []
    now: str | None = None
    leave_out: bool = False


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The conclusion of a rule. A finding promises no speed-up; only `compare` proves a speed-up.

    Args:
        kind: the harm: to speed of steps, time to the first step, evenness, memory, results, or measurements.
        share: upper bound of the share of a step that removing the cause saves; Unknown without a bound.
        candidates: settings worth testing; `predicted`: the predicted saving of some candidates, by setting.
        remedy: the change to make in the program, if no setting helps or in addition to a setting.
        commands: shell lines for an administrator; dynotune never executes them.
        needs_root: whether a line of `commands` needs the rights of an administrator.
        sysctls: the kernel's settings that `commands` set, by name.
        also: ids of more general findings that this finding explains.
        option: an option of the program that does what the remedy asks for; the remedy names it, too.
        tested: how a finding about speed was tested; None for other kinds, and without a run of the command.
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
    needs_root: bool = False
    sysctls: dict[str, str] = {}
    also: list[str] = []
    option: OwnOption | None = None
    tested: Tested | None = None


class NotKnown(msgspec.Struct, frozen=True):
    """A rule without a conclusion: `missing` is the fact that the rule needed, `reason` why the fact is not
    known."""

    id: str
    missing: str
    reason: str


class UpperBound(msgspec.Struct, frozen=True, kw_only=True):
    """The step time that the loader alone, or the computation alone, would reach.

    Args:
        part: "loader": a step's batches, drawn one after another; "step": a step that gets the same batch
            each time; "both": a step of the plain window.
        page_cache: whether the loader was timed with its files in the page cache ("warm") or not ("cold").
    """

    part: Literal["loader", "step", "both"]
    step_s: float
    num_steps: int
    samples_per_s: float | None = None
    page_cache: str = ""
    notes: list[str] = []


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Forecast of the step time after one change of the loader. A forecast proves no gain; `compare` does.

    Args:
        setting: the setting that makes the change; "" if the program has to be changed.
        loader_s: seconds to draw a step's batches, one after another.
        step_s: predicted seconds of a step; `least_step_s`: lower bound of the seconds of a step.
    """

    change: str
    setting: str = ""
    loader_s: float
    step_s: float
    least_step_s: float
    note: str = ""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True, tag="diagnosis"):
    """Document of `dynotune diagnose --json`.

    Args:
        refuted: findings whose part was delayed without an answer of the step, so that their cure saves
            nothing now.
        account: where the time went from the launch to the timed steps.
        disturbance: what disturbed the window from outside, such as "others used 47% of the cores"; "" if
            nothing is known to have disturbed it. The verdict says so, too.
    """

    schema: str = "dynotune.diagnosis/2"
    command: list[str]
    verdict: str
    bottleneck: Bottleneck
    shares: Shares | Unknown
    findings: list[Finding]
    refuted: list[Finding] = []
    unknown: list[NotKnown]
    steps: Timing | Unknown
    busy_share: float | None = None
    upper_bounds: list[UpperBound] | Unknown = NOT_ASKED
    forecasts: list[Forecast] | Unknown = NOT_ASKED
    delay_tests: DelayTests | Unknown = NOT_ASKED
    account: RunAccount | Unknown = NOT_ASKED
    facts: Facts = {}
    notes: list[str] = []
    disturbance: str = ""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A fact in which two machines differ. `matters`: why the difference can matter; "" if no reason is
    known."""

    fact: str
    here: Value | Unknown
    there: Value | Unknown
    matters: str = ""


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """Document of `dynotune doctor --json`, about the machine and the environment only.

    Args:
        differences: differences from another machine; None if no other machine was given.
        claims: common advice that was followed on this machine (its traces were found), with the facts.
    """

    schema: str = "dynotune.examination/2"
    findings: list[Finding]
    unknown: list[NotKnown]
    facts: Facts
    differences: list[Difference] | None = None
    claims: list[Claim] = []
    notes: list[str] = []


class MemoryAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Account of a command's memory: terms, batches that fit, possible savings. `ranks`: ranks of the first
    run."""

    schema: str = "dynotune.memory/1"
    command: list[str] = []
    file: str = ""
    pretended: str = ""
    ranks: list[RankMemory]
    capacity: Capacity | Unknown = Unknown("it takes two batches: --values arg.batch=8,16")
    findings: list[Finding] = []
    notes: list[str] = []
