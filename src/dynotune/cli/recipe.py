"""`dynotune recipe`: what a recipe says, whether it still holds, and how to have it without dynotune."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynotune.cli.options import check_json, environment, runs_folder, seconds, write_json
from dynotune.schema.errors import CannotRunHere, UsageError

if TYPE_CHECKING:
    from dynotune.measure.live.request import Request
    from dynotune.schema.recipe import Recipe
    from dynotune.schema.setting import Setting

FORMATS = ("shell", "docker", "kubernetes", "sysctl")
DEADLINE_S = 1.9
"""For the facts that `export --format sysctl` asks, as of `doctor`."""

recipe = typer.Typer(
    no_args_is_help=True, help="A recipe: what it says, whether it holds, and how to have it elsewhere."
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="recipe.toml, as `dynotune tune` writes it.")]
Json = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write it as JSON; - is stdout.")]


@recipe.command(
    help="""What a recipe sets, and what proved each setting.

    Nothing is run. For example: dynotune recipe show recipe.toml
    """
)
def show(file: File, json: Json = None) -> None:
    from dynotune.recipes.checking import setting_of
    from dynotune.schema import recipe as recipes

    check_json(json)
    found = recipes.read(file)
    if json != "-":
        from rich.console import Console

        from dynotune.report.recipe import recipe_report

        problems = {}
        for knob, value in found.settings.items():
            try:
                setting_of(knob, value, file.name)
            except UsageError as error:
                problems[knob] = error.message
        _print_anything()
        Console(highlight=False).print(recipe_report(found, problems=problems))
    if json is not None:
        write_json(found, json)


@recipe.command(
    help="""Prove a recipe again: all of its settings against the command as it is.

    Runs the command after --, or the recipe's own, in this folder. The recipe's own
    is whatever its author wrote: of a recipe from others, give yours. Exit code 1
    where the stated speed-up is not met. For example:

    dynotune recipe verify recipe.toml -- python train.py
    """
)
def verify(
    context: typer.Context,
    file: File,
    pairs: Annotated[int, typer.Option(help="Most pairs to measure.", min=2, max=12)] = 12,
    margin: Annotated[float, typer.Option(help="Ratios within this of 1 count as the same.")] = 0.01,
    budget: Annotated[str | None, typer.Option(metavar="TIME", help="Most time for all of it: 90s, 15m, 1h.")] = None,
    warmup: Annotated[int | None, typer.Option(help="Steps before the window; found by a test.", min=1)] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of the window; found by the noise.", min=1)] = None,
    step_on: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="What ends a step; as in the recipe, without.")
    ] = None,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="Most time for one run.")] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Of the runs' random numbers and of the pairs' order.")
    ] = 0,
    caches: Annotated[
        str | None, typer.Option(metavar="warm|cold", help="Compile caches; as in the recipe, without.")
    ] = None,
    finish: Annotated[bool, typer.Option("--finish", help="Let each run go on to its own end.")] = False,
    sandbox: Annotated[
        bool, typer.Option("--sandbox/--no-sandbox", help="Work on a copy-on-write view of this folder.")
    ] = True,
    lock: Annotated[
        bool, typer.Option("--lock/--no-lock", help="Wait for another dynotune that measures on the same cores or GPU.")
    ] = True,
    json: Json = None,
    run_dir: Annotated[Path | None, typer.Option("--run-dir", metavar="DIR", help="Where the records go.")] = None,
) -> None:
    from dynotune.schema import recipe as recipes

    check_json(json)
    found = recipes.read(file)
    settings = _settings(found, file)
    if caches not in (None, "warm", "cold"):
        raise UsageError(f"--caches {caches} is neither warm nor cold.")
    request = _request(
        found,
        command=_command(context, found, file),
        settings=settings,
        base=runs_folder(run_dir),
        max_pairs=pairs,
        margin=margin,
        budget_s=seconds(budget, "--budget"),
        warmup_steps=warmup,
        window_steps=steps,
        step_on=step_on or found.recipe.step_on,
        timeout_s=seconds(timeout, "--timeout"),
        seed=seed,
        caches=caches or found.recipe.caches,
        finish=finish,
        sandbox=sandbox,
        lock=lock,
    )
    if not _is_met(found, request, file, json):
        raise typer.Exit(1)


def _command(context: typer.Context, found: Recipe, file: Path) -> list[str]:
    """What stood after `--`, else the recipe's own, which is said."""
    command = context.find_root().obj
    if command:
        return list(command)
    if not found.recipe.command:
        raise UsageError(
            f"{file} does not say on what command it was proved.",
            hint=f"Put it after two dashes: dynotune recipe verify {shlex.quote(str(file))} -- python train.py",
        )
    from dynotune.text.words import plain

    print(f"Running the recipe's own command: {plain(shlex.join(found.recipe.command))}", file=sys.stderr)
    return list(found.recipe.command)


def _settings(found: Recipe, file: Path) -> list[Setting]:
    from dynotune.recipes import checking

    settings = checking.settings(found, str(file))
    if not settings:
        raise UsageError(f"The recipe {file} has no settings.", hint='They stand below [settings]: "knob" = value.')
    return settings


def _request(found: Recipe, **asked: Any) -> Request:
    """A comparison of the recipe against none, by the recipe's objective.

    Raises:
        CannotRunHere: this dynotune does not measure that objective.
    """
    from dynotune.measure.live.request import Request

    objective = found.recipe.objective
    if "objective" in Request.__struct_fields__:
        asked["objective"] = objective
    elif objective != "throughput":
        raise CannotRunHere(
            f"The recipe's objective is {objective}, which this dynotune does not measure.",
            hint="Verify it with the version of dynotune that wrote it.",
        )
    return Request(cwd=Path.cwd(), env=environment(), **asked)


def _is_met(found: Recipe, request: Request, file: Path, json: str | None) -> bool:
    """Measure, say what came of it, and whether that is what the recipe states."""
    from rich.console import Console

    from dynotune.cli import compare
    from dynotune.measure.live.machine import facts_of
    from dynotune.recipes import checking
    from dynotune.recipes.verify import judge
    from dynotune.report.recipe import verification_report
    from dynotune.schema.recipe import Verification

    differs = [str(one) for one in checking.differences(found, facts_of(request), request.command)]
    differs += checking.unproved(found) if found.proof else []
    comparison = compare.measure(request)
    if comparison.failed is not None:
        # The command's own last lines are the answer; there is nothing to judge.
        compare.show(comparison, json)
    outcome, reason = judge(found, comparison)
    verification = Verification(
        recipe=str(file),
        stated=found.recipe.speedup,
        stated_ci=found.recipe.ci,
        differs=differs,
        outcome=outcome,
        reason=reason,
        comparison=comparison,
    )
    if json != "-":
        compare.show(comparison, None)
        _print_anything()
        Console(highlight=False).print(verification_report(verification))
    if json is not None:
        write_json(verification, json)
    return outcome == "met"


@recipe.command(
    help="""Write a recipe for those who start the program without dynotune.

    What cannot be an environment variable is named with the line of Python that does
    it. sysctl writes what `dynotune doctor` finds on this machine, for an administrator.
    Nothing is applied. For example:

    dynotune recipe export recipe.toml --format kubernetes
    """
)
def export(
    file: File,
    format: Annotated[str, typer.Option(metavar="|".join(FORMATS), help="What to write it for.")],
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Where to; standard output without.")] = None,
    shm_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Shared memory for loader workers: 512Mi, 8Gi.")
    ] = None,
) -> None:
    from dynotune.schema import recipe as recipes

    if format not in FORMATS:
        raise UsageError(f"--format {format} does not exist.", hint=f"Give one of {', '.join(FORMATS)}.")
    if shm_size is not None and re.fullmatch(r"[1-9][0-9]*[KMGT]i", shm_size) is None:
        raise UsageError(f"--shm-size {shm_size} is not a size.", hint="For example --shm-size 8Gi.")
    if out is not None and Path(out).exists() and Path(out).resolve() == file.resolve():
        raise UsageError(f"--out {out} is the recipe itself.", hint="Name another file.")
    found = recipes.read(file)
    text = _exported(found, _checked(found, file), file, format, shm_size)
    if out is None:
        # As UTF-8 whatever the terminal's encoding is: it is a file for others.
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())
        sys.stdout.flush()
        return
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"Cannot write {out}: {error.strerror}.", hint="Name another file with --out.") from error


def _checked(found: Recipe, file: Path) -> list[Setting]:
    from dynotune.recipes import checking

    return checking.settings(found, str(file))


def _exported(found: Recipe, settings: list[Setting], file: Path, format: str, shm_size: str | None) -> str:
    from dynotune.report import export as formats

    if format == "sysctl":
        from dynotune import probe
        from dynotune.doctor import ObservationView, examine
        from dynotune.schema.observation import Observation

        facts = probe.machine(environment(), python=sys.executable, cwd=Path.cwd(), deadline_s=DEADLINE_S)
        return formats.sysctl(file.name, *examine(ObservationView(Observation(facts=facts)), "machine"))
    from dynotune.recipes.export import parts

    made = parts(found, settings, str(file), shm_size)
    write = {"shell": formats.shell, "docker": formats.docker, "kubernetes": formats.kubernetes}[format]
    return write(made)


def _print_anything() -> None:
    """Names and values may hold what the terminal's encoding does not."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
