"""What a search asks of the machine: run this arm, and say what came of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from dynotune.schema.comparison import Comparison
from dynotune.schema.setting import Setting
from dynotune.schema.study import Estimate, Guarded, Phase, Study, Trial


class Arm(msgspec.Struct, frozen=True):
    """A set of settings, at most one value a knob, sorted by knob; none is the baseline."""

    settings: tuple[Setting, ...] = ()

    @property
    def key(self) -> str:
        return " ".join(map(str, self.settings))

    @property
    def short_name(self) -> str:
        """For a folder: a key may be longer than a file's name may be."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16] if self.settings else "baseline"


class Tested(msgspec.Struct, frozen=True, kw_only=True):
    """What blocks within one live run say of an arm.

    Args:
        comparison: with its answer, which may be `undecided`; None if there are no blocks to judge.
        reason: why there is none, in words.
        blamed: knobs that a call of the program failed with, and went well without.
        unsuited: knobs that cannot be switched in this program.
        ended_program: the program ended with an error while the arm was on.
        guarded: what the arm's results were, if the program's calls told.
    """

    comparison: Comparison | None = None
    reason: str = ""
    blamed: tuple[str, ...] = ()
    unsuited: tuple[str, ...] = ()
    ended_program: bool = False
    guarded: Guarded | None = None


BASELINE = Arm()


def arm(settings: Iterable[Setting]) -> Arm:
    """Of a knob named twice, the last value."""
    by_knob = {setting.knob: setting for setting in settings}
    return Arm(tuple(by_knob[knob] for knob in sorted(by_knob)))


class Bench(Protocol):
    """A command that can be run under any arm, on a machine or in a simulation.

    The order of runs is the search's. A trial is on disk before `run` returns.
    """

    def run(self, arm: Arm, phase: Phase, block: int) -> Trial:
        """One fresh process. A pilot (block 0) warms the arm's caches; its value counts for nothing.

        What an arm does to the program is its answer, not an error: `ended` says so.

        Raises:
            CannotRunHere: the machine, not the arm: the disk is full, the GPU is lost.
        """
        ...

    def switch(self, arms: Sequence[Arm], limit_s: float) -> list[Estimate]:
        """Compare each arm with the baseline in turns within one process; the arms can change at any step.

        Returns fewer estimates than arms, or none, if that cannot be done; an arm's failure is no error.
        """
        ...

    def test(self, arm: Arm, plan: Comparison, error: float, limit_s: float, first_s: float = math.inf) -> Tested:
        """Compare one arm with the baseline in blocks within one process, until that is decided.

        Args:
            plan: what is compared; `max_pairs` blocks at most.
            error: of calling what does nothing `faster` or `slower`.
            first_s: most time until the first block is whole.
        """
        ...

    def check(self, arm: Arm) -> Trial | None:
        """A trial that ended with wrong results, where losses or outputs differ by more than rounding.

        None where they do not, or where that cannot be told. It costs runs, for each arm once.
        """
        ...

    def check_s(self, arm: Arm) -> float:
        """About how long `check` of it takes, seconds; 0 where it costs no run."""
        ...

    def run_s(self, arm: Arm) -> float:
        """About how long a run of the arm takes, seconds; of an arm not yet run, as the baseline."""
        ...

    def block_s(self) -> float:
        """About how long a block of an arm takes within one process, seconds."""
        ...

    def left_s(self) -> float:
        """Of the budget, all attempts together."""
        ...

    def add_to(self, study: Study) -> Study:
        """`study` with what is known of its runs besides the trials: their window, unit and step, for one."""
        ...
