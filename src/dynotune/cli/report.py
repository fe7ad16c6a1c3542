"""`dynotune report`: what was found before, told again."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynotune import api
from dynotune.cli.answers import say, show, write_bytes
from dynotune.cli.options import Json, Storage, StudyName, check_json, opened, option, runs_folder
from dynotune.schema.errors import UsageError, from_elsewhere

if TYPE_CHECKING:
    from dynotune.schema.comparison import Comparison
    from dynotune.schema.diagnosis import Diagnosis
    from dynotune.schema.setting import Setting
    from dynotune.schema.study import Study

RECIPE, PAGE = "recipe.toml", "report.html"
PAGES = ("study", "comparison", "observation", "diagnosis")
LONGEST_RECIPE_BYTES = 1 << 20


def report(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="PATH", help="A folder of a run, or a JSON file of dynotune. Default: the last run."),
    ] = None,
    html: Annotated[Path | None, option("report_html")] = None,
    markdown: Annotated[Path | None, option("report_markdown")] = None,
    storage: Storage = None,
    study: StudyName = "",
    json: Json = None,
) -> None:
    check_json(json)
    for target, name in ((html, "--html"), (markdown, "--markdown")):
        api.check_output(None if target == Path("-") else target, name)
    if study:
        with opened(storage) as store, from_elsewhere(study):
            kept = store.study(study)
            show(api.report_of, kept, json)
            _write_pages(kept, html, markdown, recipe=_recipe_of(kept))
        return
    file = api.file_of(path or _last())
    noun = api.noun_of(file)
    if noun not in PAGES and (html or markdown):
        raise UsageError(
            f"{file} is {api.with_article(noun)}, which has no page.", hint="Leave --html and --markdown out."
        )
    with from_elsewhere(file):
        document = api.load(file)
        if markdown != Path("-"):
            show(api.report_of, document, json)
        recipe = _recipe_beside(file, document) if noun == "study" else ""
        _write_pages(document, html, markdown, recipe=recipe, beside=file.with_name(PAGE) if noun == "study" else None)


def _last() -> Path:
    """Return the newest run that has a report; their names sort by time."""
    runs = sorted(runs_folder(None).glob("*"), reverse=True)
    found = next((run for run in runs if any((run / name).is_file() for name in api.IN_A_FOLDER)), None)
    if found is None:
        raise UsageError("There is no earlier run.", hint="Name a folder or a file: dynotune report PATH.")
    say(f"Of {found}")
    return found


def _write_pages(
    document: Study | Comparison | Diagnosis,
    html: Path | None,
    markdown: Path | None,
    *,
    recipe: str,
    beside: Path | None = None,
) -> None:
    """The pages, after the terminal's report is out: a folder that cannot be written to takes away no more than them.

    Args:
        beside: where the page goes if nothing else is asked for; None for nowhere.
    """
    from dynotune.report.page import html as pages

    told: dict[str, Any] = {"recipe": recipe, "effects": _effects(getattr(document, "candidate_settings", ()))}
    if (target := html or beside) is not None:
        pages.write(target, document, own_name=html is None, **told)
        say(f"Report: {target}")
    if markdown == Path("-"):
        write_bytes(pages.markdown(document, **told).encode())
    elif markdown is not None:
        pages.write(markdown, document, form=pages.markdown, **told)
        say(f"Report: {markdown}")


def _effects(settings: Iterable[Setting]) -> dict[str, str]:
    """Say of settings what each may change besides speed, where the catalogue has its knob."""
    from dynotune import knobs

    found: dict[str, str] = {}
    for setting in settings:
        with suppress(UsageError):
            found[str(setting)] = knobs.get(setting.knob).effect
    return found


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
