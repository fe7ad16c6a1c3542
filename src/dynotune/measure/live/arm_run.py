"""Run a command once under given settings, in a fresh process, with a window planned from the start."""

from collections.abc import Callable, Sequence
from pathlib import Path

from dynotune.launch.caches import contents
from dynotune.launch.process import environment, revision, variants
from dynotune.launch.records import Record
from dynotune.measure.live.launch_plan import launch_plan
from dynotune.measure.live.live_run import Enough, num_ranks, run_once
from dynotune.measure.live.machine import facts_of_arm
from dynotune.measure.live.outcome import Outcome, refuse_failed
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.events import Window
from dynotune.schema.facts import Facts
from dynotune.schema.run import PERCENTILES, Plan, Purpose, RunSpec
from dynotune.schema.setting import Setting
from dynotune.schema.task import Task, TimeWindow

SYNCHRONISED = (*PERCENTILES, "time-to-first-step")
"""Objectives that measure single steps or calls; each waits for the device."""


def run_settings(
    run: RunSpec,
    settings: Sequence[Setting],
    *,
    label: str,
    cache_folder: Path,
    folder: Path,
    purpose: Purpose,
    facts: Facts,
    limit_s: float,
    warmup_steps: int | None = None,
    window_steps: int | None = None,
    whole_epochs: int = 0,
    enough: Enough = lambda records: False,
    results: Task | None = None,
    go_on: Callable[[], object] = lambda: None,
    other_arm: Sequence[Setting] = (),
) -> Outcome:
    """Run the command under `settings` in the existing `folder`, until its window is complete or
    `enough(records)`.

    Args:
        label: description of the run, such as `a run of the baseline`.
        cache_folder: folder of compile and kernel caches that only these settings use.
        limit_s: time limit (s) of the whole run.
        warmup_steps, window_steps: the window to time; None for a run without a window, such as a pilot.
        whole_epochs: number of epochs in the window; 0 if it may end early, with a whole burst of batches.
        results: extra data to record with the steps, such as results or shapes.
        go_on: function that is called repeatedly during the run; an exception from it ends the run.
        other_arm: settings of another arm, for which the agent looks without setting them.

    Raises:
        CommandFailed: the command ended with an error before the window was complete.
        CannotRunHere: the command ran no step or too few steps, or took longer than `limit_s`.
    """
    if run.caches == "cold":
        contents.clear(cache_folder)
    tasks: list[Task] = [] if results is None else [results]
    if window_steps is not None:
        # A percentile needs equally many steps of both arms.
        bursts = not whole_epochs and run.objective not in SYNCHRONISED
        window = TimeWindow(
            at_step=warmup_steps or 1,
            num_steps=window_steps,
            whole_bursts=bursts,
            times_calls=run.objective == "call-latency-p99",
        )
        tasks = [window]
        enough = _has_window
    launch = launch_plan(
        run,
        settings,
        folder=folder,
        label=label,
        purpose=purpose,
        facts=facts,
        cache_folder=cache_folder,
        plan=Plan(
            tasks=tasks,
            note_events=purpose == "pilot",
            sync_steps=run.objective in SYNCHRONISED and results is None,
        ),
        times_start=run.objective == "time-to-first-step",
        memory=run.objective == "memory" and purpose == "measured",
        samples=purpose == "measured",
        run_to_end=run.run_to_end and results is None,
        other_arm=other_arm,
    )

    def is_enough(records: list[Record]) -> bool:
        go_on()
        return enough(records)

    outcome = run_once(launch, folder=folder, limit_s=limit_s, enough=is_enough)
    complete = outcome.records if launch.window is None else _has_window(outcome.all_records)
    if outcome.run.ended_by == "window" or (outcome.run.exit_code == 0 and complete):
        return outcome
    refuse_failed(outcome, launch, limit_s)
    raise CannotRunHere(
        f"The command ended by itself after {outcome.num_steps} steps, before the window of {window_steps} "
        "was "
        "complete.",
        hint=(
            "Let it run longer (more epochs, more data), or ask for a shorter window with --warmup and "
            "--steps."
        ),
    )


def refuse_impossible(run: RunSpec, settings: Sequence[Setting], facts: Facts) -> None:
    """Refuse, before the command runs, settings that `run_settings` would refuse.

    Raises UsageError, CannotRunHere: of `environment.build`, `variants.variant`, `revision.find` and
    `facts_of_arm`.
    """
    env = variants.variant(run.command, run.env, settings, run.cwd).env
    arm_facts = facts_of_arm(run, settings, facts)
    environment.build(settings, env, run_dir=run.base, facts=arm_facts)
    ref = revision.pinned(settings, facts)
    if ref is not None:
        revision.refuse_unseen(revision.find(run.cwd, ref), run.base, sandbox=run.sandbox)


def _has_window(records: Sequence[Record]) -> bool:
    """Tell whether all ranks have timed their window."""
    windows = [window for record in records if (window := record.last(Window))]
    return bool(windows) and len(windows) >= max(num_ranks(records), *(one.world_size for one in windows))
