"""`dynotune report`: show the report of an earlier run again."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynotune import api
from dynotune.cli import completion, run_names
from dynotune.cli.answers import say, show, write_bytes, write_json
from dynotune.cli.options import Json, Storage, StudyName, check_json, opened, option
from dynotune.cli.run_options import runs_folder
from dynotune.schema import atomic, untrusted
from dynotune.schema.errors import UsageError, from_elsewhere, may_fail

if TYPE_CHECKING:
    from dynotune.schema.study import Study

RECIPE, PAGE = "recipe.toml", "report.html"
STDOUT = Path("-")
LONGEST_RECIPE_BYTES = 1 << 20


def report(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN|PATH",
            help="Default: the last; -2 is the one before.",
            autocompletion=completion.run_folders,
        ),
    ] = None,
    html: Annotated[Path | None, option("report_html")] = None,
    markdown: Annotated[Path | None, option("report_markdown")] = None,
    sarif: Annotated[Path | None, option("report_sarif")] = None,
    speedscope: Annotated[Path | None, option("report_speedscope")] = None,
    storage: Storage = None,
    study: StudyName = "",
    json: Json = None,
) -> None:
    check_json(json)
    outputs = {"--html": html, "--markdown": markdown, "--sarif": sarif, "--speedscope": speedscope}
    for name, target in outputs.items():
        api.check_output(None if target == STDOUT else target, name)
    if no_file := [name for name, target in outputs.items() if target == STDOUT and name != "--markdown"]:
        raise UsageError(
            f"{no_file[0]} - is no file.", hint="Name one, or write Markdown to standard output: --markdown -"
        )
    if markdown == STDOUT and json == "-":
        raise UsageError(
            "--markdown - and --json - both want standard output.", hint="Name a file for one of them."
        )
    if study:
        with opened(storage, reads_only=True) as store, from_elsewhere(study):
            kept = store.study(study)
            _tell(kept, json, html, markdown, recipe=_recipe_of(kept))
        return
    named = None if path is None else run_names.found(_typed(path), runs_folder(None))
    file = api.file_of(named if named is not None and named.exists() else path or _last())
    noun = api.noun_of(file)
    with from_elsewhere(file):
        document = api.load(file)
        recipe, beside = (
            (_recipe_beside(file, document), file.with_name(PAGE)) if noun == "study" else ("", None)
        )
        _tell(document, json, html, markdown, recipe=recipe, beside=beside)
        _write_others(document, file, sarif, speedscope)


def _typed(path: Path) -> str:
    """Return what was typed for a run: the command line has made `run-1` of -1."""
    back = re.fullmatch(r"run(-\d+)", str(path))
    return back[1] if back else str(path)


def _last() -> Path:
    """Return the newest run that has a report; the names of runs sort by time."""
    runs = sorted(runs_folder(None).glob("*"), reverse=True)
    found = next((run for run in runs if any((run / name).is_file() for name in api.IN_A_FOLDER)), None)
    if found is None:
        raise UsageError("There is no earlier run.", hint="Name a folder or a file: dynotune report PATH.")
    say(f"Of {found}")
    return found


def _tell(
    found: Any,
    json: str | None,
    html: Path | None,
    markdown: Path | None,
    *,
    recipe: str,
    beside: Path | None = None,
) -> None:
    """Write the pages, and print the terminal's report last, also where a folder cannot be written to, which
    prevents the pages.

    `beside`: the page's default path.
    """
    from dynotune.report.page import html as pages

    try:
        if (target := html or beside) is not None:
            pages.write(target, found, recipe=recipe, own_name=html is None)
            say(f"Report: {target}")
        if markdown is not None and markdown != STDOUT:
            pages.write(markdown, found, recipe=recipe, form=pages.markdown)
            say(f"Report: {markdown}")
    finally:
        if markdown == STDOUT:
            write_bytes(pages.markdown(found, recipe=recipe).encode())
            if json is not None:
                write_json(found, json)
        else:
            show(api.report_of, found, json)


def _write_others(found: Any, file: Path, sarif: Path | None, speedscope: Path | None) -> None:
    """Write what other tools show: findings at their lines, and lines as a profile.

    Raises UsageError: the document has no findings, or is not the record of a diagnosed run.
    """
    from dynotune import report as reports

    if sarif is not None:
        if not hasattr(found, "findings"):
            raise UsageError(
                f"{file} has no findings to write as SARIF.", hint="Name a diagnosis: dynotune report RUN"
            )
        _write(sarif, reports.as_sarif(found.findings))
    if speedscope is not None:
        if api.noun_of(file) != "observation":
            raise UsageError(
                f"{file} keeps no lines of threads and loaders.",
                hint="Name the folder of a diagnosed run: dynotune report RUN --speedscope FILE",
            )
        from dynotune.schema import document
        from dynotune.schema.observation import Observation

        _write(speedscope, reports.as_speedscope(document.read(file, Observation)))
        say("Open it in https://www.speedscope.app, which reads the file in the browser.")


def _write(target: Path, content: bytes) -> None:
    with may_fail(f"write {target}", "Name another file.", UsageError):
        atomic.write(target, content)
    say(f"Written: {target}")


def _recipe_of(study: Study) -> str:
    from dynotune.recipes import recipe_of
    from dynotune.schema import recipe

    with suppress(UsageError):  # nothing was proved
        return recipe.text(recipe_of(study))
    return ""


def _recipe_beside(file: Path, study: Study) -> str:
    """Return the text of the recipe that the study wrote; "" if no recipe can be read."""
    path = file.with_name(RECIPE)
    if not study.recipe or not path.is_file():
        return ""
    try:
        return untrusted.piece(path, 0, LONGEST_RECIPE_BYTES).decode(errors="replace")
    except OSError as error:
        say(f"{path} cannot be read: {error.strerror}. The page goes without it.")
        return ""
