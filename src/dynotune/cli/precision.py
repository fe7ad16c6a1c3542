"""`dynotune precision`: measure how low the precision of a command can go."""

from typing import Annotated

import typer

from dynotune.cli import answers, run_options
from dynotune.cli.options import Budget, Json, check_json, option
from dynotune.cli.run_options import runs_a_command
from dynotune.schema.run import RunSpec


@runs_a_command("settings", "seed", seed=0)
def precision(
    context: typer.Context,
    metric: Annotated[str | None, option("precision_metric")] = None,
    budget: Budget = None,
    json: Json = None,
    *,
    run: RunSpec,
) -> None:
    check_json(json)
    run_options.check_run(context, run, [])
    from dynotune.measure.checks import lowest_precision
    from dynotune.report import Progress, console, on_terminal

    with Progress(console(stderr=True)) as progress:
        found, folder = lowest_precision.boundary(run, progress, metric=metric or "", budget_s=budget)
    answers.say(f"Recorded: {folder}")
    answers.show(on_terminal, found, json)
