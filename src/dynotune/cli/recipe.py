"""`dynotune recipe`: show a recipe, prove it again, or export it for use without dynotune."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from dynotune.cli import answers, recipe_patch, run_options
from dynotune.cli.option_values import one_of
from dynotune.cli.options import Budget, Json, Margin, Pairs, check_json, option
from dynotune.cli.run_options import runs_a_command
from dynotune.schema import redaction
from dynotune.schema.errors import UsageError, may_fail
from dynotune.schema.run import RunSpec

if TYPE_CHECKING:
    from dynotune.knobs import Checked
    from dynotune.measure.live import CompareRequest
    from dynotune.schema.recipe import Recipe
    from dynotune.schema.setting import Setting

FORMATS = ("shell", "docker", "kubernetes", "sysctl", "patch", "card")
DEADLINE_S = 1.9
"""The time limit, in seconds, for collecting the facts that `export --format sysctl` needs, as in
`doctor`."""

recipe = typer.Typer(no_args_is_help=True, help="Show, re-verify or export a recipe.")

File = Annotated[Path, typer.Argument(metavar="FILE", help="recipe.toml, as `dynotune tune` writes it.")]


@recipe.command(
    help="""What a recipe sets, and what proved each setting.

    Nothing is run. For example: dynotune recipe show recipe.toml
    """
)
def show(file: File, json: Json = None) -> None:
    from dynotune.recipes import checking
    from dynotune.report import recipe_report
    from dynotune.schema import recipe as recipes

    check_json(json)
    found = recipes.read(file)
    effects, problems = checking.effects(found), checking.problems(found, file.name)
    answers.show(lambda kept: recipe_report(kept, effects=effects, problems=problems), found, json)


@recipe.command()
@runs_a_command(
    "settings", "warmup_steps", "window_steps", "seed", "caches", "run_to_end", seed=0, caches=None
)
def verify(
    context: typer.Context,
    file: File,
    pairs: Pairs = 12,
    margin: Margin = 0.01,
    budget: Budget = None,
    json: Json = None,
    *,
    run: RunSpec,
) -> None:
    from dynotune.measure.live import CompareRequest
    from dynotune.schema import recipe as recipes

    check_json(json)
    found = recipes.read(file)
    settings, left_out = _checked(found, file, run.settings)
    if not settings:
        raise UsageError(
            f"The recipe {file} has no setting to apply.", hint='They stand below [settings]: "knob" = value.'
        )
    run = _measured_as(found, file, run, context)
    run_options.check_run(context, run, settings)
    request = CompareRequest(run=run, candidate=settings, max_pairs=pairs, margin=margin, budget_s=budget)
    unapplied = [f"{setting} is not applied: only the user may set it" for setting in left_out]
    if not _is_met(found, request, file, json, unapplied=unapplied):
        raise typer.Exit(1)


def _measured_as(found: Recipe, file: Path, run: RunSpec, context: typer.Context) -> RunSpec:
    """Return the run in the way in which the recipe was proved, with the recipe's baseline."""
    from dynotune.recipes import checking

    return msgspec.structs.replace(
        run,
        settings=checking.baseline(found, str(file)),
        command=_command(context, found, file, run),
        objective=found.recipe.objective,
        step_function=run.step_function or found.recipe.step_function,
        phase=run.phase or found.recipe.phase,
        caches=run.caches or found.recipe.caches,
    )


def _command(context: typer.Context, found: Recipe, file: Path, run: RunSpec) -> list[str]:
    """Return the command after `--`, else the recipe's command if the user has typed this command on this
    machine."""
    command = context.find_root().obj
    if command:
        return list(command)
    from dynotune.text import words

    if not found.recipe.command:
        raise UsageError(
            f"{file} does not say on what command it was proved.",
            hint=(
                f"Put it after two dashes: dynotune recipe verify {words.command([str(file)])} -- python "
                "train.py"
            ),
        )
    shown = words.command(redaction.words(found.recipe.command))
    if any(redaction.MARK in word for word in found.recipe.command):
        raise UsageError(
            f"The command of {file} held secrets, which no recipe keeps: {shown}",
            hint=(
                f"Type it again, after two dashes: dynotune recipe verify {words.command([str(file)])} -- "
                "COMMAND"
            ),
        )
    from dynotune.launch.process import origin

    if not origin.was_typed(run.base, redaction.words(found.recipe.command), run.cwd):
        raise UsageError(
            f"{file} names a command that you have not measured here, and running it could run foreign "
            f"code: {shown}",
            hint=(
                "If you trust it, type it after two dashes: dynotune recipe verify "
                f"{words.command([str(file)])} -- "
            )
            + shown,
        )
    redaction.learn({}, found.recipe.command)
    answers.say(f"Running the recipe's own command: {shown}")
    return list(found.recipe.command)


def _checked(found: Recipe, file: Path, typed: list[Setting]) -> Checked:
    """Split the recipe's settings into those that may be applied and the others, which are listed on
    stderr."""
    from dynotune.recipes import checking
    from dynotune.report import console

    checked = checking.settings(found, str(file), typed)
    for line in checking.not_applied(checked.left_out, str(file)):
        console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)
    return checked


def _is_met(
    found: Recipe, request: CompareRequest, file: Path, json: str | None, *, unapplied: Sequence[str]
) -> bool:
    """Measure the recipe again, print the result, and return whether the recipe's stated gain was met."""
    from dynotune.cli import compare
    from dynotune.measure.live import facts_of
    from dynotune.recipes import checking, judge_recipe
    from dynotune.report import verification_report
    from dynotune.schema.recipe import Verification

    differs = [str(one) for one in checking.differences(found, facts_of(request.run), request.run.command)]
    differs += checking.unproved(found) if found.proof else []
    differs += unapplied
    comparison = compare.measure(request)
    if comparison.failed is not None:
        # The command failed: its last lines are the answer, and there is nothing to judge.
        compare.show(comparison, json)
    outcome, reason = judge_recipe(found, comparison, is_whole=not unapplied)
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
    answers.show(verification_report, verification, json)
    return outcome == "met"


@recipe.command(
    help="""Write a recipe for those who start the program without dynotune.

    What cannot be an environment variable is named with the line of Python that does
    it. sysctl writes what `dynotune doctor` finds on this machine, for an administrator.
    patch writes a diff of the program's own files, for `git apply`; --verify measures the
    patched files before. card draws one SVG for a pull request. Nothing is applied. For
    example:

    dynotune recipe export recipe.toml --format kubernetes
    """
)
@runs_a_command(
    "settings", "warmup_steps", "window_steps", "seed", "caches", "run_to_end", seed=0, caches=None
)
def export(
    context: typer.Context,
    file: File,
    format: Annotated[str, option("recipe_format", metavar="|".join(FORMATS), callback=one_of(*FORMATS))],
    output: Annotated[str | None, option("recipe_output")] = None,
    shm_size: Annotated[str | None, option("recipe_shm_size")] = None,
    verify: Annotated[bool, option("recipe_verify", "--verify")] = False,
    pairs: Pairs = 12,
    margin: Margin = 0.01,
    budget: Budget = None,
    *,
    run: RunSpec,
) -> None:
    from dynotune.schema import recipe as recipes

    if shm_size is not None and re.fullmatch(r"[1-9][0-9]*[KMGT]i", shm_size) is None:
        raise UsageError(f"--shm-size {shm_size} is not a size.", hint="For example --shm-size 8Gi.")
    if output is not None and Path(output).exists() and Path(output).resolve() == file.resolve():
        raise UsageError(f"--output {output} is the recipe itself.", hint="Name another file.")
    if verify and (format != "patch" or output is None):
        raise UsageError(
            "--verify measures the patched files, and prints what it found.",
            hint="Give --format patch, and --output FILE for the patch.",
        )
    found = recipes.read(file)
    checked = _checked(found, file, run.settings)
    patch = recipe_patch.made(found, checked, run) if format == "patch" else None
    if patch is None:
        content = _exported(found, checked, file, format, shm_size).encode()
    else:
        content = recipe_patch.text(patch, found, file, output)
        recipe_patch.say_refused(patch)
    if output is None:
        answers.write_bytes(content)
    else:
        from dynotune.schema import atomic

        with may_fail(f"write {output}", "Name another file with --output.", UsageError):
            atomic.write(Path(output), content)
    if verify and patch is not None:
        measured = _measured_as(found, file, run, context)
        request = recipe_patch.request(patch, measured, pairs, margin, budget)
        run_options.check_run(context, measured, request.candidate)
        unapplied = [f"{setting} is not in the patch" for setting in patch.refused]
        unapplied += [
            f"{setting} is not in the patch: only the user may set it" for setting in checked.left_out
        ]
        if not _is_met(found, request, file, None, unapplied=unapplied):
            raise typer.Exit(1)


def _exported(found: Recipe, checked: Checked, file: Path, format: str, shm_size: str | None) -> str:
    from dynotune.recipes import export_parts
    from dynotune.report import card
    from dynotune.report import export as formats

    if format == "card":
        return card(found, list(map(str, checked.applied)), redaction.words(found.recipe.command))

    if format == "sysctl":
        from dynotune import probe
        from dynotune.doctor import ObservationView, examine
        from dynotune.schema.observation import Observation

        env, cwd = run_options.environment(), Path.cwd()
        facts = probe.machine(env, python=sys.executable, cwd=cwd, deadline_s=DEADLINE_S)
        return formats.sysctl(file.name, *examine(ObservationView(Observation(facts=facts)), "machine"))

    made = export_parts(found, checked.applied, str(file), shm_size, left_out=checked.left_out)
    write = {"shell": formats.shell, "docker": formats.docker, "kubernetes": formats.kubernetes}[format]
    return write(made)
