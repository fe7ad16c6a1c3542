"""Write a study, a comparison or a diagnosis as one self-contained page: no other file, no network."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from dynotune.report.page import comparison, diagnosis, study
from dynotune.report.page.plots import Figure
from dynotune.report.page.view import View
from dynotune.schema import atomic, redaction
from dynotune.schema.comparison import Comparison
from dynotune.schema.diagnosis import Diagnosis
from dynotune.schema.document import without_secrets
from dynotune.schema.errors import CannotRunHere, may_fail
from dynotune.schema.study import Study
from dynotune.text import words

LONGEST_LINE, LONGEST_RECIPE = 20_000, 200_000
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", "$": "&#36;"})


Document = Study | Comparison | Diagnosis


def page(document: Document, *, recipe: str = "") -> str:
    """Write the whole report of a study, a comparison or a diagnosis as HTML.

    Text from the program (names, paths, arguments, values, error messages) is escaped, also non-printing
    characters. A content security policy in the page's head forbids all but the page's own two scripts.

    Args:
        recipe: text of a study's `recipe.toml`; "" if there is none.

    Raises:
        CannotRunHere: if the installed plotly contains no script to embed in the page.
    """
    name, view = _view(document)
    scripts = [_plotly(), _part("page.js")] if view.figures else []
    look = {"style": Markup(_part("style.css")), "scripts": [Markup(script) for script in scripts]}
    template = _templates(_harmless).get_template(f"{name}.html")
    return template.render(
        **view.values(),
        **look,
        recipe=_listing(redaction.redacted(recipe)),
        policy=_policy(scripts),
        data=Markup(_data(view.figures)),
    )


def markdown(document: Document, *, recipe: str = "") -> str:
    """Write the same report as Markdown, in which text from the program can neither format nor link."""
    name, view = _view(document)
    template = _templates(_in_markdown).get_template(f"{name}.md")
    text = template.render(**view.values(), recipe=_listing(redaction.redacted(recipe)))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _view(document: Document) -> tuple[str, View]:
    """Return the name of the document's templates, and the view that they lay out."""
    document = without_secrets(document)
    match document:
        case Comparison():
            return "comparison", comparison.view_of(document)
        case Diagnosis():
            return "diagnosis", diagnosis.view_of(document)
        case Study():
            return "study", study.view_of(document)


def live() -> str:
    """Write the page of `dynotune watch`, which requests its data from its own server and from nowhere else.

    Raises CannotRunHere: as `page`.
    """
    scripts = [_plotly(), _part("live.js")]
    style = Markup(_part("style.css"))
    template = _templates(_harmless).get_template("live.html")
    return template.render(scripts=map(Markup, scripts), style=style, policy=_policy(scripts))


def write(
    path: Path,
    document: Document,
    *,
    recipe: str = "",
    own_name: bool = False,
    form: Callable[..., str] = page,
) -> None:
    """Write the page at `path` completely, or not at all.

    Args:
        own_name: passed to `atomic.write`.
        form: `page` or `markdown`.

    Raises:
        CannotRunHere: as `page`; the folder cannot be written to, or the disk is full.
    """
    text = form(document, recipe=recipe)
    with may_fail(f"write {path}", "Name another file: dynotune report PATH --html FILE"):
        atomic.write(path, text.encode(), own_name=own_name)


@cache
def _templates(finalize: Callable[[Any], Any]) -> Environment:
    made = Environment(
        loader=PackageLoader("dynotune.report.page", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"words": _words, "code": _code, "listed": lambda text: Markup(text.unescape())}
    return made


def _harmless(value: Any) -> Any:
    """Clean each text for the page before escaping; leave text that is already our markup unchanged."""
    return words.plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _in_markdown(value: Any) -> Any:
    """Clean each text for Markdown, so that it adds no structure, no link and no HTML."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    text = re.sub(r"[\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", words.plain(value))
    text = re.sub(r"^(\d*)([#+=.)-])(?=[#+=-]*(\s|$))", r"\1\\\2", text)
    return Markup(text.translate(_ENTITIES).replace("://", "&#58;//").replace("www.", "www&#46;"))


def _code(text: str) -> Any:
    """Return the text as a code span, if no character in the text can end the span."""
    shown = words.plain(text)
    return Markup(f"`{shown}`") if shown.strip() and not set("`|") & set(shown) else text


def _words(line: Sequence[str]) -> list[Markup]:
    """Show the words of a command; each word stays on one line if there is room."""
    return [escape(words.plain(word, longest=LONGEST_LINE)) for word in line]


def _listing(text: str) -> Markup:
    if len(text) > LONGEST_RECIPE:
        text = text[:LONGEST_RECIPE] + "\n…"
    return Markup("\n").join(escape(words.plain(line, longest=LONGEST_LINE)) for line in text.splitlines())


def _data(figures: dict[str, Figure]) -> str:
    """Write JSON that cannot end its enclosing HTML element."""
    text = json.dumps(figures, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(scripts: Sequence[str]) -> str:
    """Return a content security policy that loads nothing and runs only these scripts. Plotly writes inline
    styles."""
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
    """Return Plotly's script in a form that can be embedded in a page.

    Raises:
        CannotRunHere: if the script is not installed.
    """
    try:
        text = files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
    except (ModuleNotFoundError, OSError) as error:
        raise CannotRunHere(
            f"The page needs plotly's script, and it cannot be read: {error}.",
            hint=(
                "Reinstall plotly: pip install --force-reinstall plotly. The terminal's report needs none "
                "of it."
            ),
        ) from error
    # In strings and expressions of the language these mean the same.
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")
