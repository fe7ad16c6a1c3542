"""`dynotune run`: the command with settings, as if dynotune were not there."""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from dynotune.cli import command_of
from dynotune.cli.options import check_json, environment, runs_folder, write_json
from dynotune.schema.errors import DynotuneError, UsageError

if TYPE_CHECKING:
    from dynotune.launch import Exit
    from dynotune.schema.facts import Facts
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
    check_json(json)
    chosen = _settings(settings or [], recipe)
    env = environment()
    facts = _facts(command, Path.cwd(), env, chosen)

    from dynotune.launch import new_run_folder
    from dynotune.launch.transparent import TransparentRun

    folder = new_run_folder(runs_folder(run_dir))
    transparent = TransparentRun(command, chosen, cwd=Path.cwd(), folder=folder)
    _let_interrupts_pass()
    exit_ = transparent.run(env, facts, step_on=step_on)
    try:
        record = transparent.record(exit_)
        _warn(record)
        if json is not None:
            write_json(record, json)
    except (DynotuneError, OSError) as error:
        # The command's end is its own: what becomes of the record does not change it.
        with contextlib.suppress(OSError):
            print(f"dynotune: {error}", file=sys.stderr)
    _end_as(exit_)


def _let_interrupts_pass() -> None:
    """From here on a Ctrl-C is the command's: it neither ends us before it nor changes how we end after it."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        # Not SIG_IGN, which the command would inherit.
        signal.signal(signal.SIGINT, lambda number, frame: None)


def _end_as(exit_: Exit) -> NoReturn:
    if exit_.signal is not None:
        from dynotune.launch import die_by

        die_by(exit_.signal)
        raise typer.Exit(128 + exit_.signal)
    raise typer.Exit(exit_.status)


def _settings(texts: list[str], recipe: Path | None) -> list[Setting]:
    """The recipe's settings, and those of the command line, which win."""
    from dynotune import knobs

    chosen = _of_recipe(recipe) if recipe is not None else {}
    given: set[str] = set()
    for text in texts:
        setting = knobs.parse(text)
        if setting.knob in given and setting != chosen[setting.knob]:
            raise UsageError(f"{chosen[setting.knob]} and {setting} were both given.", hint="Give one of them.")
        given.add(setting.knob)
        chosen[setting.knob] = setting
    return list(chosen.values())


def _of_recipe(path: Path) -> dict[str, Setting]:
    """The settings of an untrusted file.

    Raises:
        RecordError: it is no recipe of a version we know. UsageError: a setting of it is unknown or unsafe.
    """
    from dynotune import knobs
    from dynotune.schema import recipe as recipes

    chosen = {}
    for knob, value in recipes.read(path).settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        try:
            setting = knobs.parse(f"{knob}={text}")
        except UsageError as error:
            raise UsageError(f"In the recipe {path}: {error.message}", hint=error.hint) from error
        if setting.knob != knob or not f"{knob}{text}".isprintable():
            raise UsageError(f"In the recipe {path}: {knob!r} is no knob.", hint="`dynotune knobs` lists them.")
        if knobs.loads_code(setting):
            raise UsageError(
                f"The recipe {path} sets {setting}: that can make the command load foreign code or settings.",
                hint=f"If you trust it, take it out of the recipe and give it yourself: --set {knob}=…",
            )
        chosen[knob] = setting
    return chosen


def _facts(command: list[str], cwd: Path, env: dict[str, str], settings: list[Setting]) -> Facts:
    """What the settings need to know; nothing is asked that no setting needs."""
    from dynotune import knobs, probe

    if not settings:
        return {}
    facts: Facts = {**probe.host.facts(), **probe.nvml.facts(env)}
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
