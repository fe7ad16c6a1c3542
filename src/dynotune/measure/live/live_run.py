"""Control one live run: a started command that carries out tasks, one after another, until it is ended."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import msgspec

from dynotune import probe
from dynotune.launch import Exit, Launched, Seed, Started, start
from dynotune.launch.process import processes, revision
from dynotune.launch.records import Record, Records, TaskPage, summarise
from dynotune.measure.live import ready_line
from dynotune.measure.live.launch_plan import LaunchPlan
from dynotune.measure.live.outcome import Outcome, readback_of, stepping
from dynotune.schema import document
from dynotune.schema.events import CompilationBegun, CycleFound, GivenUp, TaskResult, TorchImported
from dynotune.schema.facts import Unknown
from dynotune.schema.reasons import Reason
from dynotune.schema.run import EndedBy, Process, Run
from dynotune.schema.task import Task
from dynotune.text import reasons, words

POLL_S = 0.1
"""Each check takes a millisecond; a run outlives its last task by this time at most."""
GRACE_S = 3.0
STALL_S = 120.0
"""A program that ends no step for this long while a task waits hangs. Writing a large trace takes a
minute."""
LOST_RANK_S = 5.0
"""Time from the end of one rank within which all other ranks end in a normal exit."""
REPEAT_AFTER_S = 2.0
AT_EXIT_S = 30.0
"""Longest time from a process's last record to the end of the process tree."""
AROUND_TRACE_S = 0.4

PLANNED = -1
"""Number of the first task of the plan; tasks that are ordered later count from 1."""

Enough = Callable[[list[Record]], bool]
Join = Callable[[Path], Started]
R = TypeVar("R", bound=TaskResult)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Reports of the processes about one task.

    Args:
        events: each rank's result, in order of ranks, for ranks that have one.
        code: why a rank has no result, if anybody acts on the reason.
        reason: why a rank has no result, as text; empty if all have one.
        at_exit: whether the program ended before the task was done.
    """

    events: list[TaskResult] = []
    code: Reason = Reason.OTHER
    reason: str = ""
    at_exit: bool = False

    def all(self, kind: type[R]) -> list[R]:
        """Return the results of a kind."""
        return [event for event in self.events if isinstance(event, kind)]


class LiveRun(AbstractContextManager["LiveRun"]):
    """A started command. Leaving the `with` block ends its remaining processes.

    Args:
        launch: command, environment and plan.
        folder: existing run folder.
        limit_s: time limit (s) of the whole run.
        join: joins a program that runs already, given the run folder; None starts the command.

    Raises UsageError, CannotRunHere: as for `launch.start` and `TaskPage`, or as `join` does.
    """

    def __init__(self, launch: LaunchPlan, *, folder: Path, limit_s: float, join: Join | None = None) -> None:
        self.launch, self.folder, self.limit_s = launch, folder, limit_s
        document.write(folder / "plan.json", launch.plan, to_agent=True)
        self._page = TaskPage(folder) if launch.plan.live else None
        self._started_s, self.launched_s = time.time(), time.perf_counter()
        self._deadline_s = time.monotonic() + limit_s
        self._all_records = Records(folder, launched_s=self.launched_s)
        self._ended_by: EndedBy | None = None
        self._exit: Exit | None = None
        self._wall_s: float | None = None
        self._ready_s: float | None = None
        self._ready_at_exit = False
        self._launched: Started
        try:
            self._launched = _started(launch, folder) if join is None else join(folder)
        except BaseException:
            self._close_page()
            raise
        self._sampler = probe.Sampler(
            probe.host.usable_cpus(),
            probe.nvml.visible_gpus(launch.env),
            self._launched.tree_pids,
            file=folder / "samples.jsonl",
            memory=launch.memory,
        )
        self._samples = False
        if launch.samples == "launch":
            self.sample()

    def __exit__(self, *error: object) -> None:
        if self._samples:
            self._sampler.stop()
        self._close_page()
        self._launched.__exit__(None, None, None)

    @property
    def is_over(self) -> bool:
        """Tell whether the command has ended, by itself or at its time limit."""
        return self._ended_by is not None

    @property
    def samples(self) -> list[probe.Sample]:
        return self._sampler.samples

    def records(self) -> list[Record]:
        return stepping(self._all_records.update())

    def all_records(self) -> list[Record]:
        """Return the records of all processes, whether they make steps or not."""
        return self._all_records.update()

    def compiles(self) -> bool:
        """Tell whether the program has begun to compile; before the first step, the program then only
        compiles."""
        return any(record.last(CompilationBegun) for record in self._all_records.update())

    def sample(self) -> None:
        if not self._samples:
            self._sampler.start()
            self._samples = True

    def until(self, enough: Enough) -> bool:
        """Wait until `enough(records)`; return False if the command ended or reached its time limit
        before."""
        while not self.is_over:
            self._exit = self._launched.wait(POLL_S)
            if self._exit is not None:
                self._over("command")
            elif time.monotonic() > self._deadline_s:
                self._exit = self._launched.end(GRACE_S)
                self._over("timeout")
            else:
                records = self._all_records.update()
                # Sample the machine once the program works, not while it imports.
                works = any(record.last(TorchImported) or record.steps for record in records)
                if self.launch.samples == "torch" and works:
                    self.sample()
                if enough(stepping(records)):
                    return True
        return False

    def until_line(self, pattern: str) -> None:
        """Wait for a line of output, the time limit or the end of the command; then end all of its
        processes."""
        self.sample()
        line = ready_line.ReadyOn(ready_line.pattern(pattern), self.folder)
        deadline_s = time.monotonic() + self.limit_s
        while (ended := self._launched.wait(ready_line.POLL_S)) is None:
            if line() or time.monotonic() > deadline_s:
                break
        if line(ended=ended is not None) and ended is None:
            self._sampler.sample()
            ended = self._launched.wait(ready_line.AT_EXIT_S)
        self._ready_s, self._ready_at_exit = line.ready_s, line.ready_s is not None and ended is not None
        self._exit = ended or self._launched.end(GRACE_S)
        self._over("command" if ended is not None else "timeout" if line.ready_s is None else "window")

    def do(self, task: Task, *, limit_s: float | None = None) -> Answer:
        """Have all ranks carry out `task` within `limit_s` seconds. Earlier measurements stay, whatever the
        result."""
        order = self.order(task, limit_s=limit_s)
        self.until(order)
        return self.answer(order)

    def order(self, task: Task, *, limit_s: float | None = None) -> "Order":
        """Order all ranks to carry out `task` within `limit_s` seconds; an order before it ends.

        Wait with `until(order)`, and get the answer from `answer(order)`.
        """
        assert self._page is not None, "only a live run takes tasks"
        self.sample()
        return Order(self._page, self._page.order(task), limit_s)

    def answer(self, order: "Order") -> Answer:
        """Return the ranks' answer to an order that is over. Earlier measurements stay, whatever the
        answer."""
        answer = self.answer_to(order.number, order.reason)
        if answer.at_exit:
            # The command is ending; the way it ended is part of the answer.
            until_s = time.monotonic() + AT_EXIT_S
            self.until(lambda records: time.monotonic() > until_s)
        self.look()
        return answer

    def look(self) -> None:
        """Sample the machine now, so that samples cover a task that has just ended."""
        if not self.is_over:
            self._sampler.sample()

    def answer_to(self, number: int, reason: str = "") -> Answer:
        """Return the answer of the processes to task `number`."""
        records = sorted(self.records(), key=lambda record: record.rank or 0)
        events = [event for record in records if (event := record.results.get(number)) is not None]
        given_up = [event for event in events if isinstance(event, GivenUp)]
        missing = len(events) < max(1, num_ranks(records))
        code = Reason.OTHER
        if missing and not reason:
            code, reason = self._why_over()
        elif given_up:
            code, reason = given_up[0].code, reasons.sentence(given_up[0].code, given_up[0].reason)
        return Answer(
            events=[event for event in events if not isinstance(event, GivenUp)],
            code=code,
            reason=reason if missing or given_up else "",
            at_exit=any(event.at_exit for event in given_up) or (missing and self._ended_by == "command"),
        )

    def end(self) -> Outcome:
        if not self.is_over:
            if self.launch.run_to_end:
                self.until(lambda records: False)
            else:
                # Sample while the tree lives; later its use since the last sample would count as other
                # processes'.
                if self._samples:
                    self._sampler.sample()
                self._exit = self._launched.end(GRACE_S)
                self._over("window")
        if self._samples:
            self._sampler.stop()
        return self.save()

    def save(self) -> Outcome:
        """Write the results so far to `run.json`, which then describes a run that still goes on."""
        outcome = self.outcome()
        document.write(self.folder / "run.json", outcome.run)
        return outcome

    def outcome(self) -> Outcome:
        records = self._all_records.update()
        wall_s = time.perf_counter() - self.launched_s if self._wall_s is None else self._wall_s
        found = [summarise(record, self.launched_s) for record in records]
        samples = self._sampler.samples
        energy = _energy(samples, found)
        launch = self.launch
        run = Run(
            id=launch.id,
            purpose=launch.purpose,
            command=launch.command,
            cwd=str(launch.cwd),
            settings=launch.settings,
            started_s=self._started_s,
            wall_s=wall_s,
            exit_code=None if self._exit is None else self._exit.status,
            ended_by=self._ended_by,
            sandbox=self._launched.sandbox,
            sandbox_reason=self._launched.sandbox_reason if launch.sandbox else "",
            changed_files=self._launched.changed_files,
            processes=found,
            readback=readback_of(launch.settings, found),
            launched_s=self.launched_s,
            energy_j=energy if isinstance(energy, Unknown) else energy.joules,
            energy_from="" if isinstance(energy, Unknown) else energy.source,
            peak_tree_bytes=_peak_tree_bytes(samples),
            ready_s=None if self._ready_s is None else self._ready_s - self.launched_s,
        )
        return Outcome(
            run=run,
            folder=self.folder,
            launched_s=self.launched_s,
            all_records=records,
            records=stepping(records),
            warmup_steps=None if launch.window is None else launch.window.at_step,
            outside=_outside(self._sampler, run),
            ready_at_exit=self._ready_at_exit,
        )

    def _over(self, by: EndedBy) -> None:
        self._ended_by, self._wall_s = by, time.perf_counter() - self.launched_s

    def answer_at_end(self) -> Answer:
        """Return the answer to a task that came too late."""
        code, reason = self._why_over()
        return Answer(code=code, reason=reason, at_exit=True)

    def _why_over(self) -> tuple[Reason, str]:
        if self._ended_by == "timeout":
            return Reason.OTHER, f"the {self.limit_s:.0f} s given were over"
        status = 0 if self._exit is None else self._exit.status
        if status:
            return Reason.PROGRAM_ENDED, f"the program ended {words.ending(status)}"
        num_steps = max((len(record.steps) for record in self.records()), default=0)
        return Reason.PROGRAM_ENDED, f"the program ended after {num_steps} steps"

    def _close_page(self) -> None:
        if self._page is not None:
            self._page.close()
            self._page = None


class Order:
    """A task that ranks were ordered to carry out, as a test for `until`: all have reported, or will not
    report.

    `is_over`: whether the test has passed. `reason`: why ranks will not report.
    """

    def __init__(self, page: TaskPage, number: int, limit_s: float | None) -> None:
        self._page, self.number = page, number
        self.is_over = False
        self._limit_s = math.inf if limit_s is None else limit_s
        self._began_s = self._progress_s = time.monotonic()
        self._num_steps = 0
        self._lost_s = math.inf
        self._asked_again = False
        self.reason = ""

    def __call__(self, records: list[Record]) -> bool:
        self.is_over = self.is_over or self._has_passed(records)
        return self.is_over

    def _has_passed(self, records: list[Record]) -> bool:
        if has_answered(records, self.number):
            return True
        missing = [record for record in records if self.number not in record.results]
        self.reason = self._lost_rank(missing) or self._stall(records, missing)
        if time.monotonic() - self._began_s > self._limit_s:
            self.reason = f"the {self._limit_s:.0f} s given were over"
        return bool(self.reason)

    def _lost_rank(self, missing: Sequence[Record]) -> str:
        lost = [record for record in missing if not is_alive(record.pid)]
        now = time.monotonic()
        self._lost_s = min(self._lost_s, now) if lost else math.inf
        if now - self._lost_s < LOST_RANK_S:
            return ""
        rank = lost[0].rank
        who = f"process {lost[0].pid}" if rank is None else f"rank {rank} (process {lost[0].pid})"
        return f"{who} ended, and the others go on"

    def _stall(self, records: Sequence[Record], missing: Sequence[Record]) -> str:
        num_steps, now = sum(len(record.steps) for record in records), time.monotonic()
        if num_steps != self._num_steps:
            self._num_steps, self._progress_s = num_steps, now
            return ""
        waited_s = now - self._progress_s
        if waited_s > REPEAT_AFTER_S and not self._asked_again and len(missing) < len(records):
            # A rank may have been interrupted while writing its result.
            self._asked_again = True
            self._page.ask_again()
        return f"the program made no step for {waited_s:.0f} s" if waited_s > STALL_S else ""


def _started(launch: LaunchPlan, folder: Path) -> Launched:
    return start(
        launch.command,
        env=launch.env,
        cwd=launch.cwd,
        run_dir=folder,
        capture=True,
        sandbox="auto" if launch.sandbox else "none",
        keep=launch.keep,
        seed=_seed(launch, folder),
        nice=launch.nice,
    )


def _seed(launch: LaunchPlan, folder: Path) -> Seed | None:
    """Write into the run folder the files that differ in the command's view of its repository."""
    if launch.revision is None:
        return None
    found = revision.find(launch.cwd, launch.revision)
    revision.export(found, folder / "revision")
    return Seed(found.root, folder / "revision", found.gone)


def is_alive(pid: int) -> bool:
    process = processes.read(pid)
    return process is not None and process.state not in "ZX"


def num_ranks(records: Sequence[Record]) -> int:
    cycles = [cycle for record in records if (cycle := record.last(CycleFound)) is not None]
    return max((cycle.world_size or 1 for cycle in cycles), default=1)


def has_answered(records: Sequence[Record], number: int) -> bool:
    """Tell whether all ranks have reported on task `number`."""
    answered = [record for record in records if number in record.results]
    return bool(records) and len(answered) == len(records) >= num_ranks(records)


def run_once(launch: LaunchPlan, *, folder: Path, limit_s: float, enough: Enough) -> Outcome:
    """Run the command until `enough(records)`, `limit_s` seconds or its own end.

    Raises UsageError, CannotRunHere: as for `LiveRun`.
    """
    with LiveRun(launch, folder=folder, limit_s=limit_s) as live:
        if launch.ready_pattern is not None:
            live.until_line(launch.ready_pattern)
        else:
            live.until(enough)
        return live.end()


def _energy(samples: Sequence[probe.Sample], processes: Sequence[Process]) -> probe.Energy | Unknown:
    """Return the energy (J) that GPUs used in the windows of all ranks together."""
    windows = [process.window for process in processes if process.window is not None]
    if not windows:
        return Unknown("no window was timed")
    begin_s, end_s = min(window.begin_s for window in windows), max(window.end_s for window in windows)
    return probe.energy(samples, begin_s, end_s)


def _peak_tree_bytes(samples: Sequence[probe.Sample]) -> int | Unknown:
    """Return the largest sampled memory of the process tree; the peak between samples may have been
    higher."""
    found = [sample.tree_bytes for sample in samples if sample.tree_bytes is not None]
    known = [num_bytes for num_bytes in found if not isinstance(num_bytes, Unknown)]
    if known:
        return max(known)
    return next((why for why in found if isinstance(why, Unknown)), Unknown("it was not asked for"))


def _outside(sampler: probe.Sampler, run: Run) -> probe.Interference | None:
    """Return the disturbances from outside during the measurement; None if no interval was measured."""
    spans = [
        (process.window.begin_s, process.window.end_s)
        for process in run.processes
        if process.window is not None
    ]
    # The steps of a trace take less time than the sampling interval, so the interval before them counts too.
    spans += [
        (process.trace.begin_s - AROUND_TRACE_S, process.trace.end_s)
        for process in run.processes
        if process.trace is not None and process.trace.begin_s is not None and process.trace.end_s is not None
    ]
    if not spans and run.purpose == "measured" and run.launched_s is not None and sampler.samples:
        # Up to the first step or the awaited line, since sampling begins just after the launch.
        firsts = (
            [run.ready_s]
            if run.ready_s is not None
            else [
                process.time_to_first_step_s
                for process in run.processes
                if process.time_to_first_step_s is not None
            ]
        )
        begin_s = max(run.launched_s, sampler.samples[0].time_s)
        spans = [
            (begin_s, run.launched_s + first_s) for first_s in firsts if run.launched_s + first_s > begin_s
        ]
    if not spans:
        return None
    judged = probe.judge(sampler.samples, min(begin for begin, _ in spans), max(end for _, end in spans))
    return msgspec.structs.replace(judged, unknown=[*judged.unknown, *sampler.errors])
