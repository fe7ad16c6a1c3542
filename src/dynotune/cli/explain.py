"""`dynotune explain`: explain a finding, or report whether a piece of advice is true."""

from typing import Annotated

import typer

from dynotune.cli import answers, completion
from dynotune.cli.options import Json, check_json
from dynotune.report import loudness


def explain(
    id: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="A finding, claim or words.", autocompletion=completion.explained),
    ] = None,
    json: Json = None,
) -> None:
    check_json(json)
    if id:
        show(" ".join(id), json)
        return
    from dynotune.doctor import all_rules

    rules = {rule.id: rule.title for rule in all_rules().values()}
    if not loudness.is_brief():
        for id_, title in rules.items():
            print(f"{id_:<30} {title}")
        return
    from dynotune.report import console, layout

    rows = layout.table(":whole", ":line")
    for id_, title in rules.items():
        rows.add_row(id_, layout.one_line(title))
    console().print(rows)


def show(word: str, json: str | None) -> None:
    """Print what is known about `word`, or write it as JSON. UsageError if nothing is known about it."""
    from dynotune import doctor, report
    from dynotune.claims import all_claims

    answers.show(report.explanation_report, doctor.explain(word, all_claims()), json)
