"""`dynotune doctor`: report what machine and environment cost in speed, without running anything."""

from pathlib import Path
from typing import Annotated

import typer

from dynotune import api
from dynotune.cli import answers, run_options
from dynotune.cli.explain import show
from dynotune.cli.options import FailOnSeverity, Json, Python, check_json, option


def doctor(
    context: typer.Context,
    python: Python = None,
    baseline: Annotated[Path | None, option("doctor_baseline")] = None,
    about: Annotated[str | None, option("doctor_about")] = None,
    fail_on: FailOnSeverity = None,
    json: Json = None,
) -> None:
    check_json(json)
    if about is not None:
        show(about, json)
        return
    examination = api.doctor(
        context.find_root().obj or (), python=python, baseline=baseline, env=run_options.environment()
    )
    answers.show(api.report_of, examination, json)
    answers.exit_if_severe(examination.findings, fail_on)
