"""The plain window of a live run: nothing records, and the device is synchronised only at the window's two ends."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from dynotune import probe
from dynotune.diagnose.window import restlessness, window_from_now, window_within
from dynotune.launch.records import Record, failed_parts, state_of_process, with_loading
from dynotune.measure.live import TaskRunner, cautions, refuse_failed, refuse_rejected
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.observation import ProcessState
from dynotune.schema.run import Run, RunSpec
from dynotune.schema.task import TimeWindow


class PlainRun(msgspec.Struct, frozen=True, kw_only=True):
    """Results of the plain window.

    Args:
        folder: the run's folder.
        processes: the processes that make steps, in the order of ranks.
        samples: of the machine during the run; `begin_s`, `end_s`: the window of all ranks, on the samples' clock.
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
    """Return the window whose steps the user gave exactly, so that it is planned from the start; none otherwise."""
    if run.warmup_steps is None or run.window_steps is None:
        return []
    return [TimeWindow(at_step=run.warmup_steps, num_steps=run.window_steps)]


class PlainWindow:
    """The timed window of a live run that `runner` started with `exact_window`, and the state of the program in it.

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
        records = [record for record in self.outcome.records if record.last("window") is not None]
        return sorted(records, key=lambda record: record.among_ranks("rank") or 0)

    def _refuse(self) -> None:
        assert self._runner.launch is not None
        refuse_failed(self.outcome, self._runner.launch, self._runner.limit_s)
        asked, before = self._asked, "they were steady"
        if asked is not None:
            before = f"{asked.num_steps} steps after {asked.at_step} of warm-up were timed"
        raise CannotRunHere(
            f"The command ended by itself after {self.outcome.num_steps} steps, before {before}.",
            hint="Let it run longer (more epochs, more data), or ask for a shorter window with --warmup and --steps.",
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
        found = state_of_process(record, outcome.launched_s, steady=self._runner.steady)
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
            found.append(restlessness(outcome.records[0], min(window.first_step for window in outcome.windows)))
        if asked is not None and any(window.first_step != asked.at_step for window in outcome.windows):
            found.append("The window began later than it should have: ranks may have timed different steps.")
        if outcome.run.ended_by == "timeout":
            found.append(f"The command was ended after {self._runner.limit_s:.0f} s.")
        elif outcome.run.ended_by == "command" and outcome.run.exit_code:
            found.append(f"Afterwards the command failed, with exit code {outcome.run.exit_code}.")
        found += [f"Could not be looked at: {what}" for record in self._timed for what in failed_parts(record)]
        found += cautions.sandbox_warnings(outcome)
        if outcome.outside is not None:
            found += [f"Meanwhile {reason}." for reason in outcome.outside.foreign]
        return found + cautions.warnings([outcome])
