"""`dynotune startup time`: how long a command takes to its first step, with caches cold, warm and off."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynotune.cli import command_of
from dynotune.cli.options import check_json, environment, found_folder, runs_folder, seconds, write_json
from dynotune.schema.errors import UsageError

if TYPE_CHECKING:
    from dynotune.measure.live.request import Request
    from dynotune.schema.startup import Startup

HELP = """Time the start of your command with caches cold, warm and off.

The command is started anew for each, in blocks of random order, and ended after its
first step. Its caches lie in folders of their own; yours are neither used nor
changed. Says what a warm cache saves, what the start is made of, whether your own
caches are large enough and last, and what to set. For example:

dynotune startup time -- python train.py
"""


def time(
    context: typer.Context,
    ready_on: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="A line of its output that ends the start, where no step can be seen."),
    ] = None,
    pairs: Annotated[
        int, typer.Option(help="Most blocks to measure: one start of each, cold, warm, off.", min=2, max=12)
    ] = 12,
    margin: Annotated[float, typer.Option(help="Ratios within this of 1 count as the same.")] = 0.05,
    budget: Annotated[str | None, typer.Option(metavar="TIME", help="Most time for all of it: 90s, 15m, 1h.")] = None,
    step_on: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="What ends a step, where it is not found by itself.")
    ] = None,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="Most time for one start.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of the order of starts.")] = 0,
    sandbox: Annotated[
        bool, typer.Option("--sandbox/--no-sandbox", help="Work on a copy-on-write view of this folder.")
    ] = True,
    lock: Annotated[
        bool, typer.Option("--lock/--no-lock", help="Wait for another dynotune that measures on the same cores or GPU.")
    ] = True,
    resume: Annotated[
        str | None, typer.Option(metavar="ID", help="Go on with what was interrupted; no command.")
    ] = None,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write it as JSON; - is stdout.")] = None,
    run_dir: Annotated[Path | None, typer.Option("--run-dir", metavar="DIR", help="Where the records go.")] = None,
) -> None:
    from dynotune.measure.live.request import Request

    check_json(json)
    if resume is not None and context.find_root().obj:
        raise UsageError(
            "--resume goes on as it was begun: it takes no command.",
            hint=f"dynotune startup time --resume {resume}; or leave --resume out to begin anew.",
        )
    request = Request(
        command=command_of(context) if resume is None else [],
        settings=[],
        cwd=Path.cwd(),
        env=environment(),
        base=runs_folder(run_dir),
        max_pairs=pairs,
        margin=margin,
        budget_s=seconds(budget, "--budget"),
        timeout_s=seconds(timeout, "--timeout"),
        step_on=step_on,
        seed=seed,
        sandbox=sandbox,
        lock=lock,
        objective="time-to-first-step",
        ready_on=ready_on,
    )
    _show(_timed(request, resume), json)


def _timed(request: Request, resume: str | None) -> Startup:
    from rich.console import Console

    from dynotune.measure.comparison.protocol import Interrupted
    from dynotune.measure.startup import starting
    from dynotune.report.startup.starts import StartProgress

    console = Console(stderr=True, highlight=False)
    watcher = StartProgress(console)
    with watcher:
        try:
            if resume is None:
                return starting.time_starts(request, watcher)
            return starting.resume(found_folder(resume, request.base, starting.FILE), request, watcher)
        except Interrupted as stopped:
            usual = stopped.folder.parent == runs_folder(None)
            which = stopped.folder.name if usual else shlex.join([str(stopped.folder)])
            console.print(f"Stopped. Finished blocks are kept: dynotune startup time --resume {which}", soft_wrap=True)
            raise


def _show(startup: Startup, json: str | None) -> None:
    from rich.console import Console

    from dynotune.report.startup.starts import startup_report

    if json != "-":
        Console(highlight=False).print(startup_report(startup))
    if json is not None:
        write_json(startup, json)
