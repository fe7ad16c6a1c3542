"""`dynotune report`: what was found before, told again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from dynotune.cli.answers import say, show
from dynotune.cli.options import Json, check_json
from dynotune.cli.trace_files import unreadable
from dynotune.schema import atomic
from dynotune.schema.document import Head, parse, read
from dynotune.schema.errors import UsageError, from_elsewhere

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dynotune.schema.study import Study

Rendering = tuple[msgspec.Struct, Callable[[Any], "RenderableType"]]
"""The document, and what makes its report."""

NOUNS = (
    *("study", "comparison", "observation", "diagnosis", "trace", "trace_difference"),
    *("memory", "examination", "startup"),
)
# What a folder may hold, the first that is there.
IN_A_FOLDER = ("study.json", "comparison.json", "observation.json", "startup.json", "memory.json")
RECIPE, PAGE = "recipe.toml", "report.html"
LONGEST_RECIPE_BYTES = 1 << 20

HELP = """Show again what was found before.

Of a study of tune, the terminal's report and report.html are made anew;
of a comparison, an observation, a diagnosis, a trace's summary, memory
or an examination, what was on the terminal. For example:

dynotune report ~/.local/state/dynotune/runs/ID
"""


def report(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A folder of tune, compare or diagnose, or a JSON file of dynotune.")
    ],
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the page goes; report.html beside the study, without.")
    ] = None,
    json: Json = None,
) -> None:
    check_json(json)
    file = _file_of(path)
    noun = noun_of(file)
    if html is not None and noun != "study":
        raise UsageError(f"--html is of a study, and {file} is {_article(noun)}.", hint="Leave it out.")
    with from_elsewhere(file):
        document, told = rendering(noun, file)
        show(told, document, json)
        if noun == "study":
            _write_page(file, document, html)


def _file_of(path: Path) -> Path:
    """The file itself, or the one of a folder that has a report."""
    try:
        if not path.is_dir():
            if not path.exists():
                raise UsageError(f"There is no {path}.", hint="Name a folder of a study, or a JSON file of dynotune.")
            return path
        found = next((path / name for name in IN_A_FOLDER if (path / name).is_file()), None)
    except (OSError, ValueError) as error:
        raise unreadable(str(path), error) from error
    if found is None:
        raise UsageError(
            f"The folder {path} holds nothing that has a report.", hint=f"Looked for {', '.join(IN_A_FOLDER)}."
        )
    return found


def noun_of(file: Path) -> str:
    """Return which of `NOUNS` the file is: `study` for `dynotune.study/2`.

    Raises UsageError: it cannot be read, or has no report.
    """
    try:
        schema = parse(atomic.read(file), Head).schema
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.", hint="Check that you may read it.") from error
    except ValueError as error:
        raise UsageError(
            f"{file} is not a JSON document: {error}.", hint="Was it cut short, or is it of another program?"
        ) from error
    noun = schema.removeprefix("dynotune.").partition("/")[0] if schema.startswith("dynotune.") else ""
    if noun not in NOUNS:
        found = f": it is {_article(noun)}" if noun else ""
        raise UsageError(f"{file} holds no report{found}.", hint=f"It is made of one of these: {', '.join(NOUNS)}.")
    return noun


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun.replace('_', ' ')}"


def rendering(noun: str, file: Path) -> Rendering:
    """The document of one of `NOUNS`, and what makes its report."""
    from dynotune.report import comparison_table, diagnosis_report, memory_report
    from dynotune.report.startup import starts
    from dynotune.report.study import study_report
    from dynotune.report.trace import difference_report, trace_report
    from dynotune.schema.comparison import Comparison
    from dynotune.schema.diagnosis import Diagnosis, Examination
    from dynotune.schema.memory_account import MemoryAccount
    from dynotune.schema.startup import Startup
    from dynotune.schema.study import Study
    from dynotune.schema.trace_summary import TraceDifference, TraceSummary

    match noun:
        case "study":
            return read(file, Study), study_report
        case "comparison":
            return read(file, Comparison), comparison_table
        case "observation":
            from dynotune.diagnose import conclude, replayed

            return conclude(replayed(file)), diagnosis_report
        case "diagnosis":
            return read(file, Diagnosis), diagnosis_report
        case "trace":
            return read(file, TraceSummary), trace_report
        case "trace_difference":
            return read(file, TraceDifference), difference_report
        case "memory":
            return read(file, MemoryAccount), memory_report
        case "startup":
            return read(file, Startup), starts.startup_report
        case _:
            from dynotune.cli.doctor import examination_report

            return read(file, Examination), examination_report


def _write_page(file: Path, document: msgspec.Struct, html: Path | None) -> None:
    """The page, after the terminal's report is out: a folder that cannot be written to takes away no more than it."""
    from dynotune.report.page import html as html_page
    from dynotune.schema.study import Study

    assert isinstance(document, Study)
    target = html or file.with_name(PAGE)
    html_page.write(target, document, recipe=_recipe_beside(file, document), own_name=html is None)
    say(f"Report: {target}")


def _recipe_beside(file: Path, study: Study) -> str:
    """The text of the recipe that the study wrote; "" where there is none to be read."""
    path = file.with_name(RECIPE)
    if not study.recipe or not path.is_file():
        return ""
    try:
        with path.open("rb") as opened:
            return opened.read(LONGEST_RECIPE_BYTES).decode(errors="replace")
    except OSError as error:
        say(f"{path} cannot be read: {error.strerror}. The page goes without it.")
        return ""
