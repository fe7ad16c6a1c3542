"""`dynotune bisect`: find which of many changes made a command slow."""

from __future__ import annotations

from typing import Annotated

import typer

from dynotune.cli import answers, options, resumption, run_options
from dynotune.cli.option_values import seconds_of
from dynotune.cli.options import Json, Pairs, Resume, option
from dynotune.cli.run_options import runs_a_command
from dynotune.schema.errors import UsageError
from dynotune.schema.run import RunSpec

End = str | None


@runs_a_command(
    "settings", "objective", "warmup_steps", "window_steps", "seed", "caches", "run_to_end", seed=0
)
def bisect(
    context: typer.Context,
    good: Annotated[End, option("bisect_good", "--good")] = None,
    bad: Annotated[End, option("bisect_bad", "--bad")] = None,
    pairs: Pairs = 24,
    margin: options.Margin = 0.02,
    budget: Annotated[
        float | None, option("bisect_budget", "--budget", parser=str, callback=seconds_of)
    ] = None,
    resume: Resume = None,
    json: Json = None,
    *,
    run: RunSpec,
) -> None:
    from dynotune import bisect as search
    from dynotune.measure.bench import Interrupted
    from dynotune.report import Progress, console, on_terminal

    options.check_json(json)
    folder = None
    if resume is not None:
        folder = resumption.resumed_folder(context, resume, run.base, search.FILE, but=("budget",))
    elif good is None or bad is None:
        raise UsageError(
            "A bisection needs both ends, --good and --bad.",
            hint="dynotune bisect --good git.ref=v1.2 --bad git.ref=main -- python train.py",
        )
    else:
        run_options.check_run(context, run)
    screen = console(stderr=True)
    with Progress(screen) as watcher:
        try:
            if folder is not None:
                found = search.resume(folder, run, watcher, budget_s=budget)
            else:
                assert good is not None and bad is not None
                request = search.BisectRequest(
                    run=run, good=good, bad=bad, max_pairs=pairs, margin=margin, budget_s=budget
                )
                found = search.bisect(request, watcher)
        except Interrupted as stopped:
            which = resumption.resume_with(stopped.folder)
            screen.print(f"Stopped. To go on: dynotune bisect --resume {which}", soft_wrap=True)
            raise
    answers.show(on_terminal, found, json)
    if found.ending != "found":
        raise typer.Exit(1)
