"""Ceilings: one more run, in which the loader gives batches alone, and then one of them is replayed."""

from __future__ import annotations

from typing import Any

import msgspec

from dynotune.diagnose.profiled import in_words
from dynotune.diagnose.window import soon, within
from dynotune.launch import new_run_folder
from dynotune.launch.process import environment
from dynotune.launch.records.record import Record
from dynotune.measure.live.arm_run import Job, Outcome, launch, refuse_failed
from dynotune.measure.live.machine import alone, facts_of
from dynotune.measure.live.request import Watcher
from dynotune.measure.live.start_signal import TOLD_FILE, Director
from dynotune.schema import document
from dynotune.schema.diagnosis import UpperBound
from dynotune.schema.errors import DynotuneError
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.observation import Observation, Timing
from dynotune.schema.run import PageCache, Plan, RecordFrom, RunSpec

LIMIT_S = 900.0
SETTLE_STEPS = 4
"""Before the replayed steps are timed; as `agent.ceilings` has it, and one for the draining."""
NOTABLE_RESIDENT = 0.1


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """A loader as it was drained: `seconds` for `num_batches`, after `num_skipped` that were made before.

    Args:
        num_replayed: how often the window's steps drew from it.
    """

    num_batches: int
    num_samples: int | None
    seconds: float
    num_skipped: int
    num_workers: int
    whole_epoch: bool
    num_replayed: int


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The window in which one batch was replayed."""

    num_steps: int
    begin_s: float
    end_s: float
    num_samples: int | None


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """Files whose pages were dropped; of the `probed_bytes` looked at, `resident_bytes` were cached all the same."""

    num_files: int
    num_bytes: int
    num_refused: int
    probed_bytes: int
    resident_bytes: int
    complete: bool


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's event `ceilings`."""

    reason: str
    loaders: list[Drained] = []
    replayed: Replayed | None = None
    changed_in_place: bool = False
    dropped: Dropped | None = None


def ceilings(request: RunSpec, watcher: Watcher, observation: Observation) -> list[UpperBound] | Unknown:
    """What the loader alone, one batch replayed, and both as the plain run has them, take a step.

    Runs the command once more; of one that ends before it is steady, twice. Of the first rank, where there are several.
    """
    timing = _timing(observation)
    if isinstance(timing, Unknown):
        return timing
    try:
        with alone(request, watcher):
            said = _said(request, watcher)
    except DynotuneError as error:
        return Unknown(in_words(error))
    if said.reason or said.replayed is None:
        return Unknown(said.reason or "nothing was replayed")
    return rows(said, timing, request.page_cache)


def rows(said: Said, timing: Timing, page_cache: PageCache) -> list[UpperBound]:
    """The three ceilings, of what the agent said and the plain run's timing."""
    replayed = said.replayed
    if replayed is None or not replayed.num_steps:
        return []
    window_s = replayed.end_s - replayed.begin_s
    step = UpperBound(
        part="step",
        step_s=window_s / replayed.num_steps,
        num_steps=replayed.num_steps,
        samples_per_s=replayed.num_samples / window_s if replayed.num_samples else None,
        notes=["the program changed the batch in place, so it saw other values each time"]
        if said.changed_in_place
        else [],
    )
    both = UpperBound(part="both", step_s=timing.step_s, num_steps=timing.num_steps, samples_per_s=timing.samples_per_s)
    return [_loader(said, replayed.num_steps, page_cache), step, both]


def _loader(said: Said, num_steps: int, page_cache: PageCache) -> UpperBound:
    """A step's batches of all loaders, one loader after another."""
    step_s = sum(row.seconds / row.num_batches * row.num_replayed / num_steps for row in said.loaders)
    duration_s = sum(row.seconds for row in said.loaders)
    only = said.loaders[0] if len(said.loaders) == 1 else None
    notes = [_in_words(row) for row in said.loaders]
    cache, cache_notes = _page_cache(said.dropped, page_cache)
    return UpperBound(
        part="loader",
        step_s=step_s,
        num_steps=max(1, round(duration_s / step_s)) if step_s else 0,
        samples_per_s=only.num_samples / only.seconds if only and only.num_samples and only.seconds else None,
        page_cache=cache,
        notes=notes + cache_notes,
    )


def _in_words(row: Drained) -> str:
    workers = "without workers" if not row.num_workers else f"{row.num_workers} worker{'s' * (row.num_workers > 1)}"
    which = "batches of a whole epoch, its begin included" if row.whole_epoch else "batches"
    return f"{row.num_batches:,} {which}, {workers}"


def _page_cache(dropped: Dropped | None, asked: PageCache) -> tuple[str, list[str]]:
    """What the cache was, and what to be wary of: warm unless the files' pages were seen to be gone."""
    if asked == "warm":
        return "warm", []
    if dropped is None:
        return "warm", ["the page cache could not be emptied"]
    if not dropped.num_files:
        return "warm", ["the page cache could not be emptied: no file lies in the working directory or was open"]
    if dropped.resident_bytes > NOTABLE_RESIDENT * dropped.probed_bytes:
        share = dropped.resident_bytes / dropped.probed_bytes
        return "warm", [f"the page cache could not be emptied: {share:.0%} of the largest files is cached all the same"]
    notes = [f"dropped: {dropped.num_files:,} files of the working directory, and those that were open"]
    if not dropped.complete:
        notes.append("there were too many files to drop them all")
    if dropped.num_refused:
        notes.append(f"{dropped.num_refused:,} files could not be opened")
    if not dropped.probed_bytes:
        notes.append("whether they left the cache could not be seen")
    return "cold", notes


def _timing(observation: Observation) -> Timing | Unknown:
    processes = observation.processes
    if isinstance(processes, Unknown):
        return processes
    return processes[0].timing if processes else Unknown("no process of the command made steps")


def _said(request: RunSpec, watcher: Watcher) -> Said:
    """What the agent of the first rank said.

    Raises:
        DynotuneError: the command failed, or gave no answer.
    """
    facts = facts_of(request) if request.settings else {}
    watcher.running("the command, with its loader alone and then without it")
    run = _Run(request, facts, None)
    if run.said is None and run.ended_by_itself:
        again = within(run.outcome.records[0], request)
        again = RecordFrom(step=max(1, again.step - SETTLE_STEPS), num_steps=again.num_steps)
        watcher.running("the command once more, with its loader alone and then without it")
        run = _Run(request, facts, again)
    if run.said is None:
        refuse_failed(run.outcome, run.job, run.limit_s)
        return Said(reason=f"the command ended after {run.outcome.num_steps} steps, before it was known")
    return run.said


class _Run:
    """One run of the command; `exact`: the step after which the loader is drained, None to wait until it is steady."""

    def __init__(self, request: RunSpec, facts: Facts, exact: RecordFrom | None) -> None:
        folder = new_run_folder(request.base)
        env, planned = environment.build(
            request.settings, request.env, run_dir=folder, agent_dir=environment.AGENT, facts=facts
        )
        self.limit_s = request.timeout_s or LIMIT_S
        self.job = Job(
            id=folder.name,
            what="the run for its ceilings",
            purpose="ceilings",
            command=request.command,
            cwd=request.cwd,
            env=env,
            settings=request.settings,
            plan=Plan(
                settings=planned,
                step_on=request.step_function,
                seed=request.seed,
                pilot=True,
                ceilings=True,
                page_cache=request.page_cache,
            ),
            sandbox=request.sandbox,
        )
        if exact is not None:
            document.write(folder / TOLD_FILE, exact)
        # Once it has answered there is nothing more to wait for: what the program goes on with is its own.
        request = msgspec.structs.replace(request, run_to_end=False)
        director = Director(request, folder, soon, told=exact, is_over=_is_over)
        self.outcome: Outcome = launch(self.job, folder=folder, limit_s=self.limit_s, enough=director)

    @property
    def ended_by_itself(self) -> bool:
        run = self.outcome.run
        return run.ended_by == "command" and run.exit_code == 0 and bool(self.outcome.records)

    @property
    def said(self) -> Said | None:
        """Of the first rank; None where it ended before it could say, or said that it ended."""
        records = sorted(self.outcome.records, key=lambda record: record.among_ranks("rank") or 0)
        events = [event for record in records if (event := record.last("ceilings")) is not None]
        if not events or events[0].get("at_exit"):
            return None
        return _decoded(events[0])


def _decoded(event: dict[str, Any]) -> Said:
    try:
        return msgspec.convert(event, Said)
    except msgspec.ValidationError as error:
        return Said(reason=f"the agent's answer is damaged: {error}")


def _is_over(record: Record) -> bool:
    said = record.last("ceilings")
    return said is not None and not said.get("at_exit")
