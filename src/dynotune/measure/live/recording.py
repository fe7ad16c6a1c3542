"""Records a trace of a command: waits until its steps are steady, has a few of them recorded, and ends it."""

from __future__ import annotations

import statistics
from pathlib import Path

import msgspec

from dynotune import knobs
from dynotune.launch import new_run_folder
from dynotune.launch.process import environment
from dynotune.launch.records.record import EPOCH, Record
from dynotune.measure.live import cautions
from dynotune.measure.live.arm_run import Job, launch, refuse_failed, refuse_rejected
from dynotune.measure.live.machine import alone, facts_of
from dynotune.measure.live.request import RecordRequest, Watcher
from dynotune.measure.live.start_signal import Director, is_over, soon, within
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.facts import Facts
from dynotune.schema.run import Plan, Process, RecordedTrace, RecordFrom, Run, TracePlan

LIMIT_S = 900.0
# Below it, recording costs less than steps differ among themselves.
NOTABLE_DIFFERENCE = 0.2
NOTABLE_EPOCH_BEGIN = 2.0
OVERSTATED = "recording slows the host, so its share is overstated"
"""Part of a note; not so where the host's share is reckoned back."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What was recorded.

    Args:
        folder: the run's.
        traces: files in it, one a rank, in the order of ranks.
        notes: what to be wary of when they are read.
        slowed: a recorded step over one before it, of the rank that was slowed least; None where it is not known.
    """

    folder: Path
    traces: list[Path]
    run: Run
    notes: list[str]
    slowed: float | None = None


def record(request: RecordRequest, watcher: Watcher) -> Recording:
    """Run the command, in a copy-on-write view of its folder where it can be, and record a few of its steps.

    A command that ends before its steps are known to be steady is run once more, now that their number is known.

    Raises:
        UsageError: the settings or numbers asked for do not exist or fit together.
        CommandFailed: the command ended with an error.
        CannotRunHere: it made no step, too few steps, uses the profiler itself, or took longer than its limit.
    """
    for name, value in (("--steps", request.num_steps), ("--warmup", request.run.warmup_steps)):
        if value is not None and value < 1:
            raise UsageError(f"{name} {value} is not a number of steps.", hint=f"For example {name} 5.")
    # Only settings ask for them, and the target takes seconds to import its torch.
    facts = facts_of(request.run) if request.run.settings else {}
    for setting in request.run.settings:
        knobs.check_applies(setting, facts)
        if caution := knobs.caution(setting, facts):
            watcher.warn(caution)
    with alone(request.run, watcher):
        watcher.running("the command, until its steps are steady")
        run = _Run(request, facts, None)
        if not run.traces and run.ended_too_early:
            again = within(run.outcome.records[0], request)
            watcher.say(
                f"The command ended after {run.outcome.num_steps} steps, before the recording was done. It is run once "
                f"more, to record {again.num_steps} of them after {again.step + 1}."
            )
            watcher.running("the command once more")
            run = _Run(request, facts, again)
    if not run.traces:
        raise run.no_trace()
    refuse_rejected(run.outcome, "in the recorded run")
    return Recording(
        folder=run.outcome.folder,
        traces=[run.outcome.folder / name for name in run.traces],
        run=run.outcome.run,
        notes=_notes(run),
        slowed=min(filter(None, map(_slowed, run.stepping)), default=None),
    )


class _Run:
    """One run of the command that is to be recorded.

    Args:
        exact: where it records; None to tell it when its steps are steady.
    """

    def __init__(self, request: RecordRequest, facts: Facts, exact: RecordFrom | None) -> None:
        folder = new_run_folder(request.run.base)
        env, planned = environment.build(
            request.run.settings, request.run.env, run_dir=folder, agent_dir=environment.AGENT, facts=facts
        )
        self.limit_s = request.run.timeout_s or LIMIT_S
        self.is_exact = exact is not None
        self.job = Job(
            id=folder.name,
            what="the recorded run",
            purpose="trace",
            command=request.run.command,
            cwd=request.run.cwd,
            env=env,
            settings=request.run.settings,
            plan=Plan(
                settings=planned,
                warmup_steps=exact.step if exact else None,
                step_on=request.run.step_function,
                pilot=True,
                trace=TracePlan(
                    num_steps=exact.num_steps if exact else None,
                    stacks=request.stacks,
                    shapes=request.shapes,
                    memory=request.memory,
                ),
            ),
            sandbox=request.run.sandbox,
        )
        self.director = Director(request.run, folder, lambda records, _: soon(records, request), told=exact)
        self.outcome = launch(self.job, folder=folder, limit_s=self.limit_s, enough=self.director)

    @property
    def stepping(self) -> list[Process]:
        """The processes whose steps count, in the order of ranks."""
        pids = {record.pid for record in self.outcome.records}
        found = [process for process in self.outcome.run.processes if process.pid in pids and process.num_steps]
        return sorted(found, key=lambda process: process.rank or 0)

    @property
    def recorded(self) -> list[RecordedTrace]:
        return [process.trace for process in self.stepping if process.trace is not None and process.trace.file]

    @property
    def traces(self) -> list[str]:
        """Names of the files; the processes wrote the record, so only what lies in the folder counts."""
        names = [Path(trace.file).name for trace in self.recorded if trace.file]
        return [name for name in names if (self.outcome.folder / name).is_file()]

    @property
    def reasons(self) -> list[str]:
        """Why there is no trace, of each process that says so."""
        found = [process.trace.reason for process in self.stepping if process.trace and not process.trace.file]
        return list(dict.fromkeys(found))

    @property
    def ended_too_early(self) -> bool:
        """Whether the command made steps and ended by itself before there was a trace, for no other reason."""
        run = self.outcome.run
        in_time = run.ended_by != "command" or run.exit_code != 0 or any(map(is_over, self.outcome.records))
        return not in_time and bool(self.stepping) and not self.is_exact

    def no_trace(self) -> Exception:
        """Why there is none; raises where it is the run itself that failed."""
        refuse_failed(self.outcome, self.job, self.limit_s)
        reason = "; ".join(self.reasons) or "the command ended by itself before it was done"
        hint = f"The run is in {self.outcome.folder}."
        if "torch's profiler itself" in reason:
            hint = (
                "Only one can record at a time. Switch the program's own off, or give the trace that it writes to "
                "dynotune trace FILE."
            )
        elif "the program ended" in reason or self.outcome.run.ended_by == "command":
            hint = "Let it run longer (more epochs, more data), or ask for fewer steps with --steps."
        return CannotRunHere(f"No trace was recorded: {reason}.", hint=hint)


def _notes(run: _Run) -> list[str]:
    """What to be wary of when the traces are read."""
    found = []
    if not run.director.steady:
        found.append("The steps had not become steady when they were recorded.")
    for process in run.stepping:
        found += _notes_on(process)
    steps = {(trace.first_step, trace.num_steps) for trace in run.recorded}
    if len(steps) > 1:
        found.append("Ranks recorded different steps: one waits for another that is busy writing.")
    found += _epoch_note(run.outcome.records[0], run.recorded[0])
    status = run.outcome.run
    if status.ended_by == "timeout":
        found.append(f"The command was ended after {run.limit_s:.0f} s, before all of it was recorded.")
    elif status.ended_by == "command" and status.exit_code:
        found.append(f"Afterwards the command failed, with exit code {status.exit_code}.")
    found += cautions.sandbox_warnings(run.outcome)
    if run.outcome.outside is not None:
        found += [f"Meanwhile {reason}." for reason in run.outcome.outside.foreign]
    return found + cautions.warnings([run.outcome])


def _notes_on(process: Process) -> list[str]:
    trace = process.trace
    who = "" if process.rank is None or process.world_size == 1 else f"Rank {process.rank}: "
    if trace is None or not trace.file:
        return [f"{who}No trace was recorded: {trace.reason if trace else 'the run was over before'}."]
    found = [f"{who}{note}." for note in trace.notes]
    if trace.stopped_by in ("time", "memory"):
        limit = "they took a minute" if trace.stopped_by == "time" else "they filled too much memory"
        found.append(f"{who}Only {trace.num_steps} steps were recorded: {limit}.")
    times = _slowed(process)
    if times is not None and abs(times - 1) > NOTABLE_DIFFERENCE and trace.median_step_s and trace.median_before_s:
        found.append(
            f"{who}A recorded step took {_ms(trace.median_step_s)}, those before it {_ms(trace.median_before_s)} "
            f"({times:.2f} times): " + (f"{OVERSTATED}." if times > 1 else "they are not alike.")
        )
    return found


def _slowed(process: Process) -> float | None:
    """A recorded step over one before it."""
    trace = process.trace
    if trace is None or not trace.median_step_s or not trace.median_before_s:
        return None
    return trace.median_step_s / trace.median_before_s


def _epoch_note(record: Record, trace: RecordedTrace) -> list[str]:
    """Steps that begin an epoch, where they are far longer and not in the trace."""
    first = trace.first_step or 0
    step_s = record.step_s[: max(0, first - 1)]
    begins = [index for index in range(1, len(step_s)) if record.steps[index].flags & EPOCH]
    recorded = record.steps[first : first + trace.num_steps]
    if not begins or any(step.flags & EPOCH for step in recorded):
        return []
    begin_s, usual_s = statistics.median(step_s[index] for index in begins), statistics.median(step_s)
    if begin_s < NOTABLE_EPOCH_BEGIN * usual_s:
        return []
    return [f"A step that begins an epoch took {_ms(begin_s)}, others {_ms(usual_s)}; none such was recorded."]


def _ms(duration_s: float) -> str:
    return f"{1000 * duration_s:.3g} ms"
