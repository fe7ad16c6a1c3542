"""What a search asks of the machine: run this arm, and say what came of it."""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from dynotune.measure.live import lanes
from dynotune.recipes import ON_WORKERS
from dynotune.schema.comparison import Comparison
from dynotune.schema.setting import Setting
from dynotune.schema.study import Block, BlockResult, Candidate, Estimate, Phase, Study, Trial


class Arm(msgspec.Struct, frozen=True):
    """A set of settings, at most one value a knob, sorted by knob; none is the baseline."""

    settings: tuple[Setting, ...] = ()

    @property
    def key(self) -> str:
        return " ".join(map(str, self.settings))

    @property
    def short_name(self) -> str:
        """Shorten a key for a folder: it may be longer than a file's name may be."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16] if self.settings else "baseline"


class Tested(msgspec.Struct, frozen=True, kw_only=True):
    """Result for an arm from blocks within one live run.

    Args:
        comparison: with its answer, which may be `undecided`; None if there are no blocks to judge.
        reason: why there is none, in words.
        blamed: knobs that a call of the program failed with, and went well without.
        unsuited: knobs that cannot be switched in this program.
    """

    comparison: Comparison | None = None
    reason: str = ""
    blamed: tuple[str, ...] = ()
    unsuited: tuple[str, ...] = ()


BASELINE = Arm()


def arm(settings: Iterable[Setting]) -> Arm:
    """Make an arm; a knob named twice has the last value."""
    by_knob = {setting.knob: setting for setting in settings}
    return Arm(tuple(by_knob[knob] for knob in sorted(by_knob)))


# A DataLoader without workers has nothing to prefetch: a setting of `loader.prefetch_factor` names the candidates of
# `loader.num_workers` of which an arm with it must hold one. What is needed needs nothing itself.


def needs_workers(setting: Setting) -> bool:
    """Tell whether it needs a loader with workers to mean something. Not to have persistent ones is true of none."""
    return setting.knob in ON_WORKERS and setting.value is not False


def complete(settings: Sequence[Setting], candidates: Iterable[Candidate]) -> list[Setting]:
    """Complete settings, in their order; of one that is no candidate nothing is known to be needed."""
    needed = {one.id: one.needs for one in candidates if one.needs}
    ids = set(map(str, settings))
    return [one for one in settings if str(one) not in needed or not ids.isdisjoint(needed[str(one)])]


def needed_first(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates in their order, those last that need others: what is needed needs nothing itself."""
    return sorted(candidates, key=lambda one: bool(one.needs))


def each_left_out(settings: Sequence[Setting], candidates: Sequence[Candidate]) -> dict[str, list[Setting]]:
    """Return by id of each of `settings` the others without it, and without what means nothing then."""
    gone = {str(one): [one, *dependants(str(one), settings, candidates)] for one in settings}
    return {id_: [one for one in settings if one not in out] for id_, out in gone.items()}


def dependants(id_: str, settings: Iterable[Setting], candidates: Iterable[Candidate]) -> list[Setting]:
    """Return those of these settings that mean nothing once `id_` is left out."""
    needing = {one.id for one in candidates if id_ in one.needs}
    return [setting for setting in settings if str(setting) in needing]


class Hosts(Protocol):
    """Other hosts with the same GPU, torch and code, that take blocks of a study."""

    def save(self, study: Study) -> None:
        """Keep the study as far as it is."""

    def names(self) -> list[str]:
        """Return those that are there now."""

    def run(self, host: str, block: Block, go_on: Callable[[], None]) -> BlockResult | None:
        """As `Bench.elsewhere`, of the study as it was saved last; `go_on` is called again and again meanwhile."""


class Bench(Protocol):
    """A command that can be run under any arm, on a machine or in a simulation."""

    side: lanes.SideBySide

    def all_lanes(self) -> list[lanes.Lane]:
        """Return the lanes that blocks and pairs go in, once the command as it is has had a pilot."""

    def run(self, arm: Arm, phase: Phase, block: int, lane: lanes.Lane = lanes.WHOLE) -> Trial:
        """Run a fresh process, perhaps beside others in their lanes. A pilot (block 0) warms the arm's caches alone.

        Raises:
            CannotRunHere: the machine, not the arm: the disk is full, the GPU is lost.
        """

    def plan(self) -> None:
        """Fix the window of all runs that are measured, if it is not yet fixed."""

    def elsewhere(self, block: Block, lane: lanes.Lane) -> BlockResult | None:
        """Have the lane's host run a block, or another host if that is lost; None if none is left."""

    def switch(self, arms: Sequence[Arm], limit_s: float) -> list[Estimate]:
        """Compare each arm with the baseline in turns within one process; an arm that fails has no estimate."""

    def test(self, arm: Arm, plan: Comparison, error: float, limit_s: float, first_s: float = math.inf) -> Tested:
        """Compare one arm with the baseline in blocks within one process, until that is decided.

        Args:
            plan: what is compared; `max_pairs` blocks at most.
            error: of calling what does nothing `faster` or `slower`.
            first_s: most time until the first block is whole.
        """

    def check(self, arm: Arm) -> Trial | None:
        """Return a trial with wrong results, if losses or outputs are known to differ by more than rounding."""

    def check_s(self, arm: Arm) -> float:
        """Return about how long `check` of it takes, seconds; 0 if it costs no run."""

    def run_s(self, arm: Arm) -> float:
        """Return about how long a run of the arm takes, seconds; of an arm not yet run, as the baseline."""

    def block_s(self) -> float:
        """Return about how long a block of an arm takes within one process, seconds."""

    def left_s(self) -> float:
        """Return what is left of the budget of all attempts together."""

    def add_to(self, study: Study) -> Study:
        """Add to `study` what is known of its runs besides the trials: their window, unit and step, for one."""
