"""`dynotune explain`: what a finding means, or what is so of advice."""

from __future__ import annotations

from typing import Annotated

import typer

from dynotune.cli import answers
from dynotune.cli.options import Json, check_json

HELP = """What a finding sees, why it costs, when it is wrong, and what people believe of it.

For example:

dynotune explain cublas-env-regex

dynotune explain vm.dirty_ratio
"""


def explain(
    id: Annotated[str, typer.Argument(metavar="ID", help="A finding, a claim, or a word for it.")],
    json: Json = None,
) -> None:
    from dynotune import doctor, report
    from dynotune.claims import all_claims

    check_json(json)
    answers.show(report.explanation_report, doctor.explain(id, all_claims()), json)
