"""`dynotune tune`: find the settings that help a command, prove them, and write them to a recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from dynotune import api
from dynotune.cli import answers, completion, options, resumption, run_options, serving
from dynotune.cli.option_values import one_of, seconds_of
from dynotune.cli.options import Json, Margin, Resume, Serve, Storage, StudyName, Token, option
from dynotune.cli.run_options import runs_a_command
from dynotune.schema import toml_text, untrusted
from dynotune.schema.errors import UsageError, may_fail
from dynotune.schema.run import RunSpec

if TYPE_CHECKING:
    from dynotune.measure.live import Watcher
    from dynotune.schema.setting import Setting
    from dynotune.schema.study import BaseRecipe, Study
    from dynotune.search import TuneRequest

T = TypeVar("T")
RECIPE = "recipe.toml"
WITH_RESUME = ("budget", "output", "report", "fail_on", "serve", "token")
"""Options that may be typed together with --resume; a resumed study keeps all other options."""


@runs_a_command("settings", "objective", "warmup_steps", "window_steps", "seed", "caches", "lanes", seed=0)
def tune(
    context: typer.Context,
    budget: Annotated[
        float | None, option("tune_budget", "--budget", parser=str, callback=seconds_of)
    ] = None,
    recipe: Annotated[Path | None, option("tune_recipe")] = None,
    exact: Annotated[bool, option("tune_exact", "--exact")] = False,
    allow: Annotated[list[str] | None, option("tune_allow")] = None,
    extra: Annotated[
        list[str] | None, option("tune_extra", "--try", autocompletion=completion.settings)
    ] = None,
    exclude: Annotated[list[str] | None, option("tune_exclude", autocompletion=completion.settings)] = None,
    values: Annotated[list[str] | None, option("tune_values")] = None,
    margin: Margin = 0.01,
    storage: Storage = None,
    study_name: StudyName = "",
    ray: Annotated[str, option("tune_ray")] = "",
    resume: Resume = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"Where the recipe goes. Default: {RECIPE} in this folder."),
    ] = None,
    report: Annotated[Path | None, option("tune_report")] = None,
    fail_on: Annotated[str | None, option("tune_fail_on", callback=one_of("nothing-proved"))] = None,
    serve: Serve = None,
    token: Token = None,
    json: Json = None,
    *,
    run: RunSpec,
) -> None:
    from dynotune.search import tune as studies

    if not 0 < margin < 1:
        raise UsageError(f"--margin {margin:g} is not between 0 and 1.", hint="0.01 is one per cent.")
    options.check_json(json)
    # A recipe of other origin is left as it is, and needs no room.
    api.check_output(output or (None if Path(RECIPE).exists() else RECIPE), "--output")
    api.check_output(report, "--report")
    if resume is not None:
        folder = resumption.resumed_folder(context, resume, run.base, studies.FILE, but=WITH_RESUME)
        study = _watched(lambda watcher: studies.resume(folder, run, budget, watcher), serve, token)
    else:
        base_recipe = None
        if recipe is not None:
            base_recipe, settings = _base_recipe(recipe, run.settings, exact=exact)
            run = msgspec.structs.replace(run, settings=settings)
        elif run.settings:
            raise UsageError("--set needs --recipe.", hint="Add --recipe FILE; or try it: --try.")
        run_options.check_run(context, run, looks_for_script=True)
        for text in (*(extra or ()), *(values or ()), *map(str, run.settings)):
            toml_text.quoted(text)  # settings that no recipe can hold are refused before they are measured
        request = studies.TuneRequest(
            run=run,
            margin=margin,
            allow=allow or [],
            exact=exact,
            extra=extra or [],
            exclude=exclude or [],
            values=values or [],
            base_recipe=base_recipe,
        )
        budget_s = budget or studies.BUDGET_S
        shared = _shared(context, storage, study_name, budget_s) | ({"ray": ray} if ray else {})
        folder, study = studied(request, budget_s, serve=serve, token=token, **shared)
    try:
        show(study, json, recipe=_hand_over(folder, study, output=output, report=report))
    finally:
        # Errors while the result is handed over do not change what was proved.
        if json is not None:
            answers.write_json(study, json)
    if fail_on is not None and not study.recipe:
        raise typer.Exit(1)


def _shared(context: typer.Context, storage: str | None, name: str, budget_s: float) -> dict[str, Any]:
    """Return the store and name of a study in a database. Raises the same errors as `options.opened`."""
    if not storage and not name:
        return {}
    store = context.with_resource(options.opened(storage))
    # Wait for a lost database no longer than the study was allowed to take.
    store.patience_s = budget_s
    return {"store": store, "name": name}


def _base_recipe(file: Path, typed: list[Setting], *, exact: bool) -> tuple[BaseRecipe, list[Setting]]:
    """Read the base recipe, with `exact` without its settings that may change results.

    Raises RecordError, UsageError: the file is no recipe, or may not be applied.
    """
    from dynotune.recipes import checking
    from dynotune.schema import recipe as recipes
    from dynotune.schema.study import BaseRecipe

    recipe = recipes.read(file)
    name = str(file.absolute())
    chosen, left_out = checking.settings(recipe, name, typed)
    lines = checking.not_applied(left_out, file.name)
    if exact:
        chosen, inexact = checking.exact(chosen, typed)
        lines += checking.not_exact(inexact, file.name)
    for line in lines:
        answers.say(line)
    if not chosen:
        what = "has no settings" if not recipe.settings else "has no setting that is applied,"
        raise UsageError(f"{file} {what} to begin from.", hint="Leave --recipe out.")
    return BaseRecipe(name, recipe), chosen


def studied(
    request: TuneRequest,
    budget_s: float,
    *,
    serve: str | None = None,
    token: str | None = None,
    **shared: Any,
) -> tuple[Path, Study]:
    """Run the study with its progress on stderr.

    Args:
        serve, token: address and token of a live page, if one is wanted.
        shared: as `search.tune.tune` takes it.

    Raises DynotuneError: as `search.tune.tune`; Interrupted after printing how to continue.
    """
    from dynotune.search import tune as studies

    return _watched(lambda watcher: studies.tune(request, budget_s, watcher, **shared), serve, token)


def _watched(work: Callable[[Watcher], T], serve: str | None, token: str | None) -> T:
    """Do the work with its progress on stderr, and on a page if asked; Interrupted is raised after printing
    how to continue."""
    from dynotune.measure.bench import Interrupted
    from dynotune.report import Progress, console, on_terminal
    from dynotune.schema import document
    from dynotune.schema.study import Study
    from dynotune.search import tune as studies

    screen = console(stderr=True)
    with Progress(screen) as progress, serving.measured(serve, token, progress):
        try:
            return work(progress)
        except Interrupted as stopped:
            which = resumption.resume_with(stopped.folder)
            study = document.read(stopped.folder / studies.FILE, Study)
            progress.clear()
            if study.trials or study.estimates:
                screen.print(on_terminal(study, with_next=False))
            line = f"Stopped. What was measured is kept: dynotune tune --resume {which}"
            screen.print(line, soft_wrap=True)
            raise


def _hand_over(folder: Path, study: Study, *, output: Path | None, report: Path | None) -> Path:
    """Copy the recipe and the report to the requested files; a recipe of other origin is not replaced without
    request.

    Returns:
        The path of the recipe, if there is one.
    """
    from dynotune.search import RECIPE as KEPT
    from dynotune.search import REPORT

    target = output or Path(RECIPE)
    if study.recipe and (folder / KEPT).exists():
        if output is None and target.exists() and not _is_same(target, folder / KEPT):
            answers.say(f"{target} exists already and is left as it is; --output {target} replaces it.")
            target = folder / KEPT
            answers.say(f"Recipe: {target}")
        else:
            answers.say(
                f"Recipe: {target}{', in place of the one that was there' if target.exists() else ''}"
            )
            _copy(folder / KEPT, target, "--output")
    if (folder / REPORT).exists():
        if report is not None:
            _copy(folder / REPORT, report, "--report")
        answers.say(f"Report: {report or folder / REPORT}")
    return target


def _is_same(target: Path, kept: Path) -> bool:
    """Return whether the file at `target` has the content of `kept`; a file that cannot be read has not."""
    try:
        return untrusted.read(target) == untrusted.read(kept)
    except OSError:
        return False


def _copy(source: Path, target: Path, option: str) -> None:
    from dynotune.schema import atomic

    with may_fail(f"write {target}", f"It is in {source}. Name another file with {option}.", UsageError):
        atomic.write(target, untrusted.read(source))


def show(study: Study, json: str | None, *, recipe: Path) -> None:
    """Print the study, unless its JSON goes to standard output. `recipe`: the path of the recipe, if there is
    one."""
    from dynotune.report import on_terminal

    if json != "-":
        answers.show(lambda kept: on_terminal(kept, recipe_path=str(recipe)), study, None)
