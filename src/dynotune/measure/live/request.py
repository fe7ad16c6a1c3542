"""What a comparison is asked to do, and what a recording."""

from typing import Protocol

import msgspec

from dynotune.schema.comparison import MARGIN, MAX_PAIRS, ArmName, InProcess, Pair, Voided
from dynotune.schema.run import Objective, RunSpec
from dynotune.schema.setting import Setting


class CompareRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison to be made.

    Args:
        run: with the settings of the baseline; its `timeout_s` is for each run.
        candidate: settings of the other arm, all of them.
        budget_s: for the whole comparison; None for no limit.
        precision: go on, once a difference is shown, until its interval is as narrow as this share of it; None for
            `PRECISION` where blocks or a budget bound what that takes.
        in_process: compare within one live run: `auto` if the settings can be switched there, `only` or not at all.
    """

    run: RunSpec
    candidate: list[Setting]
    max_pairs: int = MAX_PAIRS
    margin: float = MARGIN
    budget_s: float | None = None
    precision: float | None = None
    in_process: InProcess = "never"

    def arm(self, name: ArmName) -> list[Setting]:
        return self.candidate if name == "candidate" else self.run.settings


class StartRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Starts to be timed, in blocks of one start with cold caches, one with warm and one without.

    `budget_s`: for all of it; None for no limit.
    """

    run: RunSpec
    max_blocks: int = MAX_PAIRS
    margin: float = 0.05
    budget_s: float | None = None


class RecordRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A trace to be recorded.

    Args:
        run: its `warmup_steps` come before at least; None to wait until they are steady.
        num_steps: to record; None for up to 10, fewer of slow ones.
        stacks, shapes, memory: Python's frames, the shapes of inputs, what is allocated; each makes steps slower.
    """

    run: RunSpec
    num_steps: int | None = None
    stacks: bool = False
    shapes: bool = False
    memory: bool = False


class Watcher(Protocol):
    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def running(self, what: str) -> None: ...

    def running_arm(self, arm: ArmName, *, pair: int, max_pairs: int, so_far: str = "") -> None: ...

    def finished(
        self,
        pair: Pair,
        *,
        number: int,
        max_pairs: int,
        unit: str = "sample",
        objective: Objective = "throughput",
        what: str = "pair",
    ) -> None: ...

    def voided(self, voided: Voided) -> None: ...
