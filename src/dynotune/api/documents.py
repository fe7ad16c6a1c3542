"""Read and write dynotune's documents for the API, and render each as the terminal's report."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from dynotune.schema import atomic, document, untrusted
from dynotune.schema.errors import UsageError, from_elsewhere, may_fail

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dynotune.schema.diagnosis import Diagnosis, Examination, MemoryAccount
    from dynotune.schema.trace_summary import TraceDifference, TraceSummary
    from dynotune.trace import Timeline

Question = Literal["compare", "ranks"] | None
S = TypeVar("S", bound=msgspec.Struct)

LARGEST_EXAMINATION_BYTES = 16 << 20  # a thousand times what one takes
MAX_SNAPSHOT_BYTES = 1 << 30  # one that is made to harm can take fifty times its size in memory
# Documents that a folder may hold; the first that is there counts.
IN_A_FOLDER = (
    "study.json",
    "bisection.json",
    "comparison.json",
    "observation.json",
    "startup.json",
    "memory.json",
    "largest.json",
    "account.json",
)


def read_traces(
    *files: str | os.PathLike[str], question: Question = None, max_bytes: int | None = None
) -> TraceSummary | TraceDifference:
    """Report what the traces of one job spent their time on, or how the second of two traces differs.

    Args:
        files: files of torch.profiler or Nsight Systems, or a folder of them.
        question: "compare" reads two files as before and after, "ranks" reads all files as the ranks of one
            job.
        max_bytes: most bytes that a compressed file may unpack to.

    Raises UsageError, RecordError if a file is missing or damaged, or the files are neither ranks nor before
    and after.
    """
    from dynotune.trace import files_of

    arguments = files_of([Path(file) for file in files])
    with from_elsewhere(files[0] if files else "the trace"):
        return shown(explained([timelines(paths, max_bytes) for paths in arguments], question)[0])


def read_snapshot(file: str | os.PathLike[str], *, max_bytes: int = MAX_SNAPSHOT_BYTES) -> MemoryAccount:
    """Report where memory goes in a snapshot of torch's allocator. UsageError, RecordError if it is no
    snapshot."""
    from dynotune import memory
    from dynotune.schema.diagnosis import MemoryAccount
    from dynotune.trace import as_text, files_of, is_snapshot
    from dynotune.trace.snapshot import load_snapshot

    ((path, *rest),) = files_of([Path(file)])
    if rest or not is_snapshot(path):
        raise UsageError(
            f"{file} is no memory snapshot.", hint=f"dynotune trace {file} explains recorded traces."
        )
    with from_elsewhere(file):
        ranks = [memory.of_snapshot(lives) for lives in load_snapshot(path, limit_bytes=max_bytes).values()]
    notes = [] if ranks else ["the snapshot holds no memory and no history"]
    return shown(MemoryAccount(file=as_text(path), ranks=ranks, notes=notes))


def load(path: str | os.PathLike[str]) -> Any:
    """Read an earlier document: a JSON file of dynotune, or the folder of a study, a comparison or a
    diagnosis.

    Raises UsageError, RecordError if the file is missing, holds no answer, is damaged, or is of another
    version.
    """
    file = file_of(Path(path))
    noun = noun_of(file)
    with from_elsewhere(file):
        if noun == "observation":
            return replay(file)
        return shown(document.read(file, _kinds()[noun][0]))


def replay(observation: Path) -> Diagnosis:
    """Conclude again from an earlier observation: its file, or the folder of its run.

    Raises UsageError, RecordError: there is no observation, or it is damaged or of another version.
    """
    from dynotune.diagnose import conclude, replayed

    with from_elsewhere(observation):
        return shown(conclude(replayed(observation)))


def save(found: msgspec.Struct, path: str | os.PathLike[str]) -> None:
    """Write a document as `--json` writes it. Raises UsageError if the file cannot be written."""
    with may_fail(f"write {path}", "Name another file.", UsageError):
        atomic.write(Path(path), document.encode(found) + b"\n")


def check_output(target: str | os.PathLike[str] | None, option: str) -> None:
    """Refuse a file that cannot be written, before hours of measuring.

    `option`: the option that names the file, for the error. Raises UsageError if no file can be written at
        `path`.
    """
    if target is None:
        return
    path = Path(target)
    if path.is_dir():
        why: str | None = "it is a folder"
    elif not path.absolute().parent.is_dir():
        why = f"there is no folder {path.absolute().parent}"
    else:
        try:
            atomic.probe(path)
            return
        except OSError as error:
            why = error.strerror
    raise UsageError(f"Cannot write {target}: {why}.", hint=f"Name another file with {option}.")


def file_of(path: Path) -> Path:
    """Return the path itself, or the file with a report in a folder. Raises UsageError if there is no such
    file."""
    try:
        if not path.is_dir():
            if not path.exists():
                raise UsageError(
                    f"There is no file or folder {path}.",
                    hint="Name a folder of a study, or a JSON file of dynotune.",
                )
            return path
        found = next((path / name for name in IN_A_FOLDER if (path / name).is_file()), None)
    except (OSError, ValueError) as error:
        from dynotune.trace import unreadable

        raise unreadable(str(path), error) from error
    if found is None:
        raise UsageError(
            f"The folder {path} holds nothing that has a report.",
            hint=f"Looked for {', '.join(IN_A_FOLDER)}.",
        )
    return found


def noun_of(file: Path) -> str:
    """Return the kind of the document in a file: `study` for `dynotune.study/2`.

    Raises UsageError if the file cannot be read, or its document has no report.
    """
    try:
        schema = document.parse(untrusted.read(file), document.Head).schema
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read: {error.strerror}.", hint="Check that you may read it."
        ) from error
    except ValueError as error:
        raise UsageError(
            f"{file} is not a JSON document: {error}.", hint="Was it cut short, or is it of another program?"
        ) from error
    noun = schema.removeprefix("dynotune.").partition("/")[0] if schema.startswith("dynotune.") else ""
    if noun not in _kinds():
        found = f": it is {with_article(noun)}" if noun else ""
        raise UsageError(
            f"{file} holds no report{found}.", hint=f"It is made of one of these: {', '.join(_kinds())}."
        )
    return noun


def with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun.replace('_', ' ')}"


@functools.cache
def _kinds() -> dict[str, tuple[type[msgspec.Struct], Callable[[Any], RenderableType]]]:
    """Return the type and the report of each kind of document. An observation first becomes a diagnosis."""
    from dynotune import report
    from dynotune.doctor import all_rules
    from dynotune.schema.account import RunAccount
    from dynotune.schema.bisection import Bisection
    from dynotune.schema.comparison import Comparison
    from dynotune.schema.diagnosis import Diagnosis, Examination, MemoryAccount
    from dynotune.schema.largest import LargestValue
    from dynotune.schema.precision import Precision
    from dynotune.schema.startup import Startup
    from dynotune.schema.study import Study
    from dynotune.schema.trace_summary import TraceDifference, TraceSummary

    costs = {rule.id: rule.costs for rule in all_rules().values()}
    return {
        "study": (Study, report.on_terminal),
        "bisection": (Bisection, report.on_terminal),
        "comparison": (Comparison, report.on_terminal),
        "observation": (Diagnosis, report.on_terminal),
        "diagnosis": (Diagnosis, report.on_terminal),
        "trace": (TraceSummary, report.on_terminal),
        "trace_difference": (TraceDifference, report.on_terminal),
        "memory": (MemoryAccount, report.on_terminal),
        "precision": (Precision, report.on_terminal),
        "examination": (Examination, functools.partial(report.on_terminal, costs=costs)),
        "startup": (Startup, report.on_terminal),
        "largest": (LargestValue, report.on_terminal),
        "account": (RunAccount, report.on_terminal),
    }


def report_of(found: msgspec.Struct) -> RenderableType:
    """Return the terminal's report of a document."""
    return next(report for kind, report in _kinds().values() if isinstance(found, kind))(found)


class _Shown:
    __slots__ = ()

    def __repr__(self: Any) -> str:
        from dynotune.report import as_text

        return as_text(report_of(document.without_secrets(self)))

    def _repr_html_(self: Any) -> str:
        from dynotune.report import as_html

        return as_html(report_of(document.without_secrets(self)))


@functools.cache
def _extended(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    return msgspec.defstruct(kind.__name__, [], bases=(_Shown, kind), frozen=True, kw_only=True)


def shown(found: S) -> S:
    """Return the document, made to print as its report and to be displayed so in a notebook."""
    fields = {name: getattr(found, name) for name in found.__struct_fields__}
    return found if isinstance(found, _Shown) else _extended(type(found))(**fields)  # type: ignore[return-value]


def timelines(
    paths: Sequence[Path],
    limit_bytes: int | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> list[Timeline]:
    """Read the processes in trace files; `progress` gets the number of bytes read and the total."""
    from dynotune.trace import as_text
    from dynotune.trace.readers import read_traces

    found = read_traces(paths, limit_bytes=limit_bytes, progress=progress)
    return [replace(timeline, source=as_text(Path(timeline.source))) for timeline in found]


def explained(
    arguments: Sequence[Sequence[Timeline]], question: Question, *, notes: Sequence[str] = ()
) -> tuple[TraceSummary | TraceDifference, str]:
    """Explain one trace, or compare two; if the user did not choose how files are read, add a note on the
    choice.

    `notes`: warnings on the recording, which come before the notes of a trace's explanation.
    """
    from dynotune.trace import arrange, difference, summarise

    arrangement = arrange(arguments, question)
    summaries = [summarise(found) for found in arrangement.traces]
    if len(summaries) > 1:
        return difference(*summaries), arrangement.why
    (summary,) = summaries
    return msgspec.structs.replace(summary, notes=[*notes, *summary.notes]), arrangement.why


def examination_of(path: Path) -> Examination:
    """Read an examination, which may come from another machine and is not trusted."""
    from dynotune.schema.diagnosis import Examination

    hint = "dynotune doctor --json FILE writes one on the other machine."
    try:
        if not path.is_file():
            raise UsageError(f"There is no file {path}.", hint=hint)
        if path.stat().st_size > LARGEST_EXAMINATION_BYTES:
            raise UsageError(f"{path} is too large to be an examination.", hint=hint)
    except (OSError, ValueError) as error:
        raise UsageError(f"Cannot read {path}: {error}.", hint=hint) from error
    return document.read(path, Examination)
