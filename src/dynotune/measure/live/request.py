"""What a comparison is asked to do, and what a recording."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec

from dynotune.schema.comparison import MARGIN, MAX_PAIRS, ArmName, Caches, Objective, Pair, Voided
from dynotune.schema.setting import Setting


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison to be made.

    Args:
        settings: of the candidate; `against`: of the baseline.
        env: what the command inherits.
        base: folder that the comparison's own folder is made in.
        warmup_steps, window_steps: given by the user; None to find them by pilots.
        timeout_s: for each run; None for a limit from what the pilots took.
        budget_s: for the whole comparison; None for no limit.
        objective: what is compared; lower is better of all of them.
        ready_on: a line of the command's output that ends its start, where no step can be seen.
    """

    command: list[str]
    settings: list[Setting]
    against: list[Setting] = []
    cwd: Path
    env: dict[str, str]
    base: Path
    warmup_steps: int | None = None
    window_steps: int | None = None
    max_pairs: int = MAX_PAIRS
    margin: float = MARGIN
    timeout_s: float | None = None
    budget_s: float | None = None
    step_on: str | None = None
    seed: int = 0
    caches: Caches = "warm"
    sandbox: bool = True
    lock: bool = True
    finish: bool = False
    objective: Objective = "throughput"
    ready_on: str | None = None

    def arm(self, name: ArmName) -> list[Setting]:
        return self.settings if name == "candidate" else self.against


class RecordRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A trace to be recorded.

    Args:
        env: what the command inherits.
        base: folder that the run's own folder is made in.
        num_steps: to record; None for up to 10, fewer of slow ones.
        warmup_steps: that come before at least; None to wait until they are steady.
        stacks, shapes, memory: Python's frames, the shapes of inputs, what is allocated; each makes steps slower.
        timeout_s: for a run of the command; None for 15 minutes.
        finish: let the command run to its own end.
    """

    command: list[str]
    cwd: Path
    env: dict[str, str]
    base: Path
    settings: list[Setting] = []
    num_steps: int | None = None
    warmup_steps: int | None = None
    stacks: bool = False
    shapes: bool = False
    memory: bool = False
    timeout_s: float | None = None
    step_on: str | None = None
    sandbox: bool = True
    lock: bool = True
    finish: bool = False


class Watcher(Protocol):
    """Is told how a comparison, or a recording, goes on."""

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def running(self, what: str) -> None: ...

    def running_arm(self, arm: ArmName, *, pair: int, max_pairs: int) -> None: ...

    def finished(
        self, pair: Pair, *, number: int, max_pairs: int, unit: str = "sample", objective: Objective = "throughput"
    ) -> None: ...

    def voided(self, voided: Voided) -> None: ...
