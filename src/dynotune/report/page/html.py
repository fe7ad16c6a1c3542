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

from dynotune.report.breakdown import Breakdown
from dynotune.report.comparison import arms, objective, warnings
from dynotune.report.diagnosis import NAMES, bound_in_words, cost, jitter_in_words
from dynotune.report.page import plots, tables
from dynotune.report.study.commands import again, compares, repeats
from dynotune.report.study.header import Headline, arrow, headline, machine, stats
from dynotune.report.study.rows import KINDS, ablated, tried
from dynotune.report.study.sides import before_and_after, breakdowns
from dynotune.report.trace_parts import place, prose
from dynotune.schema import atomic, document, redaction
from dynotune.schema.comparison import Comparison
from dynotune.schema.diagnosis import Diagnosis
from dynotune.schema.errors import CannotRunHere, may_fail
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import one_arm
from dynotune.schema.study import Study
from dynotune.text import words

LONGEST_LINE, LONGEST_RECIPE = 20_000, 200_000
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", "$": "&#36;"})


Found = Study | Comparison | Diagnosis

_LARGE = {"same": "No effect", "undecided": "Undecided", None: "No verdict"}
WORDS = {
    "words": words,
    "prose": prose,
    "place": place,
    "cost": cost,
    "one_arm": one_arm,
    "arrow": arrow,
    "parts": NAMES,
}
"""Functions and filters with which templates format values."""


def page(found: Found, *, recipe: str = "") -> str:
    """Write the whole report of a study, a comparison or a diagnosis as HTML.

    Text from the program (names, paths, arguments, values, error messages) is escaped, also non-printing characters. A
    content security policy in the page's head forbids all but the page's own two scripts.

    Args:
        recipe: text of a study's `recipe.toml`; "" if there is none.

    Raises:
        CannotRunHere: if the installed plotly contains no script to embed in the page.
    """
    name, told = _story(found, recipe)
    scripts = [_plotly(), _part("page.js")] if told["figures"] else []
    look = {"style": Markup(_part("style.css")), "scripts": [Markup(script) for script in scripts]}
    template = _templates(_harmless).get_template(f"{name}.html")
    return template.render(**told, **look, policy=_policy(scripts), data=Markup(_data(told["figures"])))


def markdown(found: Found, *, recipe: str = "") -> str:
    """Write the same report as Markdown, in which text from the program can neither format nor link."""
    name, told = _story(found, recipe)
    text = _templates(_in_markdown).get_template(f"{name}.md").render(**told)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _story(found: Found, recipe: str) -> tuple[str, dict[str, Any]]:
    """Return the name of the template and the values for it."""
    found = document.without_secrets(found)
    if isinstance(found, Comparison):
        name, told = "comparison", of_comparison(found)
    elif isinstance(found, Diagnosis):
        name, told = "diagnosis", of_diagnosis(found)
    else:
        name, told = "study", _of_study(found, redaction.redacted(recipe))
    told["title"] = f"dynotune: {words.plain(' '.join(told['command']), longest=80)}"
    told |= {"found": found, "command": words.shell(told["command"]), "facts": tables.facts(found.facts)}
    return name, told | {"figures": {name: figure for name, figure in told["figures"].items() if figure is not None}}


def _of_study(study: Study, recipe: str) -> dict[str, Any]:
    return {
        "study": study,
        "command": study.run.command,
        "headline": headline(study),
        "stats": list(stats(study)),
        "figures": _figures(study),
        "looks": KINDS,
        "tables": tables.tables(study),
        "compared": before_and_after(study),
        "warnings": tables.warnings(study),
        "commands": [(command.what, command.words) for command in repeats(study)],
        "compares": [(command.what, command.words) for command in compares(study)],
        "recipe": _listing(recipe),
    }


def live() -> str:
    """Write the page of `dynotune watch`, which requests its data from its own server and from nowhere else.

    Raises CannotRunHere: as `page`.
    """
    scripts, found = [_plotly(), _part("live.js")], _templates(_harmless).get_template("live.html")
    return found.render(scripts=map(Markup, scripts), style=Markup(_part("style.css")), policy=_policy(scripts))


def write(
    path: Path, found: Found, *, recipe: str = "", own_name: bool = False, form: Callable[..., str] = page
) -> None:
    """Write the page at `path` completely, or not at all.

    Args:
        own_name: passed to `atomic.write`.
        form: `page` or `markdown`.

    Raises:
        CannotRunHere: as `page`; the folder cannot be written to, or the disk is full.
    """
    text = form(found, recipe=recipe)
    with may_fail(f"write {path}", "Name another file: dynotune report PATH --html FILE"):
        atomic.write(path, text.encode(), own_name=own_name)


def _figures(study: Study) -> dict[str, plots.Figure | None]:
    sides = breakdowns(study, (study.begun, "with the recipe"))
    of_what, named = sides[0].of_what if sides else "step", " and ".join(side.name for side in sides)
    return {
        "step": plots.shares(sides, f"Where a {of_what} goes, {named}"),
        "settings": plots.forest(tried(study), margin=study.margin),
        "worth": plots.worths(ablated(study), margin=study.margin),
    }


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
    made.globals |= WORDS | {"table": tables.Table, "told": tables.told}
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


def _data(figures: dict[str, plots.Figure]) -> str:
    """Write JSON that cannot end its enclosing HTML element."""
    text = json.dumps(figures, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(scripts: Sequence[str]) -> str:
    """Return a content security policy that loads nothing and runs only these scripts. Plotly writes inline styles."""
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
            hint="Reinstall plotly: pip install --force-reinstall plotly. The terminal's report needs none of it.",
        ) from error
    # In strings and expressions of the language these mean the same.
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def of_comparison(found: Comparison) -> dict[str, Any]:
    gained, between = words.gained(found)
    against = words.settings(found.run.settings, separator=" ") if found.run.settings else "the command as it is"
    noun = plots.noun(found)
    told = f"the command failed in the {found.failed.arm}" if found.failed else words.verdict(found)
    verdict = f"{told[0].upper()}{told[1:]}{',' if ':' in told else ''} with "
    verdict += f"{words.settings(found.candidate_settings, separator=' ')} against {against}."
    large = "Failed" if found.failed else _LARGE.get(found.verdict, gained)
    what = "saved" if found.run.objective in ("memory", "energy") else "speed-up"
    rest = f"{what} {between} at {found.confidence:.0%}, on {words.basis(found)}" if found.ci else found.reason
    return {
        "command": found.run.command,
        "headline": Headline(large, rest, verdict, found.verdict == "faster"),
        "noun": noun,
        "sides": dict([objective(found), *arms(found.baseline, found.candidate)]),
        "figures": {"pairs": plots.pairs(found)},
        "of_blocks": _of_blocks(found),
        "warnings": warnings(found),
        "again": again(found),
        "machine": machine(found.facts),
    }


def _of_blocks(comparison: Comparison) -> list[str]:
    """Return sentences on what blocks said before fresh pairs, and on the baseline in the blocks."""
    before, shift = comparison.blocks, comparison.baseline_shift
    return [
        *([words.blocks_before(before)] if before is not None else []),
        *([words.baseline_in_blocks(shift)] if shift is not None else []),
        *([comparison.only_chooses] if comparison.only_chooses else []),
    ]


def of_diagnosis(found: Diagnosis) -> dict[str, Any]:
    whole, none = Breakdown.of("A step", found), found.bottleneck == "none"
    step = [] if isinstance(whole, Unknown) else [whole]
    rest = "nothing that could be avoided holds this command up" if none else "limits this command"
    large = "No bottleneck" if none else found.bottleneck.capitalize()
    bounds = [] if isinstance(found.upper_bounds, Unknown) else found.upper_bounds
    return {
        "command": found.command,
        "headline": Headline(large, rest, prose(found.verdict).plain, not none),
        "figures": {"step": plots.shares(step, "Where a step goes")},
        "step": tables.step(step),
        "bounds": bounds,
        "bound": bound_in_words(bounds),
        "jitter": jitter_in_words(found),
        "warnings": [prose(note).plain for note in found.notes],
        "machine": machine(found.facts),
    }
