"""`dynotune report`: what was found before, told again."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynotune import api
from dynotune.cli import completion
from dynotune.cli.answers import say, show
from dynotune.cli.options import Json, Storage, StudyName, check_json, opened, option, runs_folder
from dynotune.schema.errors import UsageError, from_elsewhere

if TYPE_CHECKING:
    from dynotune.schema.study import Study

RECIPE, PAGE = "recipe.toml", "report.html"
LONGEST_RECIPE_BYTES = 1 << 20


def report(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="PATH", help="Default: the last.", autocompletion=completion.run_folders),
    ] = None,
    html: Annotated[Path | None, option("report_html")] = None,
    storage: Storage = None,
    study: StudyName = "",
    json: Json = None,
) -> None:
    from dynotune.schema.study import Study

    check_json(json)
    if study:
        with opened(storage) as store, from_elsewhere(study):
            kept = store.study(study)
            show(api.report_of, kept, json)
            if html is not None:
                _write_page(html, kept, recipe=_recipe_of(kept))
        return
    file = api.file_of(path or _last())
    noun = api.noun_of(file)
    if html is not None and noun != "study":
        raise UsageError(f"--html is of a study, and {file} is {api.with_article(noun)}.", hint="Leave it out.")
    with from_elsewhere(file):
        document = api.load(file)
        show(api.report_of, document, json)
        if isinstance(document, Study):
            recipe = _recipe_beside(file, document)
            _write_page(html or file.with_name(PAGE), document, recipe=recipe, own_name=html is None)


def _last() -> Path:
    """Return the newest run that has a report; their names sort by time."""
    runs = sorted(runs_folder(None).glob("*"), reverse=True)
    found = next((run for run in runs if any((run / name).is_file() for name in api.IN_A_FOLDER)), None)
    if found is None:
        raise UsageError("There is no earlier run.", hint="Name a folder or a file: dynotune report PATH.")
    say(f"Of {found}")
    return found


def _write_page(target: Path, study: Study, *, recipe: str, own_name: bool = False) -> None:
    """The page, after the terminal's report is out: a folder that cannot be written to takes away no more than it."""
    from dynotune.report.page import html as html_page

    html_page.write(target, study, recipe=recipe, own_name=own_name)
    say(f"Report: {target}")


def _recipe_of(study: Study) -> str:
    from dynotune.recipes import recipe_of
    from dynotune.schema import recipe

    with suppress(UsageError):  # nothing was proved
        return recipe.text(recipe_of(study))
    return ""


def _recipe_beside(file: Path, study: Study) -> str:
    """Return the text of the recipe that the study wrote; "" if there is none to be read."""
    path = file.with_name(RECIPE)
    if not study.recipe or not path.is_file():
        return ""
    try:
        with path.open("rb") as opened:
            return opened.read(LONGEST_RECIPE_BYTES).decode(errors="replace")
    except OSError as error:
        say(f"{path} cannot be read: {error.strerror}. The page goes without it.")
        return ""
