"""The plain window of a live run: where it begins, how many steps it holds, and its results.

Nothing records, and the device is synchronised only at the window's two ends.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dynotune import probe
from dynotune.launch.records import (
    ALLOCATED,
    COMPILED,
    EPOCH,
    Record,
    failed_parts,
    state_of_process,
    with_loading,
)
from dynotune.measure.live import (
    TaskRunner,
    cautions,
    placement,
    readiness,
    refuse_failed,
    refuse_rejected,
    window_plan,
)
from dynotune.schema.errors import CannotRunHere, TooFewSteps
from dynotune.schema.events import Window
from dynotune.schema.observation import ProcessState
from dynotune.schema.run import Run, RunSpec
from dynotune.schema.task import TimeWindow
from dynotune.text import words

# A window of five seconds contains work of every few steps as often as the whole run does. With fewer than a
# hundred steps, there is no slowest hundredth. Of slow steps, a diagnosis waits for ten seconds at most.
SHORTEST_S, LONGEST_S = 2.0, 10.0
ENOUGH_STEPS, ENOUGH_S = 100, 5.0
USUAL_STEPS, FEWEST_STEPS = 30, 3
RECENT_STEPS, TURN_STEPS = 100, 20
# A program that spends most of its time in rare steps, such as those with a validation, is diagnosed with one
# of them.
RARE, MOST_IS_RARE, LONGEST_WITH_RARE_S = 5.0, 0.5, 30.0
FIRST_STEPS = 3


def window_from_now(records: Sequence[Record], request: RunSpec) -> TimeWindow:
    """Place the window a few steps ahead, at the same step in all ranks.

    The window spans whole epochs if these are short; otherwise it avoids the begin of an epoch if possible.
    """
    record = records[0]
    num_steps = request.window_steps or window_steps(record)
    step = placement.earliest(records)
    return TimeWindow(at_step=placement.past_epoch_begin(record, step, num_steps), num_steps=num_steps)


def window_within(record: Record, request: RunSpec) -> TimeWindow:
    """Place the window of a command that makes no more steps than `record` has.

    Raises TooFewSteps: the command makes too few steps for the window.
    """
    num, first = len(record.steps), window_plan.num_steps_to_find(record) + window_plan.ROOM_STEPS
    # One step is left over, since the number of steps of two runs may differ by one.
    room = num - first - 1
    wanted = max(first, request.warmup_steps or readiness.steady_steps(record) or num // 2)
    num_steps = request.window_steps or max(FEWEST_STEPS, min(window_steps(record), num - wanted - 1))
    if room < num_steps:
        raise TooFewSteps(num, num_steps, first + 1, fewer="--steps" * (num_steps > FEWEST_STEPS))
    return TimeWindow(at_step=min(wanted, num - num_steps - 1), num_steps=num_steps)


def window_steps(record: Record) -> int:
    """Choose the number of steps in the window, from the steps made so far."""
    length = window_plan.epoch_steps([record])
    step_s = _mean_step_s(record, length)
    num = max(USUAL_STEPS, math.ceil(SHORTEST_S / step_s))
    if num < ENOUGH_STEPS and ENOUGH_STEPS * step_s <= ENOUGH_S:
        num = ENOUGH_STEPS
    most = max(FEWEST_STEPS, math.floor(LONGEST_S / step_s), _steps_to_a_rare_one(record))
    num = min(num, most)
    if length is None or length > most:
        return num
    # Events that occur once an epoch then count in their true proportion.
    return min(math.ceil(num / length), max(most // length, math.ceil(FEWEST_STEPS / length))) * length


def _steps_to_a_rare_one(record: Record) -> int:
    """Return the number of steps that hold a rare long one, if such steps take most of the time; 0 if none
    do.

    The first steps are left out, since they compile and fill caches. A step that is too long to wait for
    counts for none.
    """
    times = record.step_s[FIRST_STEPS:]
    usual_s = statistics.median(times) if times else 0.0
    rare = [at for at, took_s in enumerate(times) if took_s > RARE * usual_s]
    if not rare or sum(times[at] for at in rare) < MOST_IS_RARE * sum(times):
        return 0
    period = max(later - earlier for earlier, later in itertools.pairwise([-FIRST_STEPS, *rare]))
    num = period + 1
    return num if max(times[at] for at in rare) + num * usual_s <= LONGEST_WITH_RARE_S else 0


def _mean_step_s(record: Record, length: int | None) -> float:
    """Return the mean of recent steps without the warm-up, whose compilations and first batches shorten the
    window.

    If the epoch length is known, whole epochs are averaged, which include the cost of an epoch's begin.
    Otherwise the middle one of several groups of steps is taken: other programs may have slowed a group down.
    """
    made = record.step_s
    if length is not None and len(made) >= length:
        recent = made[-max(RECENT_STEPS, length) :]
        return max(statistics.fmean(recent[-(len(recent) // length * length) :]), 1e-6)
    recent = made[readiness.steady_steps(record) or 0 :][-RECENT_STEPS:]
    turns = [recent[max(0, end - TURN_STEPS) : end] for end in range(len(recent), 0, -TURN_STEPS)]
    whole = [turn for turn in turns if len(turn) == TURN_STEPS] or turns
    return max(statistics.median(map(statistics.fmean, whole)), 1e-6)


def restlessness(record: Record, step: int) -> str:
    recent = record.step_s[max(0, step - RECENT_STEPS) : step]
    flags = [row.flags for row in record.steps[max(0, step - RECENT_STEPS) : step]]
    seen = [
        f"in {num} {what}"
        for num, what in (
            (sum(bool(flag & COMPILED) for flag in flags), "something was compiled"),
            (sum(bool(flag & ALLOCATED) for flag in flags), "device memory was allocated"),
            (sum(bool(flag & EPOCH) for flag in flags), "an epoch began"),
        )
        if num
    ]
    low, high = min(recent), max(recent)
    return (
        f"The steps had not become steady when they were timed: the last {len(recent)} before took "
        f"{words.duration(low)} to {words.duration(high)}" + (f"; {', '.join(seen)}." if seen else ".")
    )


class PlainRun(msgspec.Struct, frozen=True, kw_only=True):
    """Results of the plain window.

    Args:
        folder: the run's folder.
        processes: the processes that make steps, in the order of ranks.
        samples: of the machine during the run; `begin_s`, `end_s`: the window of all ranks, on the samples'
            clock.
        notes: warnings about this window.
    """

    folder: Path
    run: Run
    processes: list[ProcessState]
    samples: list[probe.Sample]
    begin_s: float
    end_s: float
    notes: list[str]


def exact_window(run: RunSpec) -> list[TimeWindow]:
    """Return the window whose steps the user gave exactly, so that it is planned from the start; none
    otherwise."""
    if run.warmup_steps is None or run.window_steps is None:
        return []
    return [TimeWindow(at_step=run.warmup_steps, num_steps=run.window_steps)]


class PlainWindow:
    """The timed window of a live run that `runner` started with `exact_window`, and the state of the program
    in it.

    Raises:
        CommandFailed: the command ended with an error.
        CannotRunHere: the command made no step, made too few steps, or took longer than its limit.
    """

    def __init__(self, run: RunSpec, runner: TaskRunner) -> None:
        self._run, self._runner = run, runner
        exact = exact_window(run)
        self._asked: TimeWindow | None = exact[0] if exact else None
        answer = runner.planned() if exact else runner.do(self._from_now, self._within, what="timed")
        self.outcome = runner.outcome()
        if answer.reason or not answer.events:
            self._refuse()
        refuse_rejected(self.outcome, "in the observed run")

    def _from_now(self, records: Sequence[Record]) -> TimeWindow:
        self._asked = window_from_now(records, self._run)
        return self._asked

    def _within(self, record: Record) -> TimeWindow:
        self._asked = window_within(record, self._run)
        return self._asked

    @property
    def _timed(self) -> list[Record]:
        records = [record for record in self.outcome.records if record.last(Window) is not None]
        return sorted(records, key=lambda record: record.rank or 0)

    def _refuse(self) -> None:
        assert self._runner.launch is not None
        refuse_failed(self.outcome, self._runner.launch, self._runner.limit_s)
        asked, before = self._asked, "they were steady"
        if asked is not None:
            before = f"{asked.num_steps} steps after {asked.at_step} of warm-up were timed"
        raise CannotRunHere(
            f"The command ended by itself after {self.outcome.num_steps} steps, before {before}.",
            hint=(
                "Let it run longer (more epochs, more data), or ask for a shorter window with --warmup "
                "and --steps."
            ),
        )

    def seen(self) -> PlainRun:
        """Return the window's results; call this before the program gets another task."""
        outcome, windows = self.outcome, self.outcome.windows
        begin_s, end_s = min(window.begin_s for window in windows), max(window.end_s for window in windows)
        assert self._runner.live is not None
        return PlainRun(
            folder=outcome.folder,
            run=outcome.run,
            processes=[self._state(record) for record in self._timed],
            samples=self._runner.live.samples,
            begin_s=begin_s,
            end_s=end_s,
            notes=self._notes(),
        )

    def _state(self, record: Record) -> ProcessState:
        """Return the state of one process, with the times that its workers reported for making batches."""
        outcome = self.outcome
        others = [one for one in outcome.all_records if one is not record]
        found = state_of_process(record, outcome.launched_s, steady=self._runner.steady, others=others)
        # A program that replaces itself (exec) has several records under one process id.
        timed = (each.window for each in outcome.run.processes if each.pid == record.pid)
        window = next((window for window in timed if window is not None), None)
        if window is None:
            return found
        loaders = with_loading(found.loaders, found.pid, outcome.all_records, window.begin_s, window.end_s)
        return msgspec.structs.replace(found, loaders=loaders)

    def _notes(self) -> list[str]:
        outcome, asked = self.outcome, self._asked
        found = []
        if not self._runner.steady:
            found.append(
                restlessness(outcome.records[0], min(window.first_step for window in outcome.windows))
            )
        if asked is not None and any(window.first_step != asked.at_step for window in outcome.windows):
            found.append("The window began later than it should have: ranks may have timed different steps.")
        found += [
            f"Could not be looked at: {what}" for record in self._timed for what in failed_parts(record)
        ]
        return found + cautions.of_run(outcome, self._runner.limit_s)
