"""What a comparison is asked to do."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec

from dynotune.measure.schedule import MAX_PAIRS
from dynotune.measure.stats import MARGIN
from dynotune.schema.comparison import ArmName, Caches, Pair, Voided
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

    def arm(self, name: ArmName) -> list[Setting]:
        return self.settings if name == "candidate" else self.against


class Watcher(Protocol):
    """Is told how a comparison goes on."""

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def running(self, what: str) -> None: ...

    def running_arm(self, arm: ArmName, *, pair: int, max_pairs: int) -> None: ...

    def finished(self, pair: Pair, *, number: int, max_pairs: int, unit: str = "sample") -> None: ...

    def voided(self, voided: Voided) -> None: ...
