"""Interpret the files that the user names: one trace of several ranks, or two traces to compare."""

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dynotune.schema import untrusted
from dynotune.schema.errors import UsageError
from dynotune.trace.timeline import Timeline

Question = Literal["compare", "ranks"] | None
SNAPSHOTS = (".pickle", ".pkl")
PICKLED = b"\x80"
TRACES = (".json", ".json.gz", ".sqlite")
# Bytes that are enough to recognise a trace: its list of events, or its first event, is near the beginning.
HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The traces to read; each trace is a list of processes.

    Args:
        traces: one trace, or the traces before and after.
        why: a sentence for the user if dynotune chose this arrangement although another was possible; else
            "".
    """

    traces: tuple[list[Timeline], ...]
    why: str = ""


def files_of(arguments: Sequence[Path]) -> list[list[Path]]:
    """Return the files that each argument names: the file itself, or the traces in a folder, sorted by name.

    Raises UsageError: an argument does not exist or is a folder without a trace, or a file is named twice.
    """
    found = [_files_of(argument) for argument in arguments]
    seen: dict[Path, Path] = {}
    for path in (path for paths in found for path in paths):
        if path.resolve() in seen:
            raise UsageError(f"{path} was given twice.", hint="Name each file once.")
        seen[path.resolve()] = path
    return found


def arrange(arguments: Sequence[Sequence[Timeline]], asked: Question) -> Arrangement:
    """Arrange one trace of several ranks, or two to compare.

    `arguments`: for each argument, the processes found in its files.

    Raises UsageError: the files are neither one trace nor two, or not the arrangement that the user asked
    for.
    """
    every = [timeline for timelines in arguments for timeline in timelines]
    if asked == "compare":
        return Arrangement(_two(arguments))
    if asked == "ranks":
        if len(every) == 1 or _are_ranks(every):
            return Arrangement((every,))
        numbered = [replace(timeline, rank=rank, world_size=None) for rank, timeline in enumerate(every)]
        why = (
            f"The files do not tell {len(every)} different ranks: they are numbered from 0 in the order "
            "given."
        )
        return Arrangement((numbered,), why)
    if len({timeline.source for timeline in every}) == 1:
        return Arrangement((every,))
    if _are_ranks(every):
        ranks = ", ".join(str(rank) for rank in sorted(timeline.rank or 0 for timeline in every))
        return Arrangement(
            (every,), f"Read as one trace: these are ranks {ranks} of one job. --compare compares two."
        )
    if len(arguments) == 2 or len(every) == 2:
        before, after = _two(arguments)
        why = f"Compared, {_sources(before)} before and {_sources(after)} after: {_why(every)}"
        return Arrangement((before, after), why)
    raise UsageError(
        f"These {len(every)} traces are not the ranks of one job: {_clash(every)}.",
        hint=(
            "Give one file of each rank, or two files to compare; --ranks numbers the files in the order "
            "given."
        ),
    )


def as_text(path: Path) -> str:
    """Return the file's name with every byte that is not UTF-8 escaped, since JSON cannot contain such
    bytes."""
    return os.fsencode(path).decode(errors="backslashreplace")


def is_snapshot(path: Path) -> bool:
    """Return whether the file is a pickle, by its first bytes only. Raises UsageError: the file cannot be
    read."""
    try:
        with untrusted.opened(path) as file:
            return path.suffix in SNAPSHOTS or file.read(1) == PICKLED
    except OSError as error:
        raise unreadable(str(path), error) from error


def _files_of(argument: Path) -> list[Path]:
    try:
        mode = argument.stat().st_mode
    except FileNotFoundError:
        raise UsageError(
            f"There is no file {argument}.", hint="Name a trace, or a folder of traces."
        ) from None
    except (OSError, ValueError) as error:
        raise unreadable(str(argument), error) from error
    if not stat.S_ISDIR(mode):
        # A pipe can be read only once and a device may never end, but traces are inspected before they are
        # read.
        if not stat.S_ISREG(mode):
            raise UsageError(
                f"{argument} is not an ordinary file, as a trace must be.",
                hint="Write it to a file first: ... > trace.json, then dynotune trace trace.json.",
            )
        return [argument]
    try:
        inside = sorted(argument.iterdir(), key=_in_natural_order)
    except OSError as error:
        raise unreadable(f"The folder {argument}", error) from error
    found = [
        path for path in inside if path.is_file() and path.name.endswith(TRACES) and _looks_like_a_trace(path)
    ]
    if not found:
        raise UsageError(
            f"There is no trace in the folder {argument}.",
            hint=(
                "Looked for torch.profiler's .json and .json.gz and for Nsight Systems' .sqlite, not in "
                "subfolders."
            ),
        )
    return found


def unreadable(what: str, error: OSError | ValueError) -> UsageError:
    reason = getattr(error, "strerror", None) or error
    return UsageError(f"{what} cannot be read: {reason}.", hint="Check the name, and that you may read it.")


def _in_natural_order(path: Path) -> list[tuple[int, str]]:
    """Return a sort key for file names by which rank-2 comes before rank-10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"([0-9]+)", path.name)]


def _looks_like_a_trace(path: Path) -> bool:
    """Return whether a file in a folder looks like a trace, not like other JSON. Unreadable files count as
    traces."""
    if path.suffix == ".sqlite":
        return True
    import gzip
    import zlib

    try:
        with untrusted.opened(path) as file:
            head = (gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file).read(HEAD_BYTES)
    except (OSError, EOFError, zlib.error):
        return True
    return b'"traceEvents"' in head or b'"ph"' in head or b'"schemaVersion"' in head


def _are_ranks(timelines: Sequence[Timeline]) -> bool:
    ranks = [timeline.rank for timeline in timelines]
    sizes = {timeline.world_size for timeline in timelines if timeline.world_size is not None}
    return None not in ranks and len(set(ranks)) == len(ranks) and len(sizes) <= 1


def _two(arguments: Sequence[Sequence[Timeline]]) -> tuple[list[Timeline], list[Timeline]]:
    """Return the traces before and after a change, from two arguments or from a folder with two traces."""
    sides = [list(timelines) for timelines in arguments]
    if len(sides) == 1:
        by_source: dict[str, list[Timeline]] = {}
        for timeline in sides[0]:
            by_source.setdefault(timeline.source, []).append(timeline)
        sides = list(by_source.values())
    if len(sides) != 2:
        raise UsageError(
            "A comparison needs two traces, and there "
            f"{'is one' if len(sides) == 1 else f'are {len(sides)}'}.",
            hint="dynotune trace --compare BEFORE AFTER; a folder may stand for the ranks of one job.",
        )
    for side in sides:
        if len({timeline.source for timeline in side}) > 1 and not _are_ranks(side):
            raise UsageError(
                f"The {len(side)} traces on one side are not the ranks of one job: {_clash(side)}.",
                hint="Name two files instead of a folder.",
            )
    return sides[0], sides[1]


def _why(timelines: Sequence[Timeline]) -> str:
    ranks = {timeline.rank for timeline in timelines}
    if ranks == {None}:
        reason = "neither says its rank"
    elif None in ranks:
        reason = "one does not say its rank"
    elif len(ranks) == len(timelines):
        reason = "they are of jobs of different size"
    else:
        reason = f"both are of rank {ranks.pop()}" if len(ranks) == 1 else "they hold the same ranks"
    return f"{reason}. --ranks reads them as ranks of one job."


def _clash(timelines: Sequence[Timeline]) -> str:
    first: dict[int, Timeline] = {}
    for timeline in timelines:
        if timeline.rank is None:
            return f"{timeline.source} does not say its rank"
        other = first.setdefault(timeline.rank, timeline)
        if other is not timeline:
            return f"{other.source} and {timeline.source} are both of rank {timeline.rank}"
    return "they are of jobs of different size"


def _sources(timelines: Sequence[Timeline]) -> str:
    sources = list(dict.fromkeys(timeline.source for timeline in timelines))
    return sources[0] if len(sources) == 1 else f"{sources[0]} and {len(sources) - 1} more"
