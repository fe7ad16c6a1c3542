"""`dynotune report`: what was found before, told again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from dynotune.cli.options import Json, check_json, show
from dynotune.schema import atomic
from dynotune.schema.document import Head, parse, read
from dynotune.schema.errors import UsageError, from_elsewhere

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dynotune.schema.diagnosis import Diagnosis
    from dynotune.schema.study import Study

T = TypeVar("T", bound=msgspec.Struct)
Rendering = tuple[msgspec.Struct, Callable[[Any], "RenderableType"]]
"""The document, and what makes its report."""

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
        document, told = READERS[noun](file)
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
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{path} cannot be read: {reason}.", hint="Check the name, and that you may read it."
        ) from error
    if found is None:
        raise UsageError(
            f"The folder {path} holds nothing that has a report.", hint=f"Looked for {', '.join(IN_A_FOLDER)}."
        )
    return found


def noun_of(file: Path) -> str:
    """What document of `READERS` the file is: `study` of `dynotune.study/2`.

    Raises:
        UsageError: it cannot be read, or has no report.
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
    if noun not in READERS:
        known = ", ".join(READERS)
        raise UsageError(f"{file} holds no report{_named(noun)}.", hint=f"It is made of one of these: {known}.")
    return noun


def _named(noun: str) -> str:
    return f": it is {_article(noun)}" if noun else ""


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun.replace('_', ' ')}"


def _study(file: Path) -> Rendering:
    from dynotune.report.study import study_report
    from dynotune.schema.study import Study

    found = read(file, Study)
    return found, study_report


def _comparison(file: Path) -> Rendering:
    from dynotune.report import comparison_table
    from dynotune.schema.comparison import Comparison

    found = read(file, Comparison)
    return found, comparison_table


def _observation(file: Path) -> Rendering:
    from dynotune.diagnose import conclude, replayed

    return _of_diagnosis(conclude(replayed(file)))


def _diagnosis(file: Path) -> Rendering:
    from dynotune.schema.diagnosis import Diagnosis

    return _of_diagnosis(read(file, Diagnosis))


def _of_diagnosis(found: Diagnosis) -> Rendering:
    from dynotune.report import diagnosis_report

    return found, diagnosis_report


def _trace(file: Path) -> Rendering:
    from dynotune.report.trace import trace_report
    from dynotune.schema.trace_summary import TraceSummary

    found = read(file, TraceSummary)
    return found, trace_report


def _trace_difference(file: Path) -> Rendering:
    from dynotune.report.trace import difference_report
    from dynotune.schema.trace_summary import TraceDifference

    found = read(file, TraceDifference)
    return found, difference_report


def _memory(file: Path) -> Rendering:
    from dynotune.report import memory_report
    from dynotune.schema.memory_account import MemoryAccount

    found = read(file, MemoryAccount)
    return found, memory_report


def _examination(file: Path) -> Rendering:
    from dynotune.doctor import all_rules
    from dynotune.report import examination_report
    from dynotune.schema.diagnosis import Examination

    found = read(file, Examination)
    costs = {rule.id: rule.costs for rule in all_rules().values()}
    return found, lambda kept: examination_report(kept, costs=costs)


def _startup(file: Path) -> Rendering:
    from dynotune.report.startup import startup_report
    from dynotune.schema.startup import Startup

    found = read(file, Startup)
    return found, startup_report


READERS: dict[str, Callable[[Path], Rendering]] = {
    "study": _study,
    "comparison": _comparison,
    "observation": _observation,
    "diagnosis": _diagnosis,
    "trace": _trace,
    "trace_difference": _trace_difference,
    "memory": _memory,
    "examination": _examination,
    "startup": _startup,
}


def _write_page(file: Path, document: msgspec.Struct, html: Path | None) -> None:
    """The page, after the terminal's report is out: a folder that cannot be written to takes away no more than it."""
    from dynotune.report.page import html as html_page
    from dynotune.schema.study import Study

    assert isinstance(document, Study)
    target = html or file.with_name(PAGE)
    html_page.write(target, document, recipe=_recipe_beside(file, document), own_name=html is None)
    _say(f"Report: {target}")


def _recipe_beside(file: Path, study: Study) -> str:
    """Text of the recipe that the study wrote; what is not there is not shown."""
    path = file.with_name(RECIPE)
    if not study.recipe or not path.is_file():
        return ""
    try:
        with path.open("rb") as opened:
            return opened.read(LONGEST_RECIPE_BYTES).decode(errors="replace")
    except OSError as error:
        _say(f"{path} cannot be read: {error.strerror}. The page goes without it.")
        return ""


def _say(text: str) -> None:
    from rich.text import Text

    from dynotune.report import console
    from dynotune.text import words

    console(stderr=True).print(Text(words.plain(text), style="dim"), soft_wrap=True)
