"""`dynotune diagnose`: why a command is slow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynotune.cli import command_of
from dynotune.cli.options import check_json, environment, runs_folder, seconds, write_json
from dynotune.schema.errors import UsageError

if TYPE_CHECKING:
    from dynotune.diagnose.request import DiagnoseRequest
    from dynotune.measure.live.request import Watcher
    from dynotune.schema.diagnosis import Diagnosis
    from dynotune.schema.observation import Observation

PAGE_CACHES = ("warm", "cold")
SEVERITIES = ("high", "medium", "low")
OF_WATCHING = {
    "warmup": "--warmup",
    "steps": "--steps",
    "step_on": "--step-on",
    "timeout": "--timeout",
    "settings": "--set",
    "seed": "--seed",
    "finish": "--finish",
    "with_ceilings": "--ceilings",
    "page_cache": "--page-cache",
    "with_limit": "--limit",
    "sandbox": "--sandbox",
    "lock": "--lock",
    "run_dir": "--run-dir",
}

HELP = """Say why your command is slow.

It runs twice until its steps are steady: once plain, to time them, and
once under torch's profiler, to see where the time goes. Each finding
says what it costs at most, where, and which settings are worth proving:

dynotune diagnose -- python train.py
"""


def diagnose(
    context: typer.Context,
    warmup: Annotated[
        int | None, typer.Option(help="Steps before the timed ones; found by a test, without.", min=1)
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps to time in the plain run.", min=1)] = None,
    step_on: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="What ends a step, where it is not found by itself.")
    ] = None,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="Most time for each of the two runs.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="SETTING", help="knob=value; repeat for more.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**32 - 1, help="Of the plain run's random numbers; left alone, without.")
    ] = None,
    finish: Annotated[bool, typer.Option("--finish", help="Let each run go on to its own end.")] = False,
    with_ceilings: Annotated[
        bool, typer.Option("--ceilings", help="Run once more: the loader alone, then one batch replayed.")
    ] = False,
    page_cache: Annotated[
        str,
        typer.Option("--page-cache", metavar="STATE", help="For the loader alone: warm, or cold."),
    ] = "warm",
    with_limit: Annotated[
        bool, typer.Option("--limit", help="Run once more: how far a step is from what the device can do.")
    ] = False,
    sandbox: Annotated[
        bool, typer.Option("--sandbox/--no-sandbox", help="Work on a copy-on-write view of this folder.")
    ] = True,
    lock: Annotated[bool, typer.Option("--lock/--no-lock", help="Wait for another dynotune that measures.")] = True,
    fail_on: Annotated[
        str | None,
        typer.Option(metavar="SEVERITY", help="Exit 1 if a finding is that severe: high, medium or low."),
    ] = None,
    again: Annotated[
        Path | None,
        typer.Option("--from", metavar="OBSERVATION.json", help="Explain what was observed before; no command."),
    ] = None,
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the diagnosis; - is stdout.")
    ] = None,
    run_dir: Annotated[Path | None, typer.Option("--run-dir", metavar="DIR", help="Where the records go.")] = None,
) -> None:
    if fail_on is not None and fail_on not in SEVERITIES:
        raise UsageError(f"--fail-on {fail_on} is no severity.", hint="It is high, medium or low.")
    if page_cache not in PAGE_CACHES:
        raise UsageError(f"--page-cache {page_cache} is no state of it.", hint="It is warm or cold.")
    if page_cache == "cold" and not with_ceilings and again is None:
        raise UsageError("--page-cache is of the loader alone.", hint="Add --ceilings.")
    check_json(json)
    command = context.find_root().obj
    beside: dict[str, Any] = {}
    if again is not None:
        _refuse_watching(context, command)
        observation = _recorded(again)
    else:
        from dynotune.cli.compare import parse
        from dynotune.diagnose import request

        observation, beside = _watch(
            request.DiagnoseRequest(
                command=command_of(context),
                cwd=Path.cwd(),
                env=environment(),
                base=runs_folder(run_dir),
                settings=parse(settings or []),
                warmup_steps=warmup,
                num_steps=steps,
                timeout_s=seconds(timeout, "--timeout"),
                step_on=step_on,
                seed=seed,
                sandbox=sandbox,
                lock=lock,
                finish=finish,
                page_cache="cold" if page_cache == "cold" else "warm",
            ),
            with_ceilings=with_ceilings,
            with_limit=with_limit,
        )
    from dynotune.diagnose.conclude import conclude

    diagnosis = conclude(observation, **beside)
    _show(diagnosis, json)
    if fail_on is not None and _is_there(diagnosis, fail_on):
        raise typer.Exit(1)


def _refuse_watching(context: typer.Context, command: list[str] | None) -> None:
    """Refuse what is about running a command where none is run."""
    if command:
        raise UsageError(
            "--from explains what was observed before, and a command was given.",
            hint="Leave one of them out.",
        )
    for name, option in OF_WATCHING.items():
        if str(getattr(context.get_parameter_source(name), "name", "")) == "COMMANDLINE":
            raise UsageError(f"{option} is about running a command, and --from runs none.", hint="Leave it out.")


def _recorded(path: Path) -> Observation:
    from dynotune.diagnose.gather import replayed

    return replayed(path)


def _watch(request: DiagnoseRequest, *, with_ceilings: bool, with_limit: bool) -> tuple[Observation, dict[str, Any]]:
    """Watch the command with the progress on stderr; what was asked for besides, as `conclude` takes it."""
    from rich.console import Console
    from rich.text import Text

    from dynotune.diagnose.ceilings import ceilings
    from dynotune.diagnose.gather import gather
    from dynotune.diagnose.limit import limit
    from dynotune.report.terminal import Progress
    from dynotune.text.words import plain

    console = Console(stderr=True, highlight=False)
    with Progress(console) as progress:
        watcher: Watcher = progress
        observation, path = gather(request, watcher)
        beside: dict[str, Any] = {}
        if with_ceilings:
            beside["ceilings"] = ceilings(request, watcher, observation)
        if with_limit:
            beside["limit"] = limit(request, watcher, observation)
    console.print(Text(plain(f"Observed: {path}"), style="dim"), soft_wrap=True)
    return observation, beside


def _show(diagnosis: Diagnosis, json: str | None) -> None:
    if json != "-":
        from rich.console import Console

        from dynotune.report.diagnosis import diagnosis_report

        # Names in a program may hold what the terminal's encoding does not.
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")
        Console(highlight=False).print(diagnosis_report(diagnosis))
    if json is not None:
        write_json(diagnosis, json)


def _is_there(diagnosis: Diagnosis, severity: str) -> bool:
    """Whether a finding is of this severity or worse."""
    return any(SEVERITIES.index(finding.severity) <= SEVERITIES.index(severity) for finding in diagnosis.findings)
