"""`dynotune run`: the command with settings, as if dynotune were not there."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynotune.cli import command_of
from dynotune.cli.options import runs_folder, write_json

if TYPE_CHECKING:
    from dynotune.launch import Exit
    from dynotune.schema.run import Run
    from dynotune.schema.setting import Setting


def run(
    context: typer.Context,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="SETTING", help="knob=value; repeat for more.")
    ] = None,
    recipe: Annotated[Path | None, typer.Option(metavar="FILE", help="Apply the settings of a recipe.")] = None,
    step_on: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="What ends a step, for the record.")
    ] = None,
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the run's record afterwards.")
    ] = None,
    run_dir: Annotated[Path | None, typer.Option("--run-dir", metavar="DIR", help="Where the record goes.")] = None,
) -> None:
    """Run your command with settings; its output, signals and exit code are its own.

    For example: dynotune run --set loader.num_workers=4 -- python train.py
    """
    command = command_of(context)
    chosen = _settings(settings or [], recipe)
    record, exit_ = _run(command, chosen, runs_folder(run_dir), step_on)
    _warn(record)
    if json is not None:
        write_json(record, json)
    if exit_.signal is not None:
        from dynotune.launch import die_by

        die_by(exit_.signal)
        raise typer.Exit(128 + exit_.signal)
    raise typer.Exit(exit_.status)


def _settings(texts: list[str], recipe: Path | None) -> list[Setting]:
    """The recipe's settings, and those of the command line, which win."""
    from dynotune import knobs
    from dynotune.schema import recipe as recipes

    chosen = {}
    if recipe is not None:
        for knob, value in recipes.read(recipe).settings.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            chosen[knob] = knobs.parse(f"{knob}={text}")
    for text in texts:
        setting = knobs.parse(text)
        chosen[setting.knob] = setting
    return list(chosen.values())


def _run(command: list[str], settings: list[Setting], base: Path, step_on: str | None) -> tuple[Run, Exit]:
    from dynotune.launch import new_run_folder
    from dynotune.launch.transparent import run_transparently

    cwd = Path.cwd()
    facts = _facts(command, cwd, settings)
    folder = new_run_folder(base)
    return run_transparently(
        command, settings, cwd=cwd, env=dict(os.environ), folder=folder, facts=facts, step_on=step_on, now_s=time.time()
    )


def _facts(command: list[str], cwd: Path, settings: list[Setting]):  # type: ignore[no-untyped-def]
    """What the settings need to know; nothing is asked that no setting needs."""
    from dynotune import knobs, probe

    if not settings:
        return {}
    env = dict(os.environ)
    facts = {**probe.host.facts(), **probe.nvml.facts(env)}
    python = probe.interpreter(command, env, cwd)
    if isinstance(python, str):
        facts |= probe.torch_build.ask(python, cwd, env)
    for setting in settings:
        knobs.check_applies(setting, facts)
    return facts


def _warn(record: Run) -> None:
    """Say on stderr which settings the process did not have; the command's own end is not touched by it."""
    from dynotune.schema.facts import Unknown

    missing = {setting.knob for setting in record.settings} - {r.knob for r in record.readback}
    if missing:
        why = (
            "no Python of the command began a record (python -I, -E or -S?)"
            if not record.processes
            else "torch was not imported"
        )
        print(f"dynotune: {', '.join(sorted(missing))}: could not be read back: {why}", file=sys.stderr)
    for readback in record.readback:
        if readback.ok is False:
            found = readback.found.reason if isinstance(readback.found, Unknown) else readback.found
            detail = f" ({readback.detail})" if readback.detail and readback.detail != found else ""
            print(f"dynotune: {readback.knob}={readback.asked} did not take effect: {found}{detail}", file=sys.stderr)
