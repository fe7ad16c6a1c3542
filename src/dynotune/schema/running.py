"""Document on a program that runs already: what was seen of it from outside, and what holds it up."""

from typing import Literal

import msgspec

from dynotune.schema.diagnosis import Diagnosis, Finding, NotKnown
from dynotune.schema.facts import NOT_ASKED, Facts, Unknown
from dynotune.schema.watch import ProcessView

Part = Literal["input", "host", "device", "cpu", "waiting", "unknown"]
"""The part that holds a program up. `cpu`: the program computes on the CPU; `host`: its GPU waits for its
process."""


class StackLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the user's own code that a thread was seen in.

    Args:
        place: function with file and line, `train.py(31): step`.
        thread: "main" or "worker".
        in_loader: whether the line ran inside a DataLoader.
        share: of the looks at that thread, or at all workers.
    """

    place: str
    thread: Literal["main", "worker"]
    in_loader: bool
    share: float


class Stacks(msgspec.Struct, frozen=True, kw_only=True, tag="stacks"):
    """Python stacks of the first rank, read from outside without stopping it.

    Args:
        num: looks at the main thread.
        loader_share, backward_share, optimizer_share: of these looks, those inside a DataLoader, in the
            backward pass, and in an optimizer's step.
    """

    num: int
    loader_share: float
    backward_share: float
    optimizer_share: float
    lines: list[StackLine]


class RankView(msgspec.Struct, frozen=True, kw_only=True):
    """One process that computes, with the part that holds it up.

    Args:
        rank: its number; None if its environment does not say.
        device_busy: share of the time in which a kernel ran on its GPUs; Unknown with a reason.
        processes: the process itself, then its loaders' workers.
    """

    pid: int
    rank: int | None
    part: Part
    told: str
    evidence: list[str]
    gpus: list[int]
    device_busy: float | Unknown
    processes: list[ProcessView]


class RunningDiagnosis(msgspec.Struct, frozen=True, kw_only=True, tag="running_diagnosis"):
    """Document of `dynotune diagnose --pid --json`.

    Args:
        rung: how far the program and this machine let dynotune look: 0 from outside, 1 with stacks, 3 with a
            recording.
        next_rung: what the next rung needs; "" on the last one.
        recorded: the diagnosis of steps that the program recorded of itself.
        pressure: shares of the time in which processes waited for cpu, io or memory (the kernel's PSI); of
            the program's control group if it has one.
        throttled_share: share of the time in which the CPU quota of the program's control group stopped it.
    """

    schema: str = "dynotune.running/1"
    pid: int
    command: list[str]
    part: Part
    verdict: str
    rung: int
    reached: str
    next_rung: str
    observed_s: float
    ranks: list[RankView]
    stacks: Stacks | Unknown = NOT_ASKED
    recorded: Diagnosis | Unknown = NOT_ASKED
    pressure: dict[str, float] = {}
    throttled_share: float | Unknown | None = None
    findings: list[Finding] = []
    unknown: list[NotKnown] = []
    facts: Facts = {}
    notes: list[str] = []
