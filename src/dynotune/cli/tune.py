"""`dynotune tune`: find what helps a command, prove it, and write it down."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from dynotune.cli import command_of
from dynotune.cli.options import (
    OBJECTIVES,
    check_json,
    environment,
    objective_called,
    runs_folder,
    seconds,
    write_json,
)
from dynotune.schema.errors import DynotuneError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from dynotune.measure.live.request import Request, Watcher
    from dynotune.schema.study import Beginning, Study
    from dynotune.search.tune import TuneRequest

T = TypeVar("T")
RECIPE = "recipe.toml"
BUDGET = "15m"
OF_A_NEW_STUDY = {
    "recipe": "--recipe",
    "allow": "--allow",
    "also": "--also",
    "leave_out": "--not",
    "space": "--space",
    "objective": "--objective",
    "margin": "--margin",
    "warmup": "--warmup",
    "steps": "--steps",
    "step_on": "--step-on",
    "timeout": "--timeout",
    "seed": "--seed",
    "caches": "--caches",
    "sandbox": "--sandbox",
}
"""Options that say how a study is made: one that goes on is as it was begun."""

HELP = """Find the settings that help your command, and prove them.

A diagnosis says what may help. That is tried in short runs in fresh
processes; what is left is proved on runs that played no part in the
choice, and written to recipe.toml, which dynotune run --recipe applies:

dynotune tune --budget 15m -- python train.py
"""


def tune(
    context: typer.Context,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"Most time for all of it: 90s, 15m, 1h. {BUDGET} without.")
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Begin from this recipe: find what helps on top of it.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="EFFECT", help="Try settings of this effect too: numerics or semantics; repeat."),
    ] = None,
    also: Annotated[
        list[str] | None, typer.Option(metavar="KNOB[=VALUE]", help="Try this too, whatever it may change; repeat.")
    ] = None,
    leave_out: Annotated[
        list[str] | None, typer.Option("--not", metavar="KNOB[=VALUE]", help="Do not try this; repeat for more.")
    ] = None,
    space: Annotated[
        list[str] | None, typer.Option(metavar="KNOB=A,B,C", help="Try these values of a knob too; repeat for more.")
    ] = None,
    objective: Annotated[
        str, typer.Option(metavar="NAME", help=f"What is to get better: {', '.join(OBJECTIVES)}.")
    ] = "throughput",
    margin: Annotated[float, typer.Option(help="Ratios within this of 1 count as the same.")] = 0.01,
    warmup: Annotated[
        int | None, typer.Option(help="Steps before the window; found by a test, without.", min=1)
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of the window; found by the noise, without.", min=1)] = None,
    step_on: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="What ends a step, where it is not found by itself.")
    ] = None,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="Most time for one run.")] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Of the runs' random numbers and of their order.")
    ] = 0,
    caches: Annotated[
        str, typer.Option(metavar="warm|cold", help="Compile caches: kept between an arm's runs, or emptied.")
    ] = "warm",
    sandbox: Annotated[
        bool, typer.Option("--sandbox/--no-sandbox", help="Work on a copy-on-write view of this folder.")
    ] = True,
    lock: Annotated[
        bool, typer.Option("--lock/--no-lock", help="Wait for another dynotune that measures on the same cores or GPU.")
    ] = True,
    resume: Annotated[
        str | None, typer.Option(metavar="DIR", help="Go on with an interrupted study; --budget gives it another one.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Where the recipe goes; {RECIPE} here, without.")
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Put the report there too (HTML).")] = None,
    gate: Annotated[bool, typer.Option("--gate", help="Exit 1 if nothing was proved.")] = False,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write the study; - is stdout.")] = None,
    run_dir: Annotated[Path | None, typer.Option("--run-dir", metavar="DIR", help="Where the records go.")] = None,
) -> None:
    from dynotune.measure.live.request import Request
    from dynotune.search.tune import TuneRequest

    if caches not in ("warm", "cold"):
        raise UsageError(f"--caches {caches} is neither warm nor cold.")
    if not 0 < margin < 1:
        raise UsageError(f"--margin {margin:g} is not between 0 and 1.", hint="0.01 is one per cent.")
    check_json(json)
    for path, option in ((out, "--out"), (report, "--report")):
        _check_file(path, option)
    if resume is not None:
        _refuse_anew(context)
    base = runs_folder(run_dir)
    kind: Literal["warm", "cold"] = "warm" if caches == "warm" else "cold"
    request = Request(
        command=command_of(context) if resume is None else [],
        settings=[],
        objective=objective_called(objective),
        cwd=Path.cwd(),
        env=environment(),
        base=base,
        warmup_steps=warmup,
        window_steps=steps,
        margin=margin,
        timeout_s=seconds(timeout, "--timeout"),
        step_on=step_on,
        seed=seed,
        caches=kind,
        sandbox=sandbox,
        lock=lock,
    )
    words = TuneRequest(
        run=request,
        allow=allow or [],
        also=also or [],
        excluded=leave_out or [],
        space=space or [],
        began_from=None if recipe is None else _beginning(recipe),
    )
    folder, study = studied(words, seconds(budget, "--budget"), resume=resume)
    proved = study
    try:
        written = _hand_over(folder, study, out=out, report=report)
        show(study, json, recipe=written)
        if resume is None:
            for further in _further(folder, study, request, json, written, out=out, report=report):
                proved = further
    finally:
        # Whatever comes of going on: what was proved stands.
        if json is not None:
            write_json(proved, json)
    if gate and not _is_proved(proved):
        raise typer.Exit(1)


def _is_proved(study: Study) -> bool:
    """Whether anything was, by this study or by that which it follows: a sequel may be resumed by itself."""
    return bool(study.recipe) or (study.began_from is not None and study.began_from.is_sequel)


def _beginning(file: Path) -> Beginning:
    """Raises RecordError and UsageError: it is no recipe, or holds what may not be applied."""
    from dynotune.recipes import checking
    from dynotune.schema import recipe as recipes
    from dynotune.schema.study import Beginning

    recipe = recipes.read(file)
    # A name that is no text cannot be kept in a study.
    name = str(file.absolute()).encode(errors="replace").decode()
    chosen = checking.settings(recipe, name)
    if not chosen:
        raise UsageError(f"{file} has no settings to begin from.", hint="Leave --recipe out.")
    return Beginning(name, recipe, chosen)


def _further(
    folder: Path, study: Study, run: Request, json: str | None, written: Path, *, out: Path | None, report: Path | None
) -> Iterator[Study]:
    """From the recipe of each study on, while there is something to try and time: those that proved something.

    Raises:
        Interrupted: as `studied`; what was proved before is handed over.
    """
    while (further := _sequel(folder, study, run)) is not None:
        kept = folder / RECIPE
        is_ours = written != kept and written.is_file() and written.read_bytes() == kept.read_bytes()
        folder, study = further
        in_its_place = written if is_ours and study.recipe else out
        written = _hand_over(folder, study, out=in_its_place, report=report if study.recipe else None)
        show(study, json, recipe=written)
        if not study.recipe:
            return
        _tell_both(folder / RECIPE)
        yield study


def _sequel(folder: Path, study: Study, run: Request) -> tuple[Path, Study] | None:
    """None where there is none, or where it ended in an error, which is told: the recipe stands."""
    from dynotune.search import tune as studies

    try:
        return _watched(lambda watcher: studies.sequel(folder, study, run, watcher))
    except DynotuneError as error:
        _say(f"On top of this recipe it did not go on: {error.message} {error.hint}".rstrip())
        return None


def _tell_both(file: Path) -> None:
    """What a recipe and the one that it went on from gain together."""
    from dynotune.schema import recipe as recipes
    from dynotune.text import words

    head = recipes.read(file).recipe
    if head.speedup is not None:
        _say(f"All of its settings: {words.times(head.speedup)} ({words.interval(head.ci)}), the product of both.")


def studied(request: TuneRequest, budget_s: float | None, *, resume: str | None = None) -> tuple[Path, Study]:
    """Make the study, or go on with one, with its progress on stderr.

    Raises:
        DynotuneError: as `search.tune.tune`; Interrupted after saying how to go on.
    """
    from dynotune.search import tune as studies

    if resume is None:
        usual_s = seconds(BUDGET, "--budget") or 0.0
        return _watched(lambda watcher: studies.tune(request, budget_s or usual_s, watcher))
    folder = _folder_of(resume, request.run)
    return folder, _watched(lambda watcher: studies.resume(folder, request.run, budget_s, watcher))


def _watched(work: Callable[[Watcher], T]) -> T:
    """With its progress on stderr.

    Raises:
        Interrupted: after saying how to go on.
    """
    from dynotune.measure.comparison.protocol import Interrupted
    from dynotune.report.terminal import Progress

    console = _console()
    with Progress(console) as progress:
        try:
            return work(progress)
        except Interrupted as stopped:
            which = shlex.join([str(stopped.folder)])
            console.print(
                f"Stopped. What was measured is kept: dynotune tune --resume {which}", soft_wrap=True, markup=False
            )
            raise


def _hand_over(folder: Path, study: Study, *, out: Path | None, report: Path | None) -> Path:
    """Put the recipe and the report where they were asked for; a recipe of other origin is not replaced unasked.

    Returns:
        Where the recipe is, if there is one.
    """
    from dynotune.search.results import RECIPE as KEPT
    from dynotune.search.results import REPORT

    target = out or Path(RECIPE)
    if study.recipe and (folder / KEPT).exists():
        if out is None and target.exists() and target.read_bytes() != (folder / KEPT).read_bytes():
            _say(f"{target} was here before and is left as it is; --out {target} replaces it.")
            target = folder / KEPT
            _say(f"Recipe: {target}")
        else:
            _say(f"Recipe: {target}{', in place of the one that was there' if target.exists() else ''}")
            _copy(folder / KEPT, target, "--out")
    if (folder / REPORT).exists():
        if report is not None:
            _copy(folder / REPORT, report, "--report")
        _say(f"Report: {report or folder / REPORT}")
    return target


def _say(text: str) -> None:
    _console().print(text, style="dim", soft_wrap=True, markup=False)


def _copy(source: Path, target: Path, option: str) -> None:
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise UsageError(
            f"Cannot write {target}: {error.strerror}.", hint=f"It is in {source}. Name another file with {option}."
        ) from error


def show(study: Study, json: str | None, *, recipe: Path) -> None:
    """The study on the terminal, unless its JSON goes there. `recipe`: where it is, if there is one."""
    from rich.console import Console

    from dynotune.report.study.summary import study_report

    if json != "-":
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")
        Console(highlight=False).print(study_report(study, recipe=str(recipe)))


def _refuse_anew(context: typer.Context) -> None:
    """Refuse with --resume what says how a study is made."""
    given = [
        option
        for name, option in OF_A_NEW_STUDY.items()
        if str(getattr(context.get_parameter_source(name), "name", "")) == "COMMANDLINE"
    ]
    if context.find_root().obj:
        given.append("a command")
    if given:
        raise UsageError(
            f"--resume goes on with a study as it was begun: it takes no {' and no '.join(given).removeprefix('a ')}.",
            hint="Leave it out; or leave --resume out to begin a new one.",
        )


def _check_file(path: Path | None, option: str) -> None:
    """Refuse now what could not be written after all the measuring.

    Raises:
        UsageError: it cannot be a file that is written.
    """
    if path is None:
        return
    parent = path.absolute().parent
    if path.is_dir():
        why = "it is a folder"
    elif not parent.is_dir():
        why = f"there is no folder {parent}"
    elif not os.access(path if path.exists() else parent, os.W_OK):
        why = "permission denied"
    else:
        return
    raise UsageError(f"Cannot write {path}: {why}.", hint=f"Name another file with {option}.")


def _folder_of(resume: str, request: Request) -> Path:
    """A folder, or the id of a study in the usual one."""
    base = request.base
    for folder in (Path(resume).expanduser().absolute(), base / resume):
        if (folder / "study.json").is_file():
            return folder
    known = sorted(path.parent.name for path in base.glob("*/study.json"))[-3:]
    raise UsageError(
        f"There is no study {resume}.",
        hint=f"The last ones in {base} are: {', '.join(known)}." if known else "Was it made with another --run-dir?",
    )


def _console() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False)
