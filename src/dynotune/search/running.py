"""Run the arms of a study, store every trial, and stop at the deadline."""

import math
import random
from collections.abc import Iterable, Sequence
from concurrent.futures import wait
from functools import partial

from msgspec.structs import replace

from dynotune.measure.live import Watcher, lanes
from dynotune.schema.arm import BASELINE, Arm, arm
from dynotune.schema.comparison import Comparison
from dynotune.schema.errors import CannotRunHere, RecordError
from dynotune.schema.setting import Setting
from dynotune.schema.study import (
    Candidate,
    CandidateOutcome,
    Ended,
    Estimate,
    HostBlock,
    OutcomeKind,
    Phase,
    Study,
    Trial,
)
from dynotune.search.bench import StudyBench
from dynotune.search.bounds import worth_trying
from dynotune.search.fit import Gain, counts
from dynotune.search.results import NO_TIME
from dynotune.text import words as formats

# A disturbed run is repeated at most this often; then its block continues without the run.
MOST_REPEATS = 2
LOST = "its host was lost before the block was finished"
_OUTCOMES: dict[Ended, tuple[OutcomeKind, str]] = {
    "failed": ("failed", "The command failed with it"),
    "out-of-memory": ("out-of-memory", "Memory ran out with it"),
    "rejected": ("rejected", "It did not take effect"),
    "timeout": ("failed", "The command took longer than its time limit with it"),
    "wrong-results": ("wrong-results", "Losses or outputs differ beyond the tolerance with it"),
    "unchecked": ("unchecked", "Its results could not be checked"),
    "measured": ("failed", "Its run gave no value"),
}

IN_PROGRESS: dict[Phase, str] = {
    "pilot": "first run",
    "switch": "within one run",
    "prune": "with and without each",
    "confirm": "proof",
}
"""What a user is told of the phase in progress."""


class OutOfTime(Exception):
    """Error: the next run would not end before the user's deadline."""


class Search:
    """A study in progress, whose state is in the journal of the bench."""

    def __init__(self, bench: StudyBench, watcher: Watcher) -> None:
        self.bench, self.journal = bench, bench.journal
        self.watcher = watcher
        self.best: tuple[float | None, tuple[float, float] | None] = (None, None)
        """Progress for the user: the best arm's speed-up so far, and its interval."""
        self.unswitched: set[Setting] = set()
        """Settings that this live run cannot switch, or that did not act in it; fresh runs may apply them."""

    # What is known

    @property
    def study(self) -> Study:
        return self.journal.document

    @property
    def margin(self) -> float:
        """Return the margin (difference that counts as equal) as the logarithm of a ratio."""
        return math.log1p(self.study.margin)

    def trials(self, *phases: Phase) -> list[Trial]:
        return [trial for trial in self.study.trials if trial.phase in phases]

    def alive(self) -> list[Candidate]:
        return [candidate for candidate in self.study.candidates if candidate.id not in self.study.outcomes]

    def failure(self, key: str) -> Trial | None:
        return next((trial for trial in self.study.trials if trial.arm == key and gave_nothing(trial)), None)

    def comparison(self, one: Arm, **more: object) -> Comparison:
        """Return an empty comparison of the arm with the baseline, in blocks or pairs, with the fields of
        `more`."""
        study, settings = self.study, list(one.settings)
        made = Comparison(
            id=study.id, run=study.run, candidate_settings=settings, margin=study.margin, facts=study.facts
        )
        return replace(made, **more)

    # Records

    def update(self, **changes: object) -> None:
        self.journal.update(**changes)

    def settle(self, outcomes: dict[str, CandidateOutcome]) -> None:
        if outcomes:
            self.update(outcomes={**self.study.outcomes, **outcomes})

    def estimate(self, estimates: Iterable[Estimate]) -> None:
        """Record the estimates, which replace earlier estimates of the same arms in the same phase."""
        new = {(one.arm, one.against, one.phase): one for one in estimates}
        old = {(one.arm, one.against, one.phase): one for one in self.study.estimates}
        if any(old.get(key) != one for key, one in new.items()):
            self.update(estimates=list((old | new).values()))

    def warn(self, text: str) -> None:
        if text not in self.study.warnings:
            self.update(warnings=[*self.study.warnings, text])
            self.watcher.warn(text)

    # Runs

    def run(self, one: Arm, phase: Phase, block: int, lane: lanes.Lane = lanes.WHOLE) -> Trial:
        """Run the arm once.

        Raises:
            OutOfTime: the run would not end before the deadline.
            CannotRunHere: the command as written gave no measurement.
        """
        with self.journal.lock:
            self._must_fit(self.bench.run_s(one))
            num, known = len(self.alive()), formats.so_far(*self.best)
            what = one.key or "the command as it is"
            self.watcher.running(
                f"{in_place(phase, block)}: {what} ({num} setting{'s' * (num != 1)} left)"
                f"{f'; {known}' if known else ''}",
                left_s=self.bench.left_s(),
            )
        trial = self.bench.run(one, phase, block, lane)
        if one == BASELINE and gave_nothing(trial):
            raise CannotRunHere(
                f"The command {self.study.begun} gave no measurement ({trial.ended}): "
                f"{trial.detail or 'no reason is known'}.",
                hint="Make sure that it runs by itself; then --resume goes on.",
            )
        return trial

    def pilot(self, one: Arm) -> Trial | None:
        """Warm the arm's caches, unless it has run here before; return its failed run, if it ever failed."""
        if self.failure(one.key) is None and all(
            t.arm != one.key or t.was_elsewhere for t in self.study.trials
        ):
            self.run(one, "pilot", 0)
        return self.failure(one.key)

    def check(self, one: Arm) -> Trial | None:
        """Return a trial that shows wrong or unchecked results, or a failure, of this arm; None without
        one."""
        if (failed := self.failure(one.key)) is not None:
            return failed
        if self.bench.check_s(one) > max(0.0, self.bench.left_s()):
            # Not stored: with more time, results can be checked.
            return Trial(arm=one.key, phase="pilot", block=0, ended="unchecked", detail=NO_TIME)
        return self.bench.check(one)

    def _must_fit(self, needed_s: float) -> None:
        if self.bench.left_s() < needed_s:
            raise OutOfTime

    def run_blocks(self, arms: Iterable[Arm], phase: Phase, blocks: Iterable[int]) -> None:
        """Run the remaining blocks, concurrently if lanes exist; all runs of a block are in one lane."""
        among, distinct = self.bench.all_lanes(), list(dict.fromkeys(arms))
        with self.bench.side as side:
            begun = []
            for block in blocks:
                lane = among[block % len(among)]
                begun.append(side.begin(lane, partial(self._run_block, distinct, phase, block, lane)))
            # If one block has no time for its next run, the other blocks continue.
            wait(begun)
            for one in begun:
                one.result()

    def _run_block(self, arms: Sequence[Arm], phase: Phase, block: int, lane: lanes.Lane) -> None:
        """Run the remaining arms of the block in random order. An arm that failed before is left out."""
        order = sorted(arms, key=lambda one: one.key)
        random.Random(f"{self.study.run.seed} {phase} {block}").shuffle(order)
        with self.journal.lock:
            begun = [trial for trial in self.trials(phase) if trial.block == block]
            if any(trial.was_elsewhere for trial in begun) and not all(
                self._is_done(one, begun) for one in order
            ):
                # Runs of two hosts cannot be compared.
                lost = {id(trial): replace(trial, void=trial.void or LOST) for trial in begun}
                self.update(trials=[lost.get(id(trial), trial) for trial in self.study.trials])
                begun = []
        left = [one for one in order if not self._is_done(one, begun)]
        self.in_turn(left, phase, block, lane._replace(host="") if begun else lane)

    def _is_done(self, one: Arm, runs: Iterable[Trial]) -> bool:
        mine = [trial for trial in runs if trial.arm == one.key]
        return any(map(counts, mine)) or len(mine) > MOST_REPEATS or self.failure(one.key) is not None

    def in_turn(
        self, order: Sequence[Arm], phase: Phase, block: int, lane: lanes.Lane, repeats: int = MOST_REPEATS
    ) -> None:
        """Run arms one after another on the lane's host. With `repeats` 0, a run that does not count ends the
        list."""
        if not order or (lane.host and self._elsewhere(order, phase, block, lane, repeats)):
            return
        for one in order:
            runs = [trial for trial in self.trials(phase) if (trial.arm, trial.block) == (one.key, block)]
            while not (any(map(counts, runs)) or len(runs) > repeats or (repeats and self.failure(one.key))):
                runs.append(self.run(one, phase, block, lane))
            if not repeats and (runs[-1].void or gave_nothing(runs[-1])):
                return

    def _elsewhere(
        self, order: Sequence[Arm], phase: Phase, block: int, lane: lanes.Lane, repeats: int
    ) -> bool:
        """Wait for the block from the lane's host; False if no host is left, so that the block has to run
        here.

        Raises RecordError: the result does not match the request.
        """
        attempt = sum(trial.block == block for trial in self.trials(phase))
        arms = [list(one.settings) for one in order]
        asked = HostBlock(phase=phase, number=block, arms=arms, repeats=repeats, attempt=attempt)
        with self.journal.lock:
            self.bench.plan()
        if (found := self.bench.elsewhere(asked, lane)) is None:
            return False
        places = {(one.arm, one.phase, one.block) for one in found.trials if one.was_elsewhere}
        may_be = {(one.key, *place) for one in (BASELINE, *order) for place in ((phase, block), ("pilot", 0))}
        is_begun = found.out_of_time or any(place[1] == phase for place in places)
        if not (is_begun and places <= may_be and all(one.was_elsewhere for one in found.trials)):
            raise RecordError(f"{in_place(phase, block)}: the result is not the one that was asked for.")
        with self.journal.lock:
            self.update(
                trials=[*self.study.trials, *(replace(trial, lane=lane.number) for trial in found.trials)]
            )
        if found.out_of_time:
            raise OutOfTime
        return True


def gave_nothing(trial: Trial) -> bool:
    """Return whether the arm itself failed or gave no value. A pilot needs no value."""
    has_value = trial.block == 0 or (trial.value is not None and 0 < trial.value < math.inf)
    return not trial.void and not (trial.ended == "measured" and has_value)


def in_place(phase: Phase, block: int) -> str:
    name = IN_PROGRESS[phase]
    return name if phase == "pilot" else f"{name}, round {block}"


def alone(candidate: Candidate) -> Arm:
    return arm([candidate.setting])


def in_predicted_order(work: Search) -> list[Candidate]:
    """Return the candidates without an outcome, sorted by the largest possible gain."""
    return [one for one in worth_trying(work.study) if one.id not in work.study.outcomes]


def estimate_of(key: str, against: str, phase: Phase, gain: Gain) -> Estimate:
    return Estimate(
        arm=key,
        against=against,
        phase=phase,
        speedup=gain.speedup,
        ci=gain.ci,
        num_blocks=gain.num_blocks,
        p=gain.p,
    )


def outcome_of_failure(trial: Trial) -> CandidateOutcome:
    kind, text = _OUTCOMES[trial.ended]
    return CandidateOutcome(kind, f"{text}: {trial.detail.rstrip('.')}." if trial.detail else f"{text}.")
