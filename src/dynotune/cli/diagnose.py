"""`dynotune diagnose`: why a command is slow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from dynotune.cli import answers, options
from dynotune.cli.options import FailOnSeverity, Json, runs_a_command
from dynotune.schema.errors import DynotuneError, TooFewSteps, UsageError, from_elsewhere
from dynotune.schema.run import RunSpec

if TYPE_CHECKING:
    from dynotune.measure.live import Watcher
    from dynotune.schema.observation import Observation

HELP = """Say why your command is slow.

It runs until its steps are steady and is timed; then torch's profiler
records a few more steps, to see where the time goes. Each finding says
what it costs at most, where, and which settings are worth proving:

dynotune diagnose -- python train.py
"""


@runs_a_command("settings", "warmup_steps", "window_steps", "seed", "page_cache", "run_to_end")
def diagnose(
    context: typer.Context,
    isolate_loader: Annotated[
        bool,
        typer.Option("--isolate-loader", help="Also time the loader alone, then the step with one batch replayed."),
    ] = False,
    fail_on: FailOnSeverity = None,
    replay: Annotated[
        Path | None,
        typer.Option(metavar="OBSERVATION.json", help="Explain an earlier observation; give no command with it."),
    ] = None,
    json: Json = None,
    *,
    run: RunSpec,
) -> None:
    if run.page_cache == "cold" and not isolate_loader and replay is None:
        raise UsageError("--page-cache is about the loader alone.", hint="Add --isolate-loader.")
    options.check_json(json)
    beside: dict[str, Any] = {}
    if replay is not None:
        _refuse_watching(context)
        from dynotune.diagnose import replayed

        with from_elsewhere(replay):
            observation = replayed(replay)
    else:
        options.check_run(context, run)
        observation, beside = _watch(run, isolate_loader=isolate_loader)
    from dynotune.diagnose import conclude
    from dynotune.report import diagnosis_report

    with from_elsewhere(replay) if replay is not None else contextlib.nullcontext():
        diagnosis = conclude(observation, **beside)
        answers.show(diagnosis_report, diagnosis, json)
    answers.exit_if_severe(diagnosis.findings, fail_on)


def _refuse_watching(context: typer.Context) -> None:
    """Refuse what is about running a command where none is run."""
    if context.find_root().obj:
        raise UsageError("--replay explains an earlier observation, and a command was given.", hint="Give one of them.")
    if foreign := options.given(context, but=("replay", "json", "fail_on")):
        raise UsageError(f"{foreign[0]} is about running a command, and --replay runs none.", hint="Leave it out.")


def _watch(run: RunSpec, *, isolate_loader: bool) -> tuple[Observation, dict[str, Any]]:
    """Watch the command with the progress on stderr; what was asked for besides, as `conclude` takes it."""
    from dynotune.diagnose import LiveDiagnosis, forecast_loader
    from dynotune.report import Progress, console

    with Progress(console(stderr=True)) as watcher:
        beside: dict[str, Any] = {}

        def observe(run: RunSpec) -> tuple[Observation, Path]:
            with LiveDiagnosis(run, watcher) as live:
                found = live.observe()
                if isolate_loader:
                    bounds = beside["upper_bounds"] = live.isolate_loader()
                    beside["forecasts"] = forecast_loader(run, found[0], bounds)
                live.end()
            return found

        try:
            observation, path = observe(run)
        except TooFewSteps as error:
            if run.phase is not None or run.step_function is not None:
                raise
            observation, path = _other_phase(run, observe, watcher, error)
    answers.say(f"Observed: {path}")
    return observation, beside


def _other_phase(
    run: RunSpec, observe: Callable[[RunSpec], tuple[Observation, Path]], watcher: Watcher, error: TooFewSteps
) -> tuple[Observation, Path]:
    """Observe a command that trains briefly in what it does afterwards; raise `error` where that cannot be observed."""
    watcher.warn(f"{error.message} It is run once more, for what it does without training (--phase inference).")
    try:
        return observe(msgspec.structs.replace(run, phase="inference"))
    except DynotuneError:
        raise error from None
