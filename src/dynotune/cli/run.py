"""`dynotune run`: run the command with settings, as if dynotune were not there."""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from dynotune.cli import command_of, run_options
from dynotune.cli.answers import write_json
from dynotune.cli.options import Json, check_json, option
from dynotune.cli.run_options import RunDir, Settings, StepFunction, runs_folder, typed_settings
from dynotune.schema import redaction
from dynotune.schema.errors import CannotRunHere, DynotuneError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dynotune.launch import Exit
    from dynotune.launch.process import TransparentRun
    from dynotune.measure.account import EnergyMeter
    from dynotune.schema.facts import Facts, Unknown
    from dynotune.schema.recipe import Recipe
    from dynotune.schema.run import Run
    from dynotune.schema.setting import Setting

RecipeFile = Annotated[Path | None, option("run_recipe")]
Strict = Annotated[bool, option("run_strict", "--strict")]
Recordable = Annotated[bool, option("run_recordable", "--recordable")]
Exact = Annotated[bool, option("run_exact", "--exact")]
Account = Annotated[bool, option("run_account", "--account")]


def run(
    context: typer.Context,
    settings: Settings = None,
    recipe: RecipeFile = None,
    exact: Exact = False,
    strict: Strict = False,
    step_function: StepFunction = None,
    json: Json = None,
    run_dir: RunDir = None,
    recordable: Recordable = False,
    account: Account = False,
) -> None:
    command = command_of(context)
    transparently(
        command,
        settings,
        recipe,
        strict,
        step_function,
        run_dir,
        exact=exact,
        json=json,
        recordable=recordable,
        account=account,
    )


def transparently(
    command: list[str],
    settings: list[str] | None,
    recipe: Path | None,
    strict: bool,
    step_function: str | None,
    run_dir: Path | None,
    *,
    exact: bool = False,
    json: str | None = None,
    recordable: bool = False,
    account: bool = False,
    watch: Callable[[Path | None], Callable[[Exit], bool]] | None = None,
) -> NoReturn:
    """Run the command with the settings, write the run's record, and exit with the command's exit code or
    signal.

    Args:
        account: whether to print what the time of the whole run went to.
        watch: starts to watch the run in a folder, and returns a function. That function is called when the
            run ends, after the record is written; if it returns True, dynotune exits with 1.
    """
    check_json(json)
    if strict and recipe is None:
        raise UsageError("--strict needs --recipe.", hint="Add --recipe FILE.")
    if exact and recipe is None:
        raise UsageError("--exact needs --recipe.", hint="Add --recipe FILE.")
    proved = None
    if recipe is not None:
        from dynotune.schema import recipe as recipes

        proved = recipes.read(recipe)
    chosen = _settings(settings or [], proved, recipe, exact=exact, strict=strict)
    if any(setting.knob == "git.ref" for setting in chosen):
        raise UsageError(
            "git.ref sets a revision only for measured runs; dynotune run starts the command itself.",
            hint="Check the revision out, or compare it: dynotune compare git.ref=REVISION -- COMMAND",
        )
    env = run_options.environment()
    redaction.learn(env, command)
    facts = _facts(command, Path.cwd(), env, chosen, proved)
    if proved is not None and recipe is not None:
        check_proved(proved, recipe, facts, command, strict=strict)

    from dynotune.launch.process import TransparentRun

    with _folder(runs_folder(run_dir), chosen) as folder, _door(env, recordable=recordable) as env:
        transparent = TransparentRun(command, chosen, cwd=Path.cwd(), folder=folder)
        ended = watch(folder) if watch is not None else lambda _: False
        meter = _energy_meter(env) if account else None
        _let_interrupts_pass()
        exit_ = transparent.run(
            env, facts, step_function=step_function, watched=watch is not None, account=account
        )
        energy_j = None if meter is None else meter.joules()
        try:
            record = transparent.record(exit_)
            if folder is not None:
                _warn(record)
            if json is not None:
                write_json(record, json)
            if account:
                _tell_account(folder, transparent, record, proved, energy_j)
        except (DynotuneError, OSError) as error:
            # The exit code is the command's own: problems with the record do not change it.
            with contextlib.suppress(OSError):
                say(f"{error}")
        says_no = ended(exit_)
    if says_no:
        raise typer.Exit(1)
    _end_as(exit_)


def _energy_meter(env: dict[str, str]) -> EnergyMeter:
    from dynotune.measure.account import EnergyMeter

    return EnergyMeter(env)


def _tell_account(
    folder: Path | None,
    transparent: TransparentRun,
    record: Run,
    recipe: Recipe | None,
    energy_j: float | Unknown | None,
) -> None:
    """Print what the time of the run went to on stderr, beside the command's output, and keep it in the run
    folder."""
    from dynotune.measure.account import account_of_run
    from dynotune.report import console, on_terminal
    from dynotune.schema.document import without_secrets

    if folder is None:
        say("there is no account of the run, because nothing could be recorded")
        return
    found = account_of_run(folder, record, transparent.launched_s, recipe=recipe, energy_j=energy_j)
    console(stderr=True).print(on_terminal(without_secrets(found)))


@contextlib.contextmanager
def _door(env: dict[str, str], *, recordable: bool) -> Iterator[dict[str, str]]:
    """Yield the environment in which torch's profiler asks for orders in a private folder, if that was
    requested.

    Sockets have short names, so the folder lies in the folder of temporary files.
    """
    if not recordable:
        yield env
        return
    import tempfile

    from dynotune.launch.process import temporary_folder
    from dynotune.running import prepared
    from dynotune.schema.errors import may_fail

    with contextlib.ExitStack() as stack:
        with may_fail(
            "make a folder for recordings", "Leave --recordable out, or set TMPDIR to another folder."
        ):
            folder = stack.enter_context(temporary_folder(Path(tempfile.gettempdir())))
        yield env | prepared(env, folder)


@contextlib.contextmanager
def _folder(base: Path, settings: list[Setting]) -> Iterator[Path | None]:
    """Yield the run folder, or None if no folder can be made: the command then runs all the same, without a
    record.

    Settings that act inside the process then use a temporary folder while it runs, or are left out.
    """
    import tempfile

    from dynotune.launch import new_run_folder
    from dynotune.launch.process import environment

    folder, said, inside = None, "", environment.applied_inside(settings)
    with contextlib.ExitStack() as stack:
        try:
            folder = new_run_folder(base)
        except CannotRunHere as error:
            said = f"nothing is recorded: {error}"
        if folder is None and inside:
            try:
                temporary = tempfile.TemporaryDirectory(prefix="dynotune-", ignore_cleanup_errors=True)
                folder = new_run_folder(Path(stack.enter_context(temporary)))
            except (CannotRunHere, OSError):
                said += f" Without a folder these settings are not applied: {', '.join(map(str, inside))}."
        if said:
            with contextlib.suppress(OSError):
                say(said)
        try:
            yield folder
        except DynotuneError:
            if folder is not None:  # a request that is refused before the command starts leaves no run folder
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise


def say(text: str) -> None:
    """Print a message on stderr beside the command's output, without secrets."""
    from dynotune.text import words

    print(f"dynotune: {words.plain(redaction.redacted(text), longest=4000)}", file=sys.stderr)


def _let_interrupts_pass() -> None:
    """Leave Ctrl-C to the command from here on; dynotune ends after the command, with the same exit code or
    signal."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        # Do not use SIG_IGN, which the command would inherit.
        signal.signal(signal.SIGINT, lambda number, frame: None)


def _end_as(exit_: Exit) -> NoReturn:
    # Python takes its handlers away before it ends; no process inherits this any more.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if exit_.signal is not None:
        from dynotune.launch import die_by

        die_by(exit_.signal)
        raise typer.Exit(128 + exit_.signal)
    raise typer.Exit(exit_.status)


def _settings(
    texts: list[str], recipe: Recipe | None, path: Path | None, *, exact: bool, strict: bool
) -> list[Setting]:
    """Return the recipe's applicable settings, overridden by those of the command line; print the ones left
    out.

    With `exact`, settings that may change results are left out, too.

    Raises:
        UsageError: `exact` is true, and the command line sets what may change results.
        CannotRunHere: `strict` is true, and settings were left out for another reason than `exact`.
    """
    given = typed_settings(texts)
    if recipe is None:
        return given
    from dynotune.recipes import checking

    chosen, left_out = checking.settings(recipe, str(path), given)
    lines = checking.not_applied(left_out, str(path))
    if strict and lines:
        first, *options = lines
        raise CannotRunHere(first, hint=" ".join(map(str.strip, options)))
    if exact:
        chosen, inexact = checking.exact(chosen, given)
        lines += checking.not_exact(inexact, str(path))
    for line in lines:
        say(line)
    if not chosen:
        say(f"nothing of {path} is applied: the command runs as it is")
    return chosen


def check_proved(recipe: Recipe, path: Path, facts: Facts, command: list[str], *, strict: bool) -> None:
    """Print how machine and command differ from the recipe's. Raises CannotRunHere if `strict` and they
    differ."""
    from dynotune.recipes import checking
    from dynotune.text import words

    said = [str(differs) for differs in checking.differences(recipe, facts, command, strict=strict)]
    if strict or recipe.proof:
        said += checking.unproved(recipe)
    if strict and said:
        verify = words.command(["dynotune", "recipe", "verify", str(path), "--", *command])
        raise CannotRunHere(
            f"{path} was not proved as it would be run: {'; '.join(said)}.",
            hint=f"Prove it here: {verify}; or leave --strict out to apply it anyway.",
        )
    for text in said:
        say(f"{path}: {text}")


def _facts(
    command: list[str], cwd: Path, env: dict[str, str], settings: list[Setting], recipe: Recipe | None
) -> Facts:
    """Collect the facts that the settings, or the proofs of the recipe, need; no other facts are
    collected."""
    from dynotune import knobs, probe

    if not settings and recipe is None:
        return {}
    facts: Facts = {**probe.host.facts(), **probe.nvml.facts(env)}
    python = probe.interpreter(command, env, cwd)
    if isinstance(python, str):
        facts |= probe.torch_build.ask(python, cwd, env)
    else:
        facts |= dict.fromkeys(probe.torch_build.NAMES, python)
    for setting in settings:
        knobs.check_applies(setting, facts)
    return facts


def _warn(record: Run) -> None:
    """Print on stderr why memory ran out and which settings failed to apply; the command's exit code stays as
    it is."""
    from dynotune.schema.facts import Unknown

    for said in {process.out_of_memory for process in record.processes if process.out_of_memory}:
        say(said)
    missing = {setting.knob for setting in record.settings} - {r.knob for r in record.readback}
    if missing:
        why = (
            "no Python process of the command began a record (was it started with -I, -E or -S?)"
            if not record.processes
            else "torch was not imported"
        )
        say(f"{', '.join(sorted(missing))}: could not be read back: {why}")
    for readback in record.readback:
        if readback.ok is False:
            found = readback.found.reason if isinstance(readback.found, Unknown) else readback.found
            detail = f" ({readback.detail})" if readback.detail and readback.detail != found else ""
            say(f"{readback.knob}={readback.asked} did not take effect: {found}{detail}")
