"""`dynotune startup time`: how long a command takes to its first step, with caches cold, warm and off."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from dynotune.cli import answers, options
from dynotune.cli.options import Budget, Json, Margin, Resume, runs_a_command
from dynotune.schema.run import RunSpec

if TYPE_CHECKING:
    from dynotune.measure.live import StartRequest
    from dynotune.schema.startup import Startup

HELP = """Time the start of your command with caches cold, warm and off.

The command is started anew for each, in blocks of random order, and ended after its
first step. Its caches lie in folders of their own; yours are neither used nor
changed. Says what a warm cache saves, what the start is made of, whether your own
caches are large enough and last, and what to set. For example:

dynotune startup time -- python train.py
"""


@runs_a_command("ready_pattern", "seed", seed=0)
def time(
    context: typer.Context,
    blocks: Annotated[
        int, typer.Option(help="Most blocks to measure: one start each with caches cold, warm and off.", min=2, max=12)
    ] = 12,
    margin: Margin = 0.05,
    budget: Budget = None,
    resume: Resume = None,
    json: Json = None,
    *,
    run: RunSpec,
) -> None:
    from dynotune.measure.live import StartRequest
    from dynotune.measure.startup import starting
    from dynotune.report.startup import startup_report

    options.check_json(json)
    folder = None
    if resume is None:
        options.check_run(context, run)
    else:
        folder = options.resumed_folder(context, resume, run.base, starting.FILE, but=("budget",))
    run = msgspec.structs.replace(run, objective="time-to-first-step")
    startup = _timed(StartRequest(run=run, max_blocks=blocks, margin=margin, budget_s=budget), folder)
    answers.show(startup_report, startup, json)


def _timed(request: StartRequest, resume: Path | None) -> Startup:
    from dynotune.measure.comparison import Interrupted
    from dynotune.measure.startup import starting
    from dynotune.report import console
    from dynotune.report.startup import StartProgress

    screen = console(stderr=True)
    watcher = StartProgress(screen)
    with watcher:
        try:
            if resume is None:
                return starting.time_starts(request, watcher)
            return starting.resume(resume, request.run, watcher, budget_s=request.budget_s)
        except Interrupted as stopped:
            which = options.resume_with(stopped.folder)
            screen.print(f"Stopped. Finished blocks are kept: dynotune startup time --resume {which}", soft_wrap=True)
            raise
