"""Records a trace of a command: waits until its steps are steady, has a few of them recorded, and ends it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dynotune import knobs
from dynotune.launch import environment, new_run_folder
from dynotune.launch.record import ALLOCATED, COMPILED, EPOCH, Record
from dynotune.measure import summary
from dynotune.measure.machine import alone, facts_of
from dynotune.measure.one_run import Job, launch, refuse_failed, refuse_rejected
from dynotune.measure.pilot import ROOM_STEPS, epoch_steps, num_steps_to_find, steady_steps
from dynotune.measure.request import Watcher
from dynotune.schema import document
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.facts import Facts
from dynotune.schema.run import Plan, Process, RecordedTrace, RecordFrom, Run, TracePlan
from dynotune.schema.setting import Setting

TOLD_FILE = "record-from.json"
LIMIT_S = 900.0

# Steady as a pilot is, but for a shorter while: nothing is measured of these steps, they only must not be a start.
STEADY_STEPS = 10
STEADY_S = 0.5
# Of slow steps it would take minutes to tell. So few without a compilation or a new allocation will do after a while.
SLOW_S = 20.0
SLOW_STEPS = 5
RESTLESS_S = 120.0

# As many steps as show what varies between them, in a file that opens at once: about this long, but with stacks, which
# make ten times the events.
MOST_STEPS, FEWEST_STEPS = 10, 3
RECORDED_S = 6.0
RECORDED_WITH_STACKS_S = 1.5
# The processes look every 0.05 s, and what was read of them is up to 0.2 s old: all ranks must hear of it in time.
TELL_S = 0.5
# Below it, recording costs less than steps differ among themselves.
NOTABLE_DIFFERENCE = 0.2
NOTABLE_EPOCH_BEGIN = 2.0


class RecordRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A trace to be recorded.

    Args:
        env: what the command inherits.
        base: folder that the run's own folder is made in.
        num_steps: to record; None for up to 10, fewer of slow ones.
        warmup_steps: that come before at least; None to wait until they are steady.
        stacks, shapes, memory: Python's frames, the shapes of inputs, what is allocated; each makes steps slower.
        timeout_s: for a run of the command; None for 15 minutes.
        finish: let the command run to its own end.
    """

    command: list[str]
    cwd: Path
    env: dict[str, str]
    base: Path
    settings: list[Setting] = []
    num_steps: int | None = None
    warmup_steps: int | None = None
    stacks: bool = False
    shapes: bool = False
    memory: bool = False
    timeout_s: float | None = None
    step_on: str | None = None
    sandbox: bool = True
    lock: bool = True
    finish: bool = False


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What was recorded.

    Args:
        folder: the run's.
        traces: files in it, one a rank, in the order of ranks.
        notes: what to be wary of when they are read.
    """

    folder: Path
    traces: list[Path]
    run: Run
    notes: list[str]


def record(request: RecordRequest, watcher: Watcher) -> Recording:
    """Run the command, in a copy-on-write view of its folder where it can be, and record a few of its steps.

    A command that ends before its steps are known to be steady is run once more, now that their number is known.

    Raises:
        UsageError: the settings or numbers asked for do not exist or fit together.
        CommandFailed: the command ended with an error.
        CannotRunHere: it made no step, too few steps, uses the profiler itself, or took longer than its limit.
    """
    for name, value in (("--steps", request.num_steps), ("--warmup", request.warmup_steps)):
        if value is not None and value < 1:
            raise UsageError(f"{name} {value} is not a number of steps.", hint=f"For example {name} 5.")
    facts = facts_of(request)
    for setting in request.settings:
        knobs.check_applies(setting, facts)
        if caution := knobs.caution(setting, facts):
            watcher.warn(caution)
    with alone(request, watcher):
        watcher.running("the command, until its steps are steady")
        run = _Run(request, facts, None)
        if not run.traces and run.ended_too_early:
            again = _within(run, request)
            watcher.say(
                f"The command ended after {run.outcome.num_steps} steps, before the recording was done. It is run once "
                f"more, to record {again.num_steps} of them after {again.step + 1}."
            )
            watcher.running("the command once more")
            run = _Run(request, facts, again)
    if not run.traces:
        raise run.no_trace()
    return Recording(
        folder=run.outcome.folder,
        traces=[run.outcome.folder / name for name in run.traces],
        run=run.outcome.run,
        notes=_notes(run),
    )


class _Run:
    """One run of the command that is to be recorded.

    Args:
        exact: where it records; None to tell it when its steps are steady.
    """

    def __init__(self, request: RecordRequest, facts: Facts, exact: RecordFrom | None) -> None:
        folder = new_run_folder(request.base)
        env, planned = environment.build(
            request.settings, request.env, run_dir=folder, agent_dir=environment.AGENT, facts=facts
        )
        self.limit_s = request.timeout_s or LIMIT_S
        self.is_exact = exact is not None
        self.job = Job(
            id=folder.name,
            what="the recorded run",
            purpose="trace",
            command=request.command,
            cwd=request.cwd,
            env=env,
            settings=request.settings,
            plan=Plan(
                settings=planned,
                warmup_steps=exact.step if exact else None,
                step_on=request.step_on,
                pilot=True,
                trace=TracePlan(
                    num_steps=exact.num_steps if exact else None,
                    stacks=request.stacks,
                    shapes=request.shapes,
                    memory=request.memory,
                ),
            ),
            sandbox=request.sandbox,
        )
        self.director = Director(request, folder, told=exact)
        self.outcome = launch(self.job, folder=folder, limit_s=self.limit_s, enough=self.director)
        refuse_rejected(self.outcome, "in the recorded run")

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
        run = self.outcome.run
        return run.ended_by == "command" and run.exit_code == 0 and bool(self.stepping) and not self.is_exact

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


class Director:
    """Tells the processes of a run where to begin recording, once their steps are steady.

    Called with the records of those whose steps count; says whether all of them have been recorded.
    """

    def __init__(self, request: RecordRequest, folder: Path, *, told: RecordFrom | None = None) -> None:
        self._request, self._folder = request, folder
        self.told = told
        self.steady = True
        self._next_look = 1

    def __call__(self, records: Sequence[Record]) -> bool:
        if not records:
            return False
        if self.told is None:
            self._tell_if_steady(records)
        # Some say at once that they cannot, and need not be told.
        return not self._request.finish and all(record.last("trace") for record in records)

    def _tell_if_steady(self, records: Sequence[Record]) -> None:
        record = records[0]
        num = len(record.steps)
        if num < self._next_look or record.begin_s is None:
            return
        # Looking takes as long as there are steps to look at.
        self._next_look = num + 1 + num // 8
        steady = is_steady(record, self._request.warmup_steps)
        if steady is None:
            return
        self.steady = steady
        self.told = where(records, self._request)
        document.write(self._folder / TOLD_FILE, self.told)


def is_steady(record: Record, warmup_steps: int | None) -> bool | None:
    """Whether its steps are steady; None while there is hope that they will be."""
    step_s = record.step_s
    if warmup_steps is not None:
        return True if len(step_s) >= warmup_steps else None
    first = steady_steps(record)
    if first is not None and len(step_s) - first >= STEADY_STEPS and sum(step_s[first:]) >= STEADY_S:
        return True
    events = [index for index, step in enumerate(record.steps) if step.flags & (COMPILED | ALLOCATED)]
    quiet = len(step_s) - 1 - max(events, default=0)
    if sum(step_s) >= SLOW_S and quiet >= SLOW_STEPS:
        return True
    return False if sum(step_s) >= RESTLESS_S and len(step_s) >= FEWEST_STEPS else None


def where(records: Sequence[Record], request: RecordRequest) -> RecordFrom:
    """Soon, the same for all ranks, and where an epoch's length is known not across its end."""
    step_s = _recent_step_s(records[0])
    num_steps = _num_steps(request, step_s)
    step = max(len(record.steps) for record in records) + max(ROOM_STEPS, math.ceil(TELL_S / step_s))
    return RecordFrom(step=_past_epoch_begin(records[0], step, num_steps), num_steps=num_steps)


def _past_epoch_begin(record: Record, step: int, num_steps: int) -> int:
    length = epoch_steps([record])
    if length is None or num_steps + 1 >= length:
        return step
    begun = next(index for index, step in enumerate(record.steps) if step.flags & EPOCH)
    # The first recorded step is the one after the profiler got ready.
    offset = (step + 1 - begun) % length
    return step + (1 - offset) % length if offset == 0 or offset + num_steps > length else step


def _within(run: _Run, request: RecordRequest) -> RecordFrom:
    """Where to record a command that makes no more steps than `run` of it did.

    Raises:
        CannotRunHere: there is no room for it.
    """
    record = run.outcome.records[0]
    num, earliest = len(record.steps), num_steps_to_find(record) + ROOM_STEPS
    # One step is the profiler's to get ready in, and one is left over: two runs may differ by one.
    room = num - earliest - 2
    num_steps = _num_steps(request, _recent_step_s(record))
    if request.num_steps is None:
        num_steps = min(num_steps, max(room, FEWEST_STEPS))
    if room < num_steps:
        raise CannotRunHere(
            f"The command makes {num} steps and ends: too few to record {num_steps} after {earliest + 1} of warm-up.",
            hint="Let it run longer (more epochs, more data), or ask for fewer steps with --steps.",
        )
    wanted = request.warmup_steps or steady_steps(record) or num // 2
    return RecordFrom(step=min(max(earliest, wanted), num - num_steps - 2), num_steps=num_steps)


def _num_steps(request: RecordRequest, step_s: float) -> int:
    longest_s = RECORDED_WITH_STACKS_S if request.stacks else RECORDED_S
    return request.num_steps or min(MOST_STEPS, max(FEWEST_STEPS, int(longest_s / step_s)))


def _recent_step_s(record: Record) -> float:
    return max(statistics.median(record.step_s[-STEADY_STEPS:]), 1e-6)


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
    found += summary.sandbox_warnings(run.outcome)
    if run.outcome.outside is not None:
        found += [f"Meanwhile {reason}." for reason in run.outcome.outside.foreign]
    return found + summary.warnings([run.outcome])


def _notes_on(process: Process) -> list[str]:
    trace = process.trace
    who = "" if process.rank is None or process.world_size == 1 else f"Rank {process.rank}: "
    if trace is None or not trace.file:
        return [f"{who}No trace was recorded: {trace.reason if trace else 'the run was over before'}."]
    found = [f"{who}{note}." for note in trace.notes]
    if trace.stopped_by in ("time", "memory"):
        limit = "they took a minute" if trace.stopped_by == "time" else "they filled too much memory"
        found.append(f"{who}Only {trace.num_steps} steps were recorded: {limit}.")
    if trace.median_step_s and trace.median_before_s:
        times = trace.median_step_s / trace.median_before_s
        if abs(times - 1) > NOTABLE_DIFFERENCE:
            found.append(
                f"{who}A recorded step took {_ms(trace.median_step_s)}, those before it {_ms(trace.median_before_s)} "
                f"({times:.2f} times): "
                + ("recording slows the host, so its share is overstated." if times > 1 else "they are not alike.")
            )
    return found


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
