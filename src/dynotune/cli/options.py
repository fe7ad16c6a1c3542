"""Options that several subcommands share, each declared once.

`run_options` has the options of a run of the user's command, and `option_values` converts values.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from dynotune.cli import completion
from dynotune.cli.option_values import number, one_of, seconds_of, study_name_of
from dynotune.schema.comparison import MOST_PAIRS
from dynotune.schema.data_file import table
from dynotune.schema.diagnosis import SEVERITIES
from dynotune.schema.errors import UsageError

if TYPE_CHECKING:
    from dynotune.fleet import Store


class _OptionTexts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of options.toml."""

    metavar: str | None = None
    help: str | None = None


_TEXTS = table(__package__, "options.toml", dict[str, _OptionTexts])


def option(name: str, *flags: str, **about: Any) -> Any:
    """Declare an option with the texts that `options.toml` has under this name."""
    texts = {field: text for field, text in msgspec.structs.asdict(_TEXTS[name]).items() if text is not None}
    return typer.Option(*flags, **(about | texts))


Budget = Annotated[float | None, option("budget", parser=str, callback=seconds_of)]
Margin = Annotated[float, option("margin")]
InProcess = Annotated[str, option("in_process", "--in-process", callback=one_of("auto", "only", "never"))]
Pairs = Annotated[int, option("pairs", **number(2, MOST_PAIRS))]
Precision = Annotated[float | None, option("precision", **number(0.01))]
Resume = Annotated[str | None, option("resume", autocompletion=completion.runs)]
Storage = Annotated[str | None, option("storage", envvar="DYNOTUNE_STORAGE")]
StudyName = Annotated[str, option("study_name", "--study", callback=study_name_of)]
Python = Annotated[str | None, option("python")]
FailOnSeverity = Annotated[str | None, option("fail_on_severity", "--fail-on", callback=one_of(*SEVERITIES))]
Serve = Annotated[str | None, option("serve")]
Token = Annotated[str | None, option("token", envvar="DYNOTUNE_TOKEN")]
Json = Annotated[str | None, option("json", "--json")]


def given(context: typer.Context, *, but: Collection[str] = ()) -> list[str]:
    return [
        param.opts[0]
        for param in context.command.params
        if param.name not in (*but, "quiet", "verbose", "plain")
        and getattr(context.get_parameter_source(param.name or ""), "name", "") == "COMMANDLINE"
    ]


def opened(url: str | None, *, reads_only: bool = False) -> Store:
    """Open the database of `--storage`, and report its loss on stderr. Raises the same errors as
    `open_store`."""
    from dynotune import fleet
    from dynotune.cli.answers import say

    if url is None:
        raise UsageError(
            "There is no database of studies.", hint="Name it: --storage URL, or DYNOTUNE_STORAGE."
        )
    return fleet.open_store(url, say, reads_only=reads_only)


def check_json(target: str | None) -> None:
    """Refuse a JSON file that cannot be written, before hours of measuring; UsageError as `check_output`."""
    if target != "-":
        from dynotune.api import check_output

        check_output(target, "--json")
