"""`dynotune doctor`: what machine and environment cost, without running anything."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynotune.cli import answers
from dynotune.cli.options import FailOnSeverity, Json, Python, check_json, environment
from dynotune.schema.diagnosis import Difference, Examination
from dynotune.schema.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from dynotune.schema.facts import Facts, Unknown

DEADLINE_S = 1.9
"""For the facts; importing and drawing take the rest of three seconds."""
LARGEST_EXAMINATION_BYTES = 16 << 20
"""A thousand times what one takes."""

HELP = """What this machine, this interpreter and this environment cost.

Nothing is run and no GPU is needed; the command after -- only says which
interpreter is meant. What only a running program shows is named as not
judged. For example:

dynotune doctor

dynotune doctor --json here.json -- python train.py

dynotune doctor --baseline there.json
"""


def doctor(
    context: typer.Context,
    python: Python = None,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="OTHER.json", help="Compare this machine with another machine's saved --json."),
    ] = None,
    fail_on: FailOnSeverity = None,
    json: Json = None,
) -> None:
    check_json(json)
    other = None if baseline is None else _read(baseline)
    examination = _examine(_facts(python, context.find_root().obj), other)
    answers.show(examination_report, examination, json)
    answers.exit_if_severe(examination.findings, fail_on)


def _read(path: Path) -> Facts:
    """Facts of another machine, from a file that somebody else may have written.

    Raises:
        UsageError: there is no such file, or it is far too large.
        RecordError: it is no examination.
    """
    from dynotune.schema import document

    try:
        if not path.is_file():
            raise UsageError(
                f"There is no file {path}.", hint="dynotune doctor --json FILE writes one on the other machine."
            )
        if path.stat().st_size > LARGEST_EXAMINATION_BYTES:
            raise UsageError(
                f"{path} is too large to be an examination.", hint="dynotune doctor --json FILE writes one."
            )
    except (OSError, ValueError) as error:
        raise UsageError(f"Cannot read {path}: {error}.") from error
    return document.read(path, Examination).facts


def _facts(python: str | None, command: list[str] | None) -> Facts:
    """What is known of machine, interpreter and environment, within the deadline."""
    from dynotune import probe

    env = environment()
    asked = interpreter_asked(python, command, env)
    return probe.machine(env, python=asked, cwd=Path.cwd(), deadline_s=DEADLINE_S)


def interpreter_asked(python: str | None, command: list[str] | None, env: Mapping[str, str]) -> str | Unknown:
    """`--python`, that of the command, or the one that the shell would start.

    Raises UsageError: `--python` names no program.
    """
    from dynotune import probe

    if python is not None:
        found = probe.interpreter([python], env, Path.cwd())
        if not isinstance(found, str):
            raise UsageError(f"--python {python} cannot be used: {found.reason}.", hint="Name an interpreter.")
        return found
    if command:
        return probe.interpreter(command, env, Path.cwd())
    for name in ("python", "python3"):
        found = probe.interpreter([name], env, Path.cwd())
        if isinstance(found, str):
            return found
    return sys.executable


def _examine(facts: Facts, other: Facts | None) -> Examination:
    from dynotune.claims import all_claims
    from dynotune.doctor import ObservationView, differences, examine, seen_here
    from dynotune.schema.observation import Observation

    seen = ObservationView(Observation(facts=facts))
    findings, unknown = examine(seen, "machine")
    differing: list[Difference] | None = None if other is None else differences(facts, other)
    claims = list(seen_here(seen, all_claims(), [finding.id for finding in findings]))
    return Examination(findings=findings, unknown=unknown, facts=facts, differences=differing, claims=claims)


def examination_report(examination: Examination) -> RenderableType:
    """What `report.examination_report` makes of it, with the costs that the rules name."""
    from dynotune import report
    from dynotune.doctor import all_rules

    return report.examination_report(examination, costs={rule.id: rule.costs for rule in all_rules().values()})
