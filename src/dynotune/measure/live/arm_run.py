"""One run of one arm: launch, watch the records grow, end it when it has given what it was launched for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from dynotune import probe
from dynotune.launch.caches import contents
from dynotune.launch.process import environment
from dynotune.launch.process.launcher import Exit, Launched, start
from dynotune.launch.process.run_folder import has_room, last_lines
from dynotune.launch.records.record import Record, Records, read_back, summarise
from dynotune.measure.live import ready, sampler_readout
from dynotune.measure.live.request import CompareRequest
from dynotune.schema import document
from dynotune.schema.comparison import ArmName
from dynotune.schema.errors import CannotRunHere, CommandFailed
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.run import EndedBy, GuardPlan, Plan, Process, Purpose, Readback, Run, RunSpec, Window
from dynotune.schema.setting import Setting

POLL_S = 0.2
"""Looking costs a millisecond; a run outlives its window by this at most."""
GRACE_S = 3.0
NUM_LAST_LINES = 12
SYNCHRONISED = ("latency-p99", "time-to-first-step")
"""Objectives that are of single steps: each waits for the device."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A run to be launched: its settings have become an environment and a plan.

    Args:
        id: of the run, for its record.
        what: in words, as `a run of the baseline`.
        keep: folders that stay writable for real, such as caches.
        finish: let the command run to its own end.
        memory: watch how much memory the tree has.
        ready_on: a line of its output that ends the run; None where steps do.
    """

    id: str
    what: str
    purpose: Purpose
    command: list[str]
    cwd: Path
    env: dict[str, str]
    settings: list[Setting]
    plan: Plan
    sandbox: bool
    keep: list[Path] = []
    finish: bool = False
    memory: bool = False
    ready_on: str | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run.

    Args:
        records: of the processes that made steps, each rank once; `all_records`: of the others too.
        warmup_steps: asked for; None for a pilot.
        outside: what the sampler says of the window; None where there was none.
        ready_at_exit: the line that was waited for came when the command ended.
    """

    run: Run
    folder: Path
    launched_s: float
    records: list[Record]
    all_records: list[Record] = []
    warmup_steps: int | None = None
    outside: probe.Judgement | None = None
    ready_at_exit: bool = False

    @property
    def windows(self) -> list[Window]:
        return [process.window for process in self.run.processes if process.window is not None]

    @property
    def num_steps(self) -> int:
        """Of the process that made the most."""
        return max((len(record.steps) for record in self.all_records), default=0)

    @property
    def first_step_s(self) -> float | None:
        """Time to the first step, of the slowest rank."""
        found = [process.time_to_first_step_s for process in self.run.processes if process.num_steps]
        return max((time_s for time_s in found if time_s is not None), default=None)

    @property
    def without_steps(self) -> Outcome:
        """To be kept: the steps of a fast program would fill the memory beside what is measured."""
        return msgspec.structs.replace(self, records=[], all_records=[])

    @property
    def rejected(self) -> list[Readback]:
        """Settings that the live process does not have as asked."""
        return [readback for readback in self.run.readback if readback.ok is False]


def run_arm(
    request: CompareRequest,
    arm: ArmName,
    *,
    folder: Path,
    purpose: Purpose,
    facts: Facts,
    limit_s: float,
    warmup_steps: int | None = None,
    window_steps: int | None = None,
    enough: Callable[[list[Record]], bool] = lambda records: False,
    guard: GuardPlan | None = None,
) -> Outcome:
    """Run the arm of a comparison in `folder`, with the caches that it has beside it; the rest as `run_settings`."""
    return run_settings(
        request.run,
        request.arm(arm),
        what=f"a run of the {arm}",
        cache_folder=folder.parent / "caches" / arm,
        folder=folder,
        purpose=purpose,
        facts=facts,
        limit_s=limit_s,
        warmup_steps=warmup_steps,
        window_steps=window_steps,
        enough=enough,
        guard=guard,
    )


def run_settings(
    request: RunSpec,
    settings: Sequence[Setting],
    *,
    what: str,
    cache_folder: Path,
    folder: Path,
    purpose: Purpose,
    facts: Facts,
    limit_s: float,
    warmup_steps: int | None = None,
    window_steps: int | None = None,
    enough: Callable[[list[Record]], bool] = lambda records: False,
    guard: GuardPlan | None = None,
) -> Outcome:
    """Run the command under `settings` in `folder`, which exists, until its window is complete or `enough(records)`.

    Args:
        what: the run in words, as `a run of the baseline`.
        cache_folder: for compile and kernel caches that only these settings use.
        limit_s: for the whole run.
        warmup_steps, window_steps: the window to time; None for a run without one, such as a pilot.
        guard: what is noted of the program's results.

    Raises:
        CommandFailed: the command ended with an error before that.
        CannotRunHere: it made no step, too few steps, or took longer than `limit_s`.
    """
    if request.caches == "cold":
        contents.clear(cache_folder)
    base_env = {**request.env, **contents.environment(cache_folder)}
    if request.seed is not None:
        base_env.setdefault("PYTHONHASHSEED", str(request.seed % 2**32))
    env, planned = environment.build(settings, base_env, run_dir=folder, agent_dir=environment.AGENT, facts=facts)
    job = Job(
        id=f"{folder.parent.name}/{folder.name}",
        what=what,
        purpose=purpose,
        command=request.command,
        cwd=request.cwd,
        env=env,
        settings=list(settings),
        plan=Plan(
            settings=planned,
            warmup_steps=warmup_steps,
            window_steps=window_steps,
            step_on=request.step_function,
            seed=request.seed,
            pilot=purpose == "pilot",
            sync_steps=request.objective in SYNCHRONISED and guard is None,
            guard=guard,
        ),
        sandbox=request.sandbox,
        keep=[cache_folder, *contents.named(settings, request.cwd).values()],
        finish=request.run_to_end and purpose != "guard",
        memory=request.objective == "memory" and purpose == "measured",
    )
    outcome = launch(job, folder=folder, limit_s=limit_s, enough=enough)
    _refuse_incomplete(outcome, job, limit_s)
    return outcome


def launch(job: Job, *, folder: Path, limit_s: float, enough: Callable[[list[Record]], bool]) -> Outcome:
    """Run `job` in `folder` until its window is complete, `enough(records)`, `limit_s` or its own end."""
    document.write(folder / "plan.json", job.plan)
    started_s, launched_s = time.time(), time.perf_counter()
    with start(
        job.command,
        env=job.env,
        cwd=job.cwd,
        run_dir=folder,
        capture=True,
        sandbox="auto" if job.sandbox else "none",
        keep=job.keep,
    ) as launched:
        sampler = probe.Sampler(
            probe.host.usable_cpus(),
            probe.nvml.visible_gpus(job.env),
            launched.tree_pids,
            file=folder / "samples.jsonl",
            memory=job.memory,
        )
        with sampler:
            if job.ready_on is None:
                ended_by, exit_ = _watch(launched, sampler, folder, job.plan.window_steps, limit_s, job.finish, enough)
                waited = ready.Waited(ended_by, exit_, None)
            else:
                waited = ready.watch(launched, sampler, folder, ready.pattern(job.ready_on), limit_s)
    records = Records(folder).update()
    processes = [summarise(record, launched_s) for record in records]
    energy = sampler_readout.energy(sampler.samples, processes)
    run = Run(
        id=job.id,
        purpose=job.purpose,
        command=job.command,
        cwd=str(job.cwd),
        settings=job.settings,
        started_s=started_s,
        wall_s=time.perf_counter() - launched_s,
        exit_code=waited.exit.status,
        ended_by=waited.ended_by,
        sandbox=launched.sandbox,
        changed_files=launched.changed_files,
        processes=processes,
        readback=_readback(job.settings, processes),
        launched_s=launched_s,
        energy_j=energy if isinstance(energy, Unknown) else energy.joules,
        energy_from="" if isinstance(energy, Unknown) else energy.source,
        peak_tree_bytes=sampler_readout.peak_tree_bytes(sampler.samples),
        ready_s=None if waited.ready_s is None else waited.ready_s - launched_s,
    )
    document.write(folder / "run.json", run)
    return Outcome(
        run=run,
        folder=folder,
        launched_s=launched_s,
        all_records=records,
        records=stepping(records),
        warmup_steps=job.plan.warmup_steps,
        outside=sampler_readout.outside(sampler, run),
        ready_at_exit=waited.at_exit,
    )


def refuse_impossible(run: RunSpec, settings: Sequence[Setting], facts: Facts) -> None:
    """Find out before anything runs what `run_settings` would refuse in the settings.

    Raises:
        UsageError, CannotRunHere: as `launch.environment.build`.
    """
    environment.build(settings, run.env, run_dir=run.base, agent_dir=environment.AGENT, facts=facts)


def refuse_rejected(outcome: Outcome, where: str) -> None:
    """Refuse a run whose process does not have what was set. `where`: in words, as `in the baseline`.

    Raises:
        CannotRunHere: a setting did not take effect.
    """
    if not outcome.rejected:
        return
    first = outcome.rejected[0]
    found = first.found.reason if isinstance(first.found, Unknown) else first.found
    raise CannotRunHere(
        f"{first.knob}={first.asked} did not take effect {where}: {first.witness} says {found}."
        + (f" {first.detail}" if first.detail and first.detail != found else ""),
        hint=f"The run is in {outcome.folder}. dynotune knobs {first.knob} says when it applies.",
    )


def _readback(settings: Sequence[Setting], processes: Sequence[Process]) -> list[Readback]:
    """What the processes say of every setting; one that none speaks of is unverified."""
    found = read_back(processes)
    silent = [setting for setting in settings if setting.knob not in {readback.knob for readback in found}]
    nothing = Unknown("no process of the command said anything of it")
    return found + [Readback(s.knob, str(s.value), nothing, "", None) for s in silent]


def stepping(records: Sequence[Record]) -> list[Record]:
    """The records of the processes whose steps count: those of all ranks, or the one that made the most."""
    with_steps = [record for record in records if record.steps]
    ranks = [record for record in with_steps if record.among_ranks("rank") is not None]
    if len(ranks) > 1:
        return ranks
    return [max(with_steps, key=lambda record: len(record.steps))] if with_steps else []


def _watch(
    launched: Launched,
    sampler: probe.Sampler,
    folder: Path,
    window_steps: int | None,
    limit_s: float,
    finish: bool,
    enough: Callable[[list[Record]], bool],
) -> tuple[EndedBy, Exit]:
    records = Records(folder)
    deadline_s = time.monotonic() + limit_s
    while True:
        exit_ = launched.wait(POLL_S)
        if exit_ is not None:
            return "command", exit_
        if time.monotonic() > deadline_s:
            return "timeout", launched.end(GRACE_S)
        now = records.update()
        complete = window_steps is not None and _all_windows(now)
        if (complete and not finish) or (window_steps is None and enough(stepping(now))):
            # While the tree lives: what its processes used since the last sample would pass for other processes'.
            sampler.sample()
            return "window", launched.end(GRACE_S)


def _all_windows(records: Sequence[Record]) -> bool:
    windows = [window for record in records if (window := record.last("window"))]
    return bool(windows) and len(windows) >= max(int(window["world_size"]) for window in windows)


def _refuse_incomplete(outcome: Outcome, job: Job, limit_s: float) -> None:
    run, window_steps = outcome.run, job.plan.window_steps
    complete = (window_steps is None and outcome.records) or _all_windows(outcome.all_records)
    if run.ended_by == "window" or (run.exit_code == 0 and complete):
        return
    refuse_failed(outcome, job, limit_s)
    raise CannotRunHere(
        f"The command ended by itself after {outcome.num_steps} steps, before the window of {window_steps} was "
        "complete.",
        hint="Let it run longer (more epochs, more data), or ask for a shorter window with --warmup and --steps.",
    )


def refuse_failed(outcome: Outcome, job: Job, limit_s: float) -> None:
    """Say why a run gave nothing: the disk was full, the command failed, took too long, or made no step at all.

    Raises:
        CommandFailed, CannotRunHere: it was one of these.
    """
    run, lines = outcome.run, last_lines(outcome.folder, NUM_LAST_LINES)
    if not has_room(outcome.folder):
        raise CannotRunHere(
            f"There is no room left in {outcome.folder}: what the command printed and recorded there is cut off.",
            hint="Free some space there, or name another folder with --run-dir.",
        )
    if run.ended_by == "command" and run.exit_code:
        raise CommandFailed(
            f"The command failed in {job.what} {_in_words(run.exit_code)}.",
            hint=f"All that it printed is in {outcome.folder}.",
            command_exit_code=run.exit_code,
            last_lines=lines,
        )
    if run.ended_by == "timeout" and outcome.num_steps:
        raise CannotRunHere(
            f"{job.what.capitalize()} took longer than {limit_s:.0f} s; it had made {outcome.num_steps} steps.",
            hint="Give more with --timeout, or fewer steps with --warmup and --steps.",
        )
    if outcome.num_steps == 0:
        raise _no_step(run, outcome.all_records, limit_s, lines)


def _no_step(run: Run, records: Sequence[Record], limit_s: float, lines: tuple[str, ...]) -> CannotRunHere:
    """Why there was no step, as far as the records tell."""
    after = f"in {limit_s:.0f} s" if run.ended_by == "timeout" else f"before it ended, after {run.wall_s:.1f} s"
    seen = f" It printed last: {lines[-1]}" if lines else ""
    background = "If it starts the work in the background and ends, give the command that does the work."
    if not records:
        return CannotRunHere(
            f"No Python of this command began a record {after}.{seen}",
            hint="It is not Python, clears its environment, or starts Python with -I, -E or -S, which switch our agent "
            f"off. {background}",
        )
    if not any(record.last("torch") for record in records):
        return CannotRunHere(
            f"The command did not import torch {after}.{seen}", hint=f"Is it the right command? {background}"
        )
    num_events = max(int((record.last("exit") or {}).get("num_events", 0)) for record in records)
    found = f"{num_events} events, but no cycle among them" if num_events else "no batch, call or update"
    return CannotRunHere(
        f"The command made no step that dynotune can see {after}; seen: {found}.{seen}",
        hint="Name the function whose return ends a step with --step-function module:function (__main__:name for the "
        f"script's own), or call dynotune.step() there. {background}",
    )


def _in_words(exit_code: int) -> str:
    return f"with exit code {exit_code}" if exit_code >= 0 else f"by signal {-exit_code}"
