"""Define the requests for a comparison, for timed starts and for a recording."""

from pathlib import Path
from typing import Protocol

import msgspec

from dynotune.schema.comparison import (
    CONFIDENCE,
    MARGIN,
    MAX_PAIRS,
    ArmName,
    Drawn,
    InProcess,
    Pair,
    Spread,
    Voided,
)
from dynotune.schema.run import Objective, RunSpec
from dynotune.schema.setting import Setting
from dynotune.schema.startup import Startup
from dynotune.schema.task import MOST_RECORDED_S


class CompareRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison to make.

    Args:
        run: run with the settings of the baseline; its `timeout_s` applies to each run.
        candidate: all settings of the candidate.
        budget_s: seconds for the whole comparison; None for no limit.
        precision: after a difference is shown, continue until its interval is as narrow as this share of the
            difference; None for `PRECISION` where blocks or a budget limit the time.
        in_process: compare within one live run: `auto` if the settings can be switched there, `only`, or not
            at all.
        against: ratio with which the speed-up is compared; 1 asks whether the arms differ.
        confidence: of the verdict and the interval.
        seen: spread of earlier pairs of the same command.
    """

    run: RunSpec
    candidate: list[Setting]
    max_pairs: int = MAX_PAIRS
    margin: float = MARGIN
    budget_s: float | None = None
    precision: float | None = None
    in_process: InProcess = "never"
    against: float = 1.0
    confidence: float = CONFIDENCE
    seen: Spread | None = None

    @property
    def arms(self) -> dict[ArmName, list[Setting]]:
        return {"baseline": self.run.settings, "candidate": self.candidate}

    def arm(self, name: ArmName) -> list[Setting]:
        return self.candidate if name == "candidate" else self.run.settings


class StartRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Starts to time, in blocks of one start with cold caches, one with warm caches and one with caches off.

    `max_blocks`: 0 for one cold and one warm start alone, without an interval.
    `budget_s`: seconds for all starts; None for no limit. `against`: kept record that starts are judged
        against.
    """

    run: RunSpec
    max_blocks: int = MAX_PAIRS
    margin: float = 0.05
    budget_s: float | None = None
    against: Startup | None = None


class RecordRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A trace to record.

    Args:
        run: run whose `warmup_steps` are the fewest steps before the trace; None waits until steps are
            steady.
        num_steps: number of steps to record; None for up to 10, fewer if they are slow.
        stacks, shapes, memory: record Python's frames, shapes of inputs, and allocations; each slows steps
            down.
        brief: record as few steps as tell something, because a job that runs waits for its recording.
        most_s: seconds after which no further step is recorded, whatever `num_steps` is.
    """

    run: RunSpec
    num_steps: int | None = None
    brief: bool = False
    most_s: float = MOST_RECORDED_S
    stacks: bool = False
    shapes: bool = False
    memory: bool = False


class Watcher(Protocol):
    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def begun(self, folder: Path) -> None: ...

    def running(self, what: str, *, left_s: float | None = None) -> None: ...

    def running_arm(
        self, arm: ArmName, *, pair: int, max_pairs: int, so_far: str = "", left_s: float | None = None
    ) -> None: ...

    def finished(
        self,
        pair: Pair,
        *,
        number: int,
        max_pairs: int,
        unit: str = "sample",
        objective: Objective = "throughput",
        what: Drawn = "pair",
    ) -> None: ...

    def voided(self, voided: Voided) -> None: ...
