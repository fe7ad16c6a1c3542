"""`dynotune precision`: how low the precision of a command can go."""

from __future__ import annotations

from typing import Annotated

import typer

from dynotune.cli import answers, options
from dynotune.cli.options import Budget, Json, check_json, runs_a_command
from dynotune.schema.run import RunSpec

HELP = """Say how low the precision of your command can go.

float32, TF32, autocast to bf16 and fp16, and int8 and fp8 by torchao (in
inference) are each compared with the command as it is: speed within one run,
device memory, and the error of losses or outputs against a run in float64 on
the same batches. For example:

dynotune precision -- python train.py

A function of an output and of what the model was given, which returns a
number or one a sample (higher is better), says what your task loses:

dynotune precision --metric scores:accuracy -- python infer.py
"""


@runs_a_command("settings", "seed", seed=0)
def precision(
    context: typer.Context,
    metric: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="Task metric of a call, higher is better.")
    ] = None,
    budget: Budget = None,
    json: Json = None,
    *,
    run: RunSpec,
) -> None:
    check_json(json)
    options.check_run(context, run, [])
    from dynotune.measure.checks import boundary
    from dynotune.report import Progress, console, precision_report

    with Progress(console(stderr=True)) as progress:
        found, folder = boundary.boundary(run, progress, metric=metric or "", budget_s=budget)
    answers.show(precision_report, found, json)
    answers.say(f"Recorded: {folder}")
