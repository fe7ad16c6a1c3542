"""Record a trace of a command: wait until the steps are steady, record a few steps, and end the command."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dynotune.launch.records import EPOCH, Record
from dynotune.measure.live import cautions
from dynotune.measure.live.live_run import Answer
from dynotune.measure.live.machine import checked_facts
from dynotune.measure.live.outcome import Outcome, refuse_failed, refuse_rejected
from dynotune.measure.live.placement import recording_from_now, recording_within
from dynotune.measure.live.request import RecordRequest, Watcher
from dynotune.measure.live.reservation import machine_lock
from dynotune.measure.live.task_runner import TaskRunner
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.events import TraceRecorded
from dynotune.schema.reasons import Reason
from dynotune.schema.run import Process, RecordedTrace, Run

USUAL_S = 20.0
"""Seconds that most commands take to steady steps and a recording: what the bar of progress counts on."""
# If recording makes steps longer by a smaller fraction, that is within the differences between steps.
NOTABLE_DIFFERENCE = 0.2
NOTABLE_EPOCH_BEGIN = 2.0


class NotRecorded(CannotRunHere):
    """No trace was recorded. `code`: why, if anybody acts on the reason."""

    def __init__(self, message: str, *, hint: str = "", code: Reason) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded traces.

    Args:
        folder: run folder.
        traces: trace files in the folder, one per rank, in order of ranks.
        notes: cautions for reading the traces, without `overstated`.
        overstated: notes that recording slowed the host, so its share is overstated until a reader corrects
            it.
        slowed: time of a recorded step over the time of an earlier step, for the rank slowed least; None if
            unknown.
        uses_device: whether the program made tensors on a device while it was recorded.
    """

    folder: Path
    traces: list[Path]
    run: Run
    notes: list[str]
    overstated: list[str] = []
    slowed: float | None = None
    uses_device: bool = False

    @property
    def cautions(self) -> list[str]:
        """Return all cautions, for shares that are not corrected."""
        return [*self.overstated, *self.notes]


def record(request: RecordRequest, watcher: Watcher) -> Recording:
    """Run the command, in a copy-on-write view of its folder if possible, and record a few steps.

    A command that ends before its steps are known to be steady is run again, since the number of steps is
    then known.

    Raises:
        UsageError: a setting or number does not exist or does not fit the others.
        CommandFailed: the command ended with an error.
        CannotRunHere: the command ran no step or too few, uses the profiler itself, or took longer than its
            limit.
    """
    facts = checked_facts(request.run, request.num_steps, watcher)
    with (
        machine_lock(request.run, watcher),
        TaskRunner(request.run, watcher, facts=facts, label="the recorded run") as runner,
    ):
        watcher.running("the command, until its steps are steady", left_s=USUAL_S)
        recorder = Recorder(runner)
        found = recorder.record(request)
        runner.end()
    if found is None:
        raise recorder.no_trace()
    refuse_rejected(runner.outcome(), "in the recorded run")
    return recorder.recording()


class Recorder:
    """Record traces in a live run, one after another, with cautions about the last trace."""

    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner
        self._answer = Answer()

    def record(self, request: RecordRequest) -> list[Path] | None:
        """Record the trace of each rank, in order of ranks; None without a trace.

        Raises CannotRunHere: the command runs too few steps.
        """
        self._answer = self._runner.do(
            lambda records: recording_from_now(records, request),
            lambda record: recording_within(record, request),
            what="recorded",
        )
        assert self._runner.live is not None
        folder = self._runner.live.folder
        # The user's processes wrote the record, so only files in the folder are accepted.
        names = [Path(name).name for name in self._files]
        return [folder / name for name in names if (folder / name).is_file()] or None

    @property
    def _files(self) -> list[str]:
        """Return the file of each rank, as the ranks name it."""
        return [trace.file for trace in self._answer.all(TraceRecorded) if trace.file]

    def recording(self) -> Recording:
        outcome = self._runner.outcome()
        traces = self._traces(outcome)
        return Recording(
            folder=outcome.folder,
            traces=[outcome.folder / Path(trace.file).name for _, trace in traces if trace.file],
            run=outcome.run,
            notes=self._notes(outcome, traces),
            overstated=[note for process, trace in traces for note in _overstated(process, trace)],
            slowed=min(filter(None, (_slowed(trace) for _, trace in traces)), default=None),
            uses_device=any(trace.num_device_tensors for _, trace in traces),
        )

    def _traces(self, outcome: Outcome) -> list[tuple[Process, RecordedTrace]]:
        """Return the trace of each rank, as named in the last answer."""
        names = set(self._files)
        pids = {record.pid for record in outcome.records}
        stepping = [process for process in outcome.run.processes if process.pid in pids and process.num_steps]
        ranks = sorted(stepping, key=lambda process: process.rank or 0)
        return [(process, trace) for process in ranks for trace in process.traces if trace.file in names]

    def no_trace(self) -> NotRecorded:
        """Build the error for a missing trace; raise another error if the run itself failed."""
        runner, code = self._runner, self._answer.code
        outcome = runner.outcome()
        assert runner.launch is not None
        refuse_failed(outcome, runner.launch, runner.limit_s)
        reason = self._answer.reason or "the command ended by itself before it was done"
        hint = f"The run is in {outcome.folder}."
        if code is Reason.PROGRAM_PROFILES:
            hint = (
                "Only one can record at a time. Switch the program's own off, or give the trace that it "
                "writes to "
                "dynotune trace FILE."
            )
        elif code is Reason.OTHER_PROFILER:
            hint = "Only one profiler can watch a GPU at a time. Run the command without the other one."
        elif code is Reason.PROGRAM_ENDED or outcome.run.ended_by == "command":
            hint = "Let it run longer (more epochs, more data), or ask for fewer steps with --steps."
        return NotRecorded(f"No trace was recorded: {reason}.", hint=hint, code=code)

    def _notes(self, outcome: Outcome, traces: Sequence[tuple[Process, RecordedTrace]]) -> list[str]:
        """List the cautions for reading the traces."""
        found = []
        if not self._runner.steady:
            found.append("The steps had not become steady when they were recorded.")
        for process, trace in traces:
            found += _notes_on(process, trace)
        told = {process.pid for process, _ in traces}
        for process in outcome.run.processes:
            if (
                process.rank is not None
                and process.world_size > 1
                and process.num_steps
                and process.pid not in told
            ):
                reason = self._answer.reason or "the run was over before"
                found.append(f"Rank {process.rank}: No trace was recorded: {reason}.")
        if len({(trace.first_step, trace.num_steps) for _, trace in traces}) > 1:
            found.append("Ranks recorded different steps: one waits for another that is busy writing.")
        found += _epoch_note(outcome.records[0], traces[0][1])
        return found + cautions.of_run(outcome, self._runner.limit_s)


def _notes_on(process: Process, trace: RecordedTrace) -> list[str]:
    who = _who(process)
    found = [f"{who}{note}." for note in trace.notes]
    if trace.cupti_stays:
        found.append(
            f"{who}CUDA calls take longer since then, because CUPTI stays attached: {trace.cupti_stays}."
        )
    if trace.stopped_by in ("time", "memory"):
        limit = (
            "more would have taken too long" if trace.stopped_by == "time" else "they filled too much memory"
        )
        found.append(f"{who}Only {trace.num_steps} steps were recorded: {limit}.")
    if (_slowed(trace) or 1) < 1 - NOTABLE_DIFFERENCE:
        found.append(f"{_compared(who, trace)}, so they are not alike.")
    return found


def _overstated(process: Process, trace: RecordedTrace) -> list[str]:
    """Say that recording slowed the host, so its share is overstated, if the recorded steps are much
    longer."""
    if (_slowed(trace) or 1) <= 1 + NOTABLE_DIFFERENCE:
        return []
    return [
        f"{_compared(_who(process), trace)}, because recording slows the host, so its share is overstated."
    ]


def _compared(who: str, trace: RecordedTrace) -> str:
    times, after_s, before_s = _slowed(trace), trace.median_step_s, trace.median_before_s
    assert times is not None and after_s is not None and before_s is not None
    return f"{who}A recorded step took {_ms(after_s)}, those before it {_ms(before_s)} ({times:.2f} times)"


def _who(process: Process) -> str:
    return "" if process.rank is None or process.world_size == 1 else f"Rank {process.rank}: "


def _slowed(trace: RecordedTrace) -> float | None:
    """Return the time of a recorded step divided by the time of a step before."""
    if not trace.median_step_s or not trace.median_before_s:
        return None
    return trace.median_step_s / trace.median_before_s


def _epoch_note(record: Record, trace: RecordedTrace) -> list[str]:
    """Describe steps that begin an epoch, if they are far longer and not in the trace."""
    first = trace.first_step or 0
    step_s = record.step_s[: max(0, first - 1)]
    begins = [index for index in range(1, len(step_s)) if record.steps[index].flags & EPOCH]
    recorded = record.steps[first : first + trace.num_steps]
    if not begins or any(step.flags & EPOCH for step in recorded):
        return []
    begin_s, usual_s = statistics.median(step_s[index] for index in begins), statistics.median(step_s)
    if begin_s < NOTABLE_EPOCH_BEGIN * usual_s:
        return []
    return [
        f"A step that begins an epoch took {_ms(begin_s)}, others {_ms(usual_s)}; none such was recorded."
    ]


def _ms(duration_s: float) -> str:
    return f"{1000 * duration_s:.3g} ms"
