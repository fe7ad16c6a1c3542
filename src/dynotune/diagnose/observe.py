"""The plain run: nothing records it, and the device is synchronised at the two ends of its window only."""

from __future__ import annotations

import statistics
from pathlib import Path

import msgspec

from dynotune import probe
from dynotune.diagnose.request import DiagnoseRequest
from dynotune.launch import environment, new_run_folder
from dynotune.launch.record import Record
from dynotune.measure.machine import alone, facts_of
from dynotune.measure.one_run import Job, launch, refuse_failed
from dynotune.measure.pilot import STEADY_S, STEADY_STEPS, steady_steps
from dynotune.measure.request import Watcher
from dynotune.schema.facts import Facts
from dynotune.schema.observation import ProcessState, Timing
from dynotune.schema.run import Plan, Run

LIMIT_S = 900.0


class PlainRun(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of the plain run.

    Args:
        processes: those that make steps, in the order of ranks.
        samples: of the machine beside it; `begin_s`, `end_s`: the window, of all ranks, on the same clock.
        facts: `window.*`, of the samples within the window.
    """

    folder: Path
    run: Run
    processes: list[ProcessState]
    samples: list[probe.Sample] = []
    begin_s: float
    end_s: float
    facts: Facts = {}
    notes: list[str] = []


def plain_run(request: DiagnoseRequest, watcher: Watcher) -> PlainRun:
    """Time the command once its steps are steady.

    Raises:
        CommandFailed, CannotRunHere: as `measure.one_run.refuse_failed`.
    """
    with alone(request, watcher):
        watcher.running("the command, plain")
        folder = new_run_folder(request.base)
        facts = facts_of(request) if request.settings else {}
        env, planned = environment.build(
            request.settings, request.env, run_dir=folder, agent_dir=environment.AGENT, facts=facts
        )
        job = Job(
            id=folder.name,
            what="the plain run",
            purpose="pilot",
            command=request.command,
            cwd=request.cwd,
            env=env,
            settings=request.settings,
            plan=Plan(settings=planned, step_on=request.step_on, seed=request.seed, pilot=True),
            sandbox=request.sandbox,
        )
        outcome = launch(job, folder=folder, limit_s=request.timeout_s or LIMIT_S, enough=_enough)
    if not outcome.records or (outcome.run.exit_code and outcome.run.ended_by == "command"):
        refuse_failed(outcome, job, request.timeout_s or LIMIT_S)
    record = outcome.records[0]
    state = ProcessState(pid=record.pid, timing=_timing(record))
    first = steady_steps(record) or len(record.steps) // 2
    return PlainRun(
        folder=folder,
        run=outcome.run,
        processes=[state],
        samples=probe.read_samples(folder / "samples.jsonl"),
        begin_s=record.steps[first].end_s,
        end_s=record.steps[-1].end_s,
    )


def _enough(records: list[Record]) -> bool:
    if not records:
        return False
    first = steady_steps(records[0])
    steps = records[0].step_s[first or 0 :]
    return first is not None and len(steps) >= STEADY_STEPS and sum(steps) >= STEADY_S


def _timing(record: Record) -> Timing:
    first = steady_steps(record) or len(record.steps) // 2
    step_s, waits = record.step_s[first:], [step.wait_s for step in record.steps[first:]]
    ranked = sorted(step_s)
    return Timing(
        num_steps=len(step_s),
        window_s=sum(step_s),
        step_s=statistics.fmean(step_s),
        median_step_s=statistics.median(step_s),
        p99_step_s=ranked[int(0.99 * (len(ranked) - 1))],
        longest_step_s=ranked[-1],
        wait_s=statistics.fmean(waits),
    )
