"""`dynotune startup`: show GPU code, JIT and compile caches, and the time to the first step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from dynotune.cli import HELP_OF, answers, options, startup_caches, with_command
from dynotune.cli.options import Budget, Json, Margin, Resume, check_json, environment, number, option, runs_a_command
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.run import RunSpec

if TYPE_CHECKING:
    from dynotune.probe.gpu_code import code_places

startup = typer.Typer(no_args_is_help=True, help="JIT and compile caches, and the time to the first step.")

GATES = ("partial", "jit", "cannot")
"""Verdicts on which the option can exit, the mildest first; each includes the worse verdicts."""


def scan(
    context: typer.Context,
    paths: Annotated[list[Path] | None, typer.Argument(metavar="PATHS", help="Files and folders.")] = None,
    python: Annotated[str | None, option("startup_python")] = None,
    compute_capability: Annotated[list[str] | None, option("startup_compute_capability")] = None,
    fail_on: Annotated[
        str | None, option("startup_fail_on", metavar="|".join(GATES), callback=options.one_of(*GATES))
    ] = None,
    timeout: Annotated[float | None, option("startup_timeout", parser=str, callback=options.seconds_of)] = None,
    every: Annotated[bool, option("startup_every", "--all")] = False,
    json: Json = None,
) -> None:
    from dynotune.probe.gpu_code import device_code, gpu_archs
    from dynotune.report import console
    from dynotune.report.startup import device_code as reports
    from dynotune.schema.device_code import Gpu

    check_json(json)
    asked = dict.fromkeys(gpu_archs.sm_of(text) for text in compute_capability or [])
    named = [Gpu(compute_capability=f"{sm // 10}.{sm % 10}") for sm in asked]
    gpus = named or device_code.gpus_here(environment())
    if fail_on is not None and not isinstance(gpus, list):
        raise CannotRunHere(
            f"--fail-on {fail_on} needs to know a GPU: {gpus.reason}.", hint="Name one: --compute-capability 9.0"
        )
    places = _places(paths or [], python, context.find_root().obj)
    with console(stderr=True).status("Reading …") as status:
        found = device_code.scan(
            places,
            gpus,
            deadline_s=device_code.DEADLINE_S if timeout is None else timeout,
            tell=lambda num: status.update(f"Reading … {num:,} files") if num % 100 == 0 else None,
        )
    answers.show(lambda kept: reports.device_code_report(kept, every=every), found, json)
    bad = GATES[GATES.index(fail_on) :] if fail_on is not None else ()
    if any(verdict.verdict in bad for library in found.libraries for verdict in library.verdicts):
        raise typer.Exit(1)


def _places(paths: list[Path], python: str | None, command: list[str] | None) -> code_places.Places:
    """Raises:
    UsageError: a path does not exist, or `--python` is not an interpreter. CannotRunHere: if only a run shows which
    libraries the command loads.
    """
    from dynotune.probe import interpreter_asked
    from dynotune.probe.gpu_code import code_places

    env, cwd = environment(), Path.cwd()
    places = code_places.Places()
    for path in paths:
        if not path.exists():
            raise UsageError(f"There is no {path}.", hint="Name a file or a folder.")
        places.add(path)
    if python is not None or not (command or paths):
        code_places.of_interpreter(str(interpreter_asked(python, None, env)), places, env, cwd)
    if command:
        found = code_places.of_command(command, places, env, cwd)
        if not isinstance(found, str):
            raise CannotRunHere(
                f"It cannot be told what {command[0]} loads: {found.reason}.",
                hint="Name the interpreter with --python, or files and folders.",
            )
    return places


@runs_a_command("ready_pattern", "seed", seed=0)
def time(
    context: typer.Context,
    blocks: Annotated[int, option("startup_blocks", **number(2, 12))] = 12,
    margin: Margin = 0.05,
    budget: Budget = None,
    resume: Resume = None,
    json: Json = None,
    *,
    run: RunSpec,
) -> None:
    from dynotune.measure.comparison import Interrupted
    from dynotune.measure.live import StartRequest
    from dynotune.measure.startup import starting
    from dynotune.report import console
    from dynotune.report.startup import starts

    check_json(json)
    folder = None
    if resume is None:
        options.check_run(context, run)
    else:
        folder = options.resumed_folder(context, resume, run.base, starting.FILE, but=("budget",))
    run = msgspec.structs.replace(run, objective="time-to-first-step")
    screen = console(stderr=True)
    watcher = starts.StartProgress(screen)
    with watcher:
        try:
            if folder is None:
                request = StartRequest(run=run, max_blocks=blocks, margin=margin, budget_s=budget)
                timed = starting.time_starts(request, watcher)
            else:
                timed = starting.resume(folder, run, watcher, budget_s=budget)
        except Interrupted as stopped:
            which = options.resume_with(stopped.folder)
            screen.print(f"Stopped. Finished blocks are kept: dynotune startup time --resume {which}", soft_wrap=True)
            raise
    answers.show(starts.startup_report, timed, json)


startup.command(help=HELP_OF["startup scan"]["help"])(scan)
startup.command(cls=with_command(), help=HELP_OF["startup time"]["help"])(time)
startup.command(cls=with_command(), help=HELP_OF["startup warm"]["help"])(startup_caches.warm)
startup.command(cls=with_command(), help=HELP_OF["startup pack"]["help"])(startup_caches.pack)
startup.command(cls=with_command(), help=HELP_OF["startup unpack"]["help"])(startup_caches.unpack)
