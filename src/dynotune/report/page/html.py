"""A study as one page that stands alone: no other file, no network."""

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from dynotune.report.page import plots, tables
from dynotune.report.study.commands import Command, compares, repeats
from dynotune.report.study.header import headline, stats
from dynotune.report.study.rows import KINDS, ablated, tried
from dynotune.schema import atomic, document, redaction
from dynotune.schema.errors import CannotRunHere, may_fail
from dynotune.schema.study import Study
from dynotune.text import words

LONGEST_LINE, LONGEST_RECIPE = 20_000, 200_000


def page(study: Study, *, recipe: str = "") -> str:
    """Write the whole story of a study as HTML.

    What comes from the program (names, paths, arguments, values, lines of errors) is escaped, and characters that do
    not print are written out. A policy in the page's head forbids everything but its own two scripts.

    Args:
        recipe: text of `recipe.toml`; "" where there is none.

    Raises:
        CannotRunHere: the installed plotly has no script to put into the page.
    """
    study, recipe = document.without_secrets(study), redaction.redacted(recipe)
    figures = _figures(study)
    scripts = [_plotly(), _part("page.js")] if figures else []
    return (
        _templates()
        .get_template("page.html")
        .render(
            study=study,
            title=f"dynotune: {words.plain(' '.join(study.run.command), longest=80)}",
            command=_words(words.shell(study.run.command)),
            headline=headline(study),
            stats=stats(study),
            style=Markup(_part("style.css")),
            scripts=[Markup(script) for script in scripts],
            policy=_policy(scripts),
            figures=figures,
            data=Markup(_data(figures)),
            looks=KINDS,
            tables=tables.tables(study),
            warnings=tables.warnings(study),
            commands=_lines(repeats(study)),
            compares=_lines(compares(study)),
            recipe=_listing(recipe),
        )
    )


def live() -> str:
    """Write the page of `dynotune watch`: asks the server that it came from for what it shows, and nobody else.

    Raises CannotRunHere: as `page`.
    """
    scripts, found = [_plotly(), _part("live.js")], _templates().get_template("live.html")
    return found.render(scripts=map(Markup, scripts), style=Markup(_part("style.css")), policy=_policy(scripts))


def write(path: Path, study: Study, *, recipe: str = "", own_name: bool = False) -> None:
    """Write the page at `path`, whole or not at all.

    Args:
        own_name: as `atomic.write`.

    Raises:
        CannotRunHere: as `page`; the folder cannot be written to, or the disk is full.
    """
    text = page(study, recipe=recipe)
    with may_fail(f"write {path}", "Name another file: dynotune report PATH --html FILE"):
        atomic.write(path, text.encode(), own_name=own_name)


def _figures(study: Study) -> dict[str, plots.Figure]:
    margin = study.margin
    drawn = {
        "step": plots.shares(study),
        "settings": plots.forest(tried(study), margin=margin),
        "worth": plots.worths(ablated(study), margin=margin),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("dynotune.report.page", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _harmless(value: Any) -> Any:
    """Clean every text that is put into the page, before it is escaped; what is markup already is ours."""
    return words.plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _lines(commands: Sequence[Command]) -> list[tuple[str, list[Markup]]]:
    return [(one.what, _words(one.words)) for one in commands]


def _words(line: Sequence[str]) -> list[Markup]:
    """Show the words of a command, each kept whole on its line if there is room."""
    return [escape(words.plain(word, longest=LONGEST_LINE)) for word in line]


def _listing(text: str) -> Markup:
    if len(text) > LONGEST_RECIPE:
        text = text[:LONGEST_RECIPE] + "\n…"
    return Markup("\n").join(escape(words.plain(line, longest=LONGEST_LINE)) for line in text.splitlines())


def _data(figures: dict[str, plots.Figure]) -> str:
    """Write JSON that cannot end the element that it stands in."""
    text = json.dumps(figures, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(scripts: Sequence[str]) -> str:
    """Return a policy that loads nothing, and runs no script but these. Plotly writes styles of its own."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{one}'" for one in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _part(name: str) -> str:
    return files("dynotune.report.page").joinpath("templates", name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    """Return Plotly's script as it may stand inside a page.

    Raises:
        CannotRunHere: it is not there.
    """
    try:
        text = files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
    except (ModuleNotFoundError, OSError) as error:
        raise CannotRunHere(
            f"The page needs plotly's script, and it cannot be read: {error}.",
            hint="Reinstall plotly: pip install --force-reinstall plotly. The terminal's report needs none of it.",
        ) from error
    # In strings and expressions of the language these mean the same.
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")
