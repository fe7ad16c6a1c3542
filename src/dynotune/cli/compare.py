"""`dynotune compare`: two arms of one command, in pairs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dynotune.cli import command_of
from dynotune.cli.options import (
    OBJECTIVES,
    check_json,
    environment,
    found_folder,
    objective_called,
    runs_folder,
    seconds,
    write_json,
)
from dynotune.schema.errors import CommandFailed, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynotune.measure.live.request import Request, Watcher
    from dynotune.schema.comparison import Comparison
    from dynotune.schema.setting import Setting

HELP = """Prove on your command whether settings help.

The command runs once for each arm without being measured, then in pairs, in fresh processes and in random
order, until the answer is clear. For example:

dynotune compare loader.num_workers=4 -- python train.py
"""


def compare(
    context: typer.Context,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="SETTING", help="knob=value, of the candidate.")
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SETTING", help="A setting of the baseline; repeat for more. The command as it is, without."
        ),
    ] = None,
    pairs: Annotated[int, typer.Option(help="Most pairs to measure.", min=2, max=12)] = 12,
    objective: Annotated[
        str, typer.Option(metavar="NAME", help="What is compared: " + ", ".join(OBJECTIVES) + ".")
    ] = "throughput",
    margin: Annotated[float, typer.Option(help="Ratios within this of 1 count as the same.")] = 0.01,
    budget: Annotated[str | None, typer.Option(metavar="TIME", help="Most time for all of it: 90s, 15m, 1h.")] = None,
    warmup: Annotated[
        int | None, typer.Option(help="Steps before the window; found by a test, without.", min=1)
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of the window; found by the noise, without.", min=1)] = None,
    step_on: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="What ends a step, where it is not found by itself.")
    ] = None,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="Most time for one run.")] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Of the runs' random numbers and of the pairs' order.")
    ] = 0,
    caches: Annotated[
        str, typer.Option(metavar="warm|cold", help="Compile caches: kept between an arm's runs, or emptied.")
    ] = "warm",
    finish: Annotated[bool, typer.Option("--finish", help="Let each run go on to its own end.")] = False,
    sandbox: Annotated[
        bool, typer.Option("--sandbox/--no-sandbox", help="Work on a copy-on-write view of this folder.")
    ] = True,
    lock: Annotated[
        bool, typer.Option("--lock/--no-lock", help="Wait for another dynotune that measures on the same cores or GPU.")
    ] = True,
    resume: Annotated[
        str | None, typer.Option(metavar="ID", help="Go on with an interrupted comparison; no settings, no command.")
    ] = None,
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the comparison; - is stdout.")
    ] = None,
    run_dir: Annotated[Path | None, typer.Option("--run-dir", metavar="DIR", help="Where the records go.")] = None,
) -> None:
    from dynotune.measure.live.request import Request

    goal = objective_called(objective)
    if caches not in ("warm", "cold"):
        raise UsageError(f"--caches {caches} is neither warm nor cold.")
    check_json(json)
    if resume is not None and (settings or against or context.find_root().obj):
        raise UsageError(
            "--resume goes on with a comparison as it was begun: it takes no settings and no command.",
            hint=f"dynotune compare --resume {resume}; or leave --resume out to begin a new one.",
        )
    asked = parse(settings or []), parse(against or [])
    if resume is None and asked[0] == asked[1]:
        raise UsageError(
            "Both arms are the same." if settings else "There is no setting to compare.",
            hint="For example: dynotune compare loader.num_workers=4 -- python train.py. "
            "Any environment variable is a knob too: env.NAME=value.",
        )
    base = runs_folder(run_dir)
    kind: Literal["warm", "cold"] = "warm" if caches == "warm" else "cold"
    request = Request(
        command=command_of(context) if resume is None else [],
        settings=asked[0],
        against=asked[1],
        cwd=Path.cwd(),
        env=environment(),
        base=base,
        warmup_steps=warmup,
        window_steps=steps,
        max_pairs=pairs,
        margin=margin,
        timeout_s=seconds(timeout, "--timeout"),
        budget_s=seconds(budget, "--budget"),
        step_on=step_on,
        seed=seed,
        caches=kind,
        sandbox=sandbox,
        lock=lock,
        finish=finish,
        objective=goal,
    )
    show(measure(request, resume=resume, quiet=False), json)


def parse(texts: Sequence[str]) -> list[Setting]:
    """Settings as they stand on the command line; UsageError as `knobs.parse`."""
    from dynotune import knobs

    return [knobs.parse(text) for text in texts]


def measure(request: Request, *, resume: str | None = None, quiet: bool = False) -> Comparison:
    """Make the comparison with its progress on stderr; what `compare` and `demo` both do.

    Raises:
        DynotuneError: as `measure.protocol.compare`; protocol.Interrupted after saying how to go on.
    """
    from rich.console import Console

    from dynotune.measure.comparison import protocol
    from dynotune.report.terminal import Progress

    console = Console(stderr=True, highlight=False, quiet=quiet)
    with Progress(console) as progress:
        watcher: Watcher = progress
        try:
            if resume is None:
                return protocol.compare(request, watcher)
            return protocol.resume(found_folder(resume, request.base, protocol.FILE), request, watcher)
        except protocol.Interrupted as stopped:
            usual = stopped.folder.parent == runs_folder(None)
            which = stopped.folder.name if usual else shlex.join([str(stopped.folder)])
            console.print(f"Stopped. Finished pairs are kept: dynotune compare --resume {which}", soft_wrap=True)
            raise


def show(comparison: Comparison, json: str | None) -> None:
    """Print the comparison, as JSON too where asked.

    Raises:
        CommandFailed: an arm's command failed; that was the answer.
    """
    from rich.console import Console

    from dynotune.report.terminal import comparison_table

    if json != "-":
        Console(highlight=False).print(comparison_table(comparison))
    if json is not None:
        write_json(comparison, json)
    if comparison.failed is not None:
        failed = comparison.failed
        raise CommandFailed(
            f"The command failed in the {failed.arm}.",
            hint=f"All that it printed is in {failed.run}.",
            command_exit_code=failed.exit_code,
            last_lines=tuple(failed.last_lines) if json == "-" else (),
        )
