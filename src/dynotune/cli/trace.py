"""`dynotune trace`: what a recorded trace says the time went to."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynotune.cli.options import check_json, num_bytes, write_json
from dynotune.cli.trace_files import SNAPSHOTS, Asked, arrange, files_of
from dynotune.schema.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from dynotune.trace.timeline import Timeline

# Reading a smaller one takes no longer than noticing that there was a bar.
BAR_FROM_BYTES = 8 << 20


def trace(
    context: typer.Context,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="Of torch.profiler or Nsight Systems, or a folder.")
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Take two files as before and after.")] = False,
    ranks: Annotated[bool, typer.Option("--ranks", help="Take the files as the ranks of one job.")] = False,
    top: Annotated[int, typer.Option(help="Rows of each list.", min=1)] = 5,
    max_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Most that a compressed file may unpack to: 500M, 8G."),
    ] = None,
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write everything as JSON; - is stdout.")
    ] = None,
) -> None:
    """Say what the time of a recorded trace went to.

    One file, or one of each rank, is explained; two files of the same rank are compared, before and after.
    For example:

    dynotune trace trace.json.gz
    """
    if compare and ranks:
        raise UsageError("--compare and --ranks exclude each other.", hint="Give one of them.")
    asked: Asked = "compare" if compare else "ranks" if ranks else None
    limit_bytes = num_bytes(max_size, "--max-size")
    check_json(json)
    if context.find_root().obj is not None:
        raise UsageError("Recording is not built in yet.")
    if not files:
        raise UsageError(
            "There is no trace to read.",
            hint="dynotune trace FILE… explains recorded traces; dynotune trace -- python train.py records one.",
        )
    document, report = _explained(files, asked, limit_bytes, top)
    if json != "-":
        _print(report())
    if json is not None:
        write_json(document, json)


def _explained(
    files: Sequence[Path], asked: Asked, limit_bytes: int | None, top: int
) -> tuple[object, Callable[[], RenderableType]]:
    """The document, and what makes its report."""
    arguments = files_of(files)
    snapshots = [path for paths in arguments for path in paths if path.suffix in SNAPSHOTS]
    if snapshots:
        if len(arguments) > 1:
            raise UsageError(
                f"{snapshots[0]} is a snapshot of memory, not a trace.",
                hint="Give it alone: it has a report of its own.",
            )
        return _snapshot(snapshots[0], limit_bytes, top)
    arrangement = arrange(_read(arguments, limit_bytes), asked)
    if arrangement.why:
        _say(arrangement.why)

    from dynotune.trace.summary import summarise

    summaries = [summarise(timelines) for timelines in arrangement.traces]
    if len(summaries) == 1:
        from dynotune.report.trace import trace_report

        return summaries[0], lambda: trace_report(summaries[0], top=top)

    from dynotune.report.trace_difference import difference_report
    from dynotune.trace.difference import difference

    found = difference(*summaries)
    return found, lambda: difference_report(found, top=top)


def _snapshot(path: Path, limit_bytes: int | None, top: int) -> tuple[object, Callable[[], RenderableType]]:
    from dynotune.report.memory_snapshot import snapshot_report
    from dynotune.trace import snapshot

    found = snapshot.load(path)
    return found, lambda: snapshot_report(found, top=top)


def _read(arguments: Sequence[Sequence[Path]], limit_bytes: int | None) -> list[list[Timeline]]:
    """The processes in the files of each argument."""
    from dynotune.trace.reading import read

    read_by_argument = []
    for paths in arguments:
        with _bar(paths) as progress:
            read_by_argument.append(read(paths, limit_bytes=limit_bytes, progress=progress))
    return read_by_argument


@contextmanager
def _bar(paths: Sequence[Path]) -> Iterator[Callable[[int, int | None], None] | None]:
    """A bar on stderr for what takes a while, where somebody can see it."""
    size_bytes = sum(path.stat().st_size for path in paths)
    if size_bytes < BAR_FROM_BYTES or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("Reading"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)


def _say(text: str) -> None:
    from rich.console import Console
    from rich.text import Text

    from dynotune.report.words import plain

    Console(stderr=True, highlight=False).print(Text(plain(text), style="dim"), soft_wrap=True)


def _print(report: Any) -> None:
    from rich.console import Console

    # Names in a trace may hold what the terminal's encoding does not.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    Console(highlight=False).print(report)
