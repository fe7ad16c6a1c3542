"""Gather an observation in one live run: machine facts, a plain window, recorded steps, and further
measurements."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import msgspec

from dynotune import probe
from dynotune.diagnose.delayed import tested
from dynotune.diagnose.forecast import forecast_loader
from dynotune.diagnose.fresh_caches import fresh_caches
from dynotune.diagnose.memory_runs import recorded_memory
from dynotune.diagnose.object_growth import counted
from dynotune.diagnose.profiled import profiled
from dynotune.diagnose.rank_attribution import attributed
from dynotune.diagnose.upper_bounds import find_upper_bounds
from dynotune.diagnose.window import PlainWindow, exact_window
from dynotune.measure.account import account
from dynotune.measure.live import Join, TaskRunner, Watcher, checked_facts, machine_lock
from dynotune.schema import document
from dynotune.schema.account import RunAccount
from dynotune.schema.attribution import Attribution
from dynotune.schema.diagnosis import UpperBound
from dynotune.schema.errors import CannotRunHere, CommandFailed, DynotuneError, TooFewSteps
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.memory import RankMemory
from dynotune.schema.observation import WHOLE_RUN, Observation, ProcessState
from dynotune.schema.run import RunSpec
from dynotune.schema.task import MOST_RECORDED_S

OBSERVATION_FILE = "observation.json"
OLDEST_TORCH = (2, 4)
USUAL_START_S, USUAL_RECORDING_S, USUAL_DELAYS_S = 15.0, 5.0, 10.0
"""Seconds that most commands take to steady steps and for their window, a recording, and delays. The bar of
progress counts on them."""
SHARE_S = 100.0
"""Seconds that measurements take at most, from the first step on: whoever asks has three minutes."""
NO_TIME = Unknown("the diagnosis had taken its share of the time")
NOT_COUNTED = Unknown("to list all objects of Python stops the program, which was running already")
OF_WAITING = 0.5
"""Share of the time for measurements in which steps may become steady; then they are timed as they are."""
LEAST_LEFT = 0.2
"""Share of the time for measurements that is left for recording, however long the start took."""
MACHINE_S = 20.0
"""Time limit in seconds: the target imports torch to report its build, which takes long if its disk is
cold."""


class Joining(NamedTuple):
    """How to join a program that runs already, and the facts of its environment."""

    join: Join
    facts: Facts


class LiveDiagnosis:
    """One live run of a command. The run is timed, then recorded, and goes on for further measurements.

    This context manager waits until no other dynotune measures, and ends the command on exit.

    Args:
        limit_s: time limit in seconds for each start of the command; None for `run.timeout_s` or `LIMIT_S`.
        share_s: seconds that all measurements shall take; a start that takes longer leaves each of them some
            seconds.
        counts_start: whether these seconds count from the start of the command, or else from its first step.
        joined: joins a program that runs already in place of a start, with the facts of its environment.

    Raises:
        UsageError: the settings or step numbers do not exist, or do not fit together.
        CommandFailed: the command ended with an error before a window was timed.
        CannotRunHere: the command's torch is missing or too old, or the command made no steps or too few.
    """

    def __init__(
        self,
        run: RunSpec,
        watcher: Watcher,
        *,
        limit_s: float | None = None,
        share_s: float = SHARE_S,
        counts_start: bool = False,
        joined: Joining | None = None,
    ) -> None:
        self.run, self._watcher, self._joined = run, watcher, joined
        self._share_s, self._counts_start, self._began_s = share_s, counts_start, time.monotonic()
        self._leave = ExitStack()
        facts = checked_facts(run, run.window_steps, watcher)
        self.runner = TaskRunner(
            run,
            watcher,
            facts=facts,
            label="the observed run",
            limit_s=limit_s,
            observe=True,
            join=joined and joined.join,
        )
        self.runner.restless_s = min(self.runner.restless_s, share_s * OF_WAITING)
        self._processes: Sequence[ProcessState] = []

    def __enter__(self) -> LiveDiagnosis:
        if self._joined is None:
            self._leave.enter_context(machine_lock(self.run, self._watcher))
        self._leave.enter_context(self.runner)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave.__exit__(kind, error, trace)

    def observe(self, *, delays: bool = False) -> tuple[Observation, Path]:
        """Time a window, record the steps after it, and write the observation to a file.

        Args:
            delays: also delay parts of the steps, to see which ones a step waits for.

        Returns:
            The observation and its file, from which the diagnosis can be repeated on any machine.
        """
        run, watcher = self.run, self._watcher
        after_s = USUAL_RECORDING_S + (USUAL_DELAYS_S if delays else 0.0)
        # Within a study, the budget of the study says when all ends.
        usual_s = None if self._counts_start else USUAL_START_S + after_s
        watcher.running("the command, until its steps are steady", left_s=usual_s)
        self.runner.start(exact_window(run))
        facts = self._facts() if self._joined is None else self._joined.facts
        refuse_torch(facts)
        try:
            plain = PlainWindow(run, self.runner).seen()
        except CommandFailed as error:
            raise _without_torch(facts, error) or error from error
        self._processes = plain.processes
        if not self._counts_start:
            self._began_s += _start_s(plain.processes)
        if run.window_steps is not None:
            self._began_s += plain.end_s - plain.begin_s  # asked for, however long it takes
        begin_s, end_s = plain.begin_s, plain.end_s
        watched = probe.over(plain.samples, begin_s, end_s) if begin_s < end_s else {}
        whole = {} if self.runner.whole_s is None else {WHOLE_RUN: self.runner.whole_s}
        watcher.running("a few recorded steps", left_s=None if self._counts_start else after_s)
        is_joined = self._joined is not None
        recorded = profiled(self.runner, run, watcher, self._most_recorded_s(), brief=is_joined)
        trace = recorded if isinstance(recorded, Unknown) else recorded.summary
        memory = self._memory(plain.processes)
        observation = Observation(
            command=run.command,
            facts={**facts, **watched, **fresh_caches(plain.processes), **whole},
            processes=plain.processes,
            trace=trace,
            attribution=attributed(
                plain.processes, trace, [] if isinstance(recorded, Unknown) else recorded.timelines
            ),
            memory=memory,
            account=self._account(begin_s),
            notes=plain.notes,
        )
        if delays and not self.has_time:
            observation = msgspec.structs.replace(observation, delays=NO_TIME)
        elif delays:
            watcher.running("steps with delays, to see what they wait for", left_s=USUAL_DELAYS_S)
            observation = msgspec.structs.replace(observation, delays=tested(self.runner, observation))
        if self._joined is not None:
            observation = msgspec.structs.replace(observation, objects=NOT_COUNTED)
        elif self.has_time:
            observation = msgspec.structs.replace(observation, objects=counted(self.runner, observation))
        path = plain.folder / OBSERVATION_FILE
        document.write(path, observation)
        if self.runner.live is not None:
            self.runner.live.save()
        return observation, path

    def _account(self, until_s: float) -> RunAccount | Unknown:
        """Account for the time from the launch to the plain window, from which on tasks change what a run
        takes."""
        if self._joined is not None:
            return Unknown("the program was joined after its start")
        outcome = self.runner.outcome()
        if not outcome.launched_s < until_s:
            return Unknown("the steps were timed from the launch on")
        return account(
            outcome.all_records, outcome.launched_s, until_s, command=self.run.command, is_whole=False
        )

    def _facts(self) -> Facts:
        """Return the facts of machine and target; the probe imports the target's torch while the program
        imports its own."""
        run = self.run
        python = probe.interpreter(run.command, run.env, run.cwd)
        return probe.machine(run.env, python=python, cwd=run.cwd, deadline_s=MACHINE_S)

    def _most_recorded_s(self) -> float:
        """Return the most seconds of a recording, of which there may be a second one, without stacks."""
        left_s = self._share_s - (time.monotonic() - self._began_s)
        return min(MOST_RECORDED_S, max(left_s, self._share_s * LEAST_LEFT) / 2)

    @property
    def has_time(self) -> bool:
        """Tell whether the measurements have taken less than their share of the time."""
        return time.monotonic() - self._began_s < self._share_s

    def _memory(self, processes: Sequence[ProcessState]) -> list[RankMemory] | Unknown:
        """Return the device memory of the program, if the program runs for long enough."""
        if not self.runner.goes_on or not any(process.allocators for process in processes):
            return Unknown("the program has no device memory, or had ended")
        if not self.has_time:
            return NO_TIME
        try:
            return [rank for rank, _ in recorded_memory(self.runner, self.run)]
        except DynotuneError as error:
            return Unknown(error.message)

    def isolate_loader(self) -> list[UpperBound] | Unknown:
        if not self._processes:
            return Unknown("no process of the command made steps")
        timing = self._processes[0].timing
        if isinstance(timing, Unknown):
            return timing
        return find_upper_bounds(self.runner, self.run, self._watcher, timing)

    def end(self) -> None:
        self.runner.end()


def _start_s(processes: Sequence[ProcessState]) -> float:
    """Return the seconds to the first step of the process that came to it last."""
    timings = [process.timing for process in processes]
    known = [timing.time_to_first_step_s for timing in timings if not isinstance(timing, Unknown)]
    return max(filter(None, known), default=0.0)


def observed(
    run: RunSpec, watcher: Watcher, *, isolate_loader: bool = False, delays: bool = False
) -> tuple[Observation, Path, dict[str, Any]]:
    """Observe a command and take the further measurements; if it trains too briefly, observe its inference
    phase.

    Returns:
        The observation, its file, and the other arguments of `conclude`.

    Raises DynotuneError: see `LiveDiagnosis`.
    """
    beside: dict[str, Any] = {}

    def observe(run: RunSpec) -> tuple[Observation, Path, dict[str, Any]]:
        with LiveDiagnosis(run, watcher) as live:
            observation, path = live.observe(delays=delays)
            if isolate_loader:
                bounds = beside["upper_bounds"] = live.isolate_loader()
                beside["forecasts"] = forecast_loader(run, observation, bounds)
            live.end()
        return observation, path, beside

    try:
        return observe(run)
    except TooFewSteps as error:
        if run.phase is not None or run.step_function is not None:
            raise
        watcher.warn(f"{error.message} It is run once more without training (--phase inference).")
        try:
            return observe(msgspec.structs.replace(run, phase="inference"))
        except DynotuneError:
            raise error from None


def gather(run: RunSpec, watcher: Watcher) -> tuple[Observation, Path]:
    """Observe as `LiveDiagnosis.observe` does, and end the command."""
    with LiveDiagnosis(run, watcher) as live:
        found = live.observe()
        live.end()
    return found


def refuse_torch(facts: Facts) -> None:
    """Refuse a torch that is known to be too old for the agent. Raises CannotRunHere: this torch is too
    old."""
    version = facts.get("torch.version")
    if not isinstance(version, str):
        return
    numbers = version.split("+")[0].split(".")[:2]
    if all(number.isdigit() for number in numbers) and tuple(map(int, numbers)) < OLDEST_TORCH:
        raise CannotRunHere(
            f"The command's torch is {version}; watching it takes {'.'.join(map(str, OLDEST_TORCH))} or "
            "newer.",
            hint="dynotune doctor looks at machine and environment with any torch.",
        )


def _without_torch(facts: Facts, error: CommandFailed) -> CannotRunHere | None:
    """Return an error that says that torch is missing, if the command failed for that reason."""
    version = facts.get("torch.version")
    missing = any("No module named 'torch'" in line for line in error.last_lines)
    if not missing or not isinstance(version, Unknown):
        return None
    return CannotRunHere(
        f"The command failed as it has no torch: {version.reason}.",
        hint="Install torch there, or name another interpreter in the command. dynotune doctor needs none.",
    )


def replayed(path: Path) -> Observation:
    """Read an observation from a file, and add an attribution if it has none.

    Raises RecordError: the file cannot be read, or holds no observation.
    """
    observation = document.read(path, Observation)
    known = isinstance(observation.attribution, Attribution)
    if known or isinstance(observation.processes, Unknown) or isinstance(observation.trace, Unknown):
        return observation
    found = attributed(observation.processes, observation.trace)
    return msgspec.structs.replace(observation, attribution=found)
