"""`dynotune trace`: show where the time went in a recorded trace, or in a command that is recorded for this
purpose."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from dynotune import api
from dynotune.cli import RUN_PANEL, answers, options, run_options
from dynotune.cli.option_values import num_bytes, number
from dynotune.cli.options import Json, check_json, option
from dynotune.cli.run_options import runs_a_command
from dynotune.schema.errors import UsageError, from_elsewhere
from dynotune.schema.run import RunSpec

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dynotune.measure.live import RecordRequest
    from dynotune.trace import Timeline

Answer = tuple[msgspec.Struct, Callable[[Any], "RenderableType"]]
"""A document, and the function that renders its report."""

# A smaller file is read too fast for a progress bar to be noticed.
BAR_FROM_BYTES = 8 << 20
RECORDING = RUN_PANEL
OF_FILES = ("compare", "ranks")
OF_BOTH = (*OF_FILES, "files", "top", "max_size", "json")


@runs_a_command("settings", "warmup_steps", "run_to_end")
def trace(
    context: typer.Context,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Recorded traces, or a folder of them.", readable=False),
    ] = None,
    compare: Annotated[bool, option("trace_compare", "--compare")] = False,
    ranks: Annotated[bool, option("trace_ranks", "--ranks")] = False,
    top: Annotated[int, option("trace_top", **number(1))] = 5,
    max_size: Annotated[str | None, option("trace_max_size")] = None,
    json: Json = None,
    steps: Annotated[int | None, option("trace_steps", rich_help_panel=RECORDING, **number(1))] = None,
    stacks: Annotated[bool, option("trace_stacks", "--stacks", rich_help_panel=RECORDING)] = False,
    shapes: Annotated[bool, option("trace_shapes", "--shapes", rich_help_panel=RECORDING)] = False,
    memory: Annotated[bool, option("trace_memory", "--memory", rich_help_panel=RECORDING)] = False,
    *,
    run: RunSpec,
) -> None:
    limit_bytes = num_bytes(max_size, "--max-size")
    check_json(json)
    command = context.find_root().obj
    _check(context, files or [], command)
    if command is None:
        asked: api.Question = "compare" if compare else "ranks" if ranks else None
        with from_elsewhere(files[0] if files else "the trace"):
            document, report = _explained(files or [], asked, limit_bytes, top)
            answers.show(report, document, json)
    else:
        from dynotune.measure.live import RecordRequest

        run_options.check_run(context, run)
        request = RecordRequest(run=run, num_steps=steps, stacks=stacks, shapes=shapes, memory=memory)
        document, report = _recorded(request, limit_bytes, top)
        answers.show(report, document, json)


def _check(context: typer.Context, files: Sequence[Path], command: Sequence[str] | None) -> None:
    files_given = options.given(context, but=[name for name in context.params if name not in OF_FILES])
    if command is not None and not command:
        raise UsageError(
            "There is no command after --.", hint="For example: dynotune trace -- python train.py"
        )
    if command and files:
        raise UsageError(
            f"{files[0]} and a command were both given.",
            hint="dynotune trace FILE… explains recorded traces; dynotune trace -- COMMAND records one.",
        )
    if command is None and not files:
        raise UsageError(
            "There is no trace to read.",
            hint=(
                "dynotune trace FILE… explains recorded traces; dynotune trace -- python train.py records "
                "one."
            ),
        )
    if len(files_given) == len(OF_FILES):
        raise UsageError("--compare and --ranks exclude each other.", hint="Give one of them.")
    if command and files_given:
        raise UsageError(
            "--compare and --ranks need trace files, but a command was given.", hint="Leave them out."
        )
    if command is None and (foreign := options.given(context, but=OF_BOTH)):
        raise UsageError(
            f"{foreign[0]} needs a command to record, but none was given.",
            hint=f"dynotune trace {foreign[0]} … -- python train.py",
        )


def _explained(files: Sequence[Path], asked: api.Question, limit_bytes: int | None, top: int) -> Answer:
    from dynotune.trace import files_of, is_snapshot

    arguments = files_of(files)
    if snapshots := [path for paths in arguments for path in paths if is_snapshot(path)]:
        raise UsageError(
            f"{snapshots[0]} is a snapshot of memory, not a trace.",
            hint=f"dynotune memory {snapshots[0]} explains it.",
        )
    return _answer(_read(arguments, limit_bytes), asked, top)


def _recorded(request: RecordRequest, limit_bytes: int | None, top: int) -> Answer:
    """Record the command with progress on stderr, and explain the trace."""
    from dynotune.measure.live import record
    from dynotune.report import Progress, console

    with Progress(console(stderr=True)) as watcher:
        recording = record(request, watcher)
    several = len(recording.traces) > 1
    answers.say(f"Recorded into {recording.folder}" if several else f"Recorded: {recording.traces[0]}")
    return _answer(_read([recording.traces], limit_bytes), "ranks", top, notes=recording.cautions)


def _answer(
    arguments: Sequence[Sequence[Timeline]], asked: api.Question, top: int, *, notes: Sequence[str] = ()
) -> Answer:
    """Explain one trace, or the difference between two traces. `notes`: warnings known before the files were
    read."""
    from dynotune.report import on_terminal

    found, why = api.explained(arguments, asked, notes=notes)
    if why:
        answers.say(why)
    return found, lambda kept: on_terminal(kept, top=top)


def _read(arguments: Sequence[Sequence[Path]], limit_bytes: int | None) -> list[list[Timeline]]:
    """Read the processes in the files of each argument."""
    found = []
    for paths in arguments:
        with _bar(paths) as progress:
            found.append(api.timelines(paths, limit_bytes, progress))
    return found


@contextmanager
def _bar(paths: Sequence[Path]) -> Iterator[Callable[[int, int | None], None] | None]:
    """Show a progress bar on stderr for slow work, if stderr is a terminal."""
    if sum(path.stat().st_size for path in paths) < BAR_FROM_BYTES or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from dynotune.report import console

    columns = (TextColumn("Reading"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def advance(done_bytes: int, size_bytes: int | None) -> None:
            bar.update(task, completed=done_bytes, total=size_bytes)

        yield advance
