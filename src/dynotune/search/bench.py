"""The interface between a search and the machine: run an arm, and return the result."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from dynotune.measure.bench import Journal
from dynotune.measure.live import lane_order, lanes
from dynotune.schema.arm import Arm
from dynotune.schema.comparison import Comparison
from dynotune.schema.facts import Facts
from dynotune.schema.setting import Setting
from dynotune.schema.study import BlockResult, Candidate, Estimate, HostBlock, Phase, Study, Trial

FIRST_LAUNCH = 2.0
"""How many times as long as later launches the first may take, which reads files from a cold disk."""


class Tested(msgspec.Struct, frozen=True, kw_only=True):
    """Result for an arm from blocks within one live run.

    Args:
        comparison: the comparison, whose verdict may be `undecided`; None if there are no blocks to judge.
        reason: why there is no comparison, in words.
        blamed: knobs with which a call of the program failed, while it succeeded without them.
        unsuited: knobs that cannot be switched in this program.
    """

    comparison: Comparison | None = None
    reason: str = ""
    blamed: tuple[str, ...] = ()
    unsuited: tuple[str, ...] = ()


# A DataLoader without workers has nothing to prefetch: a setting of `loader.prefetch_factor` names the
# candidates of `loader.num_workers` of which its arm must have one. Needed candidates need nothing
# themselves.


def complete(settings: Sequence[Setting], candidates: Iterable[Candidate]) -> list[Setting]:
    """Return the settings whose needs the others meet, in their order; a setting that is no candidate needs
    none."""
    needed = {one.id: one.needs for one in candidates if one.needs}
    ids = set(map(str, settings))
    return [one for one in settings if str(one) not in needed or not ids.isdisjoint(needed[str(one)])]


def within_cores(settings: Sequence[Setting], facts: Facts) -> list[Setting]:
    """Return the settings without threads of operators for which the loader's workers leave no cores.

    Each can help by itself, and together they take the cores from each other.
    """
    chosen = {one.knob: one.value for one in settings}
    workers, threads = chosen.get("loader.num_workers"), chosen.get("host.num_threads")
    affinity, cores = facts.get("host.affinity"), facts.get("host.num_cores")
    known = [len(affinity)] if isinstance(affinity, list) else []
    known += [cores] if isinstance(cores, int) else []
    usable = min(known, default=0)
    if not (isinstance(workers, int) and isinstance(threads, int) and usable):
        return list(settings)
    is_too_many = workers > 0 and workers + threads > usable
    return [one for one in settings if not (is_too_many and one.knob == "host.num_threads")]


def needed_first(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates in order, with candidates that need other candidates last."""
    return sorted(candidates, key=lambda one: bool(one.needs))


def each_left_out(settings: Sequence[Setting], candidates: Sequence[Candidate]) -> dict[str, list[Setting]]:
    """Return, by id of each setting, all other settings except those that are meaningless without it."""
    gone = {str(one): [one, *dependants(str(one), settings, candidates)] for one in settings}
    return {id_: [one for one in settings if one not in out] for id_, out in gone.items()}


def dependants(id_: str, settings: Iterable[Setting], candidates: Iterable[Candidate]) -> list[Setting]:
    """Return the settings that are meaningless without the setting `id_`."""
    needing = {one.id for one in candidates if id_ in one.needs}
    return [setting for setting in settings if str(setting) in needing]


class Hosts(Protocol):
    """Other hosts with the same GPU, torch and code, which run blocks of a study."""

    def save(self, study: Study) -> None:
        """Store the current state of the study."""

    def names(self) -> list[str]:
        """Return the names of the hosts that are available now."""

    def run(self, host: str, block: HostBlock, go_on: Callable[[], None]) -> BlockResult | None:
        """Run a block as `StudyBench.elsewhere`, for the study as last saved.

        `go_on` is called repeatedly meanwhile.
        """


class StudyBench(Protocol):
    """A command that can be run with the settings of any arm, on a machine or in a simulation.

    Args:
        journal: the study; the bench adds its trials, and facts about its runs, such as window, unit and
            step.
    """

    journal: Journal[Study]
    side: lane_order.SideBySide

    def all_lanes(self) -> list[lanes.Lane]:
        """Return the lanes for blocks and pairs; the baseline's pilot must have run before."""

    def run(self, arm: Arm, phase: Phase, block: int, lane: lanes.Lane = lanes.WHOLE) -> Trial:
        """Run a fresh process, perhaps beside others in their lanes, and add the trial to the journal.

        A pilot (block 0) only warms the arm's caches.

        Raises CannotRunHere: the machine failed, not the arm: the disk is full, the GPU is lost.
        """

    def plan(self) -> None:
        """Fix the timed window of all measured runs, unless the window is already fixed."""

    def elsewhere(self, block: HostBlock, lane: lanes.Lane) -> BlockResult | None:
        """Have the lane's host run a block, or, if this host is lost, another host; None if no host is
        left."""

    def compile_beside(self, arm: Arm) -> None:
        """Begin to fill the compilers' caches for an arm by a second start, if the machine has room for
        one."""

    def wait_for_compiled(self, limit_s: float) -> None:
        """Wait until that second start has ended, at most `limit_s`; then nothing runs beside any more."""

    def switch(self, arms: Sequence[Arm], limit_s: float) -> list[Estimate]:
        """Compare each arm with the baseline in turns within one process; an arm that fails has no
        estimate."""

    def test(
        self, arm: Arm, plan: Comparison, error: float, limit_s: float, first_s: float = math.inf
    ) -> Tested:
        """Compare one arm with the baseline in blocks within one process, until there is a verdict.

        Args:
            plan: the comparison; at most `max_pairs` blocks.
            error: probability of calling an arm without effect `faster` or `slower`.
            first_s: time limit for the first complete block, in seconds.
        """

    def check(self, arm: Arm) -> Trial | None:
        """Return the trial, added to the journal, of results that differ or could not be checked; else
        None."""

    def check_s(self, arm: Arm) -> float:
        """Return the approximate seconds that `check` of this arm takes; 0 if the check needs no run."""

    def run_s(self, arm: Arm) -> float:
        """Return the approximate seconds of a run of the arm; before its first run, of a run of the
        baseline."""

    def least_run_s(self) -> float:
        """Return the fewest seconds that a run of the baseline may take, by what is known so far.

        As long as the command was launched only once, this is the time of that launch over `FIRST_LAUNCH`.
        """

    def block_s(self) -> float:
        """Return the approximate seconds of a block of an arm within one process."""

    def left_s(self) -> float:
        """Return the remaining seconds of the time budget for all attempts."""
