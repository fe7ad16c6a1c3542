"""dynotune as functions, for scripts and notebooks.

A function runs what the subcommand of its name runs, and returns the same document: a struct of `dynotune.schema`
that prints as the terminal's report and shows it in a notebook. The command runs in processes of its own; nothing
here imports torch. Arguments are the options of the command line; times are seconds. Progress goes to standard error.

Functions of a command raise `dynotune.schema.errors`: UsageError where what is asked for does not exist or fit
together, CommandFailed where the command ended with an error, CannotRunHere where machine or program lack something.
"""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack

import msgspec

from dynotune.schema import atomic, document, private, redaction
from dynotune.schema.errors import CommandFailed, UsageError, from_elsewhere, may_fail
from dynotune.schema.run import Caches, Objective, Phase, RunSpec

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dynotune.measure.live import Watcher
    from dynotune.schema.comparison import Comparison, InProcess
    from dynotune.schema.diagnosis import Diagnosis, Examination
    from dynotune.schema.memory_account import MemoryAccount
    from dynotune.schema.setting import Setting
    from dynotune.schema.study import Study
    from dynotune.schema.trace_summary import TraceDifference, TraceSummary
    from dynotune.trace import Timeline

Command = str | Sequence[str | os.PathLike[str]]
"""A command line, or its words: "python train.py", ["python", "train.py"]."""
Settings = str | Iterable[str] | Mapping[str, object]
"""Settings of one arm: {"loader.num_workers": 4}, ["loader.num_workers=4"]. None as a value takes a variable away."""
Question = Literal["compare", "ranks"] | None
S = TypeVar("S", bound=msgspec.Struct)

DOCTOR_S = 1.9  # for the facts; importing and drawing take the rest of three seconds
LARGEST_EXAMINATION_BYTES = 16 << 20  # a thousand times what one takes
MAX_SNAPSHOT_BYTES = 1 << 30  # one that is made to harm can take fifty times its size in memory
# What a folder may hold, the first that is there.
IN_A_FOLDER = ("study.json", "comparison.json", "observation.json", "startup.json", "memory.json")
_FIELDS = {"steps": "window_steps", "warmup": "warmup_steps", "run_dir": "base"}


class RunOptions(TypedDict, total=False):
    """How a command is run.

    Args:
        cwd, env: the folder it runs in, and all of its variables; those of this process by default.
        progress: say on standard error what is going on; True by default.
    """

    cwd: str | os.PathLike[str]
    env: Mapping[str, str]
    warmup: int | None
    step_function: str | None
    phase: Phase | None
    seed: int | None
    timeout_s: float | None
    sandbox: bool
    nice: int
    lock: bool
    lanes: int
    run_to_end: bool
    run_dir: str | os.PathLike[str]
    progress: bool


def doctor(
    command: Command = (),
    *,
    python: str | None = None,
    baseline: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Examination:
    """Say what machine and environment cost, without running anything.

    Args:
        command, python: say which interpreter is meant; by default the one that the shell would start.
        baseline: an examination of another machine, as `save` wrote it, to compare with.

    Raises UsageError, RecordError: there is no such interpreter or file, or the file is no examination.
    """
    from dynotune import probe
    from dynotune.claims import all_claims
    from dynotune.doctor import ObservationView, differences, examine, seen_here
    from dynotune.schema.diagnosis import Examination
    from dynotune.schema.observation import Observation

    other = None if baseline is None else _examination(Path(baseline)).facts
    env = os.environ if env is None else env
    asked = probe.interpreter_asked(python, _words(command), env)
    facts = probe.machine(env, python=asked, cwd=Path.cwd(), deadline_s=DOCTOR_S)
    seen = ObservationView(Observation(facts=facts))
    findings, unknown = examine(seen, "machine")
    differing = None if other is None else differences(facts, other)
    claims = list(seen_here(seen, all_claims(), [finding.id for finding in findings]))
    return shown(Examination(findings=findings, unknown=unknown, facts=facts, differences=differing, claims=claims))


def diagnose(
    command: Command,
    *,
    settings: Settings = (),
    steps: int | None = None,
    isolate_loader: bool = False,
    **run: Unpack[RunOptions],
) -> Diagnosis:
    """Say why a command is slow: it is timed, then a few of its steps are recorded.

    Args:
        isolate_loader: also time the loader alone, then the step with one batch replayed.
    """
    from dynotune.diagnose import conclude, observed

    spec = _spec(command, run, settings, window_steps=steps)
    with _watched(run) as watcher:
        observation, _, beside = observed(spec, watcher, isolate_loader=isolate_loader)
    return shown(conclude(observation, **beside))


def compare(
    command: Command,
    candidate: Settings,
    *,
    baseline: Settings = (),
    steps: int | None = None,
    objective: Objective = "throughput",
    caches: Caches = "warm",
    pairs: int = 12,
    margin: float = 0.01,
    budget_s: float | None = None,
    precision: float | None = None,
    in_process: InProcess = "auto",
    **run: Unpack[RunOptions],
) -> Comparison:
    """Prove on a command whether the candidate's settings help, against those of the baseline or none.

    Args:
        margin: ratios within this distance of 1 count as the same.
        precision: go on until the interval is as narrow as this share of the difference.
    """
    from dynotune.measure.comparison import protocol
    from dynotune.measure.live import CompareRequest

    options: RunOptions = {"seed": 0, **run}
    spec = _spec(command, options, baseline, window_steps=steps, objective=objective, caches=caches)
    chosen = _settings(candidate)
    if chosen == spec.settings:
        raise UsageError("Both arms are the same.", hint='Name a setting, as {"loader.num_workers": 4}.')
    limits: dict[str, Any] = {"max_pairs": pairs, "margin": margin, "budget_s": budget_s, "precision": precision}
    request = _checked(CompareRequest(run=spec, candidate=chosen, in_process=in_process, **limits))
    with _watched(run, "compare") as watcher:
        found = protocol.compare(request, watcher)
    raise_if_failed(found, with_output=True)
    return shown(found)


def tune(
    command: Command,
    *,
    budget_s: float = 900.0,
    steps: int | None = None,
    objective: Objective = "throughput",
    caches: Caches = "warm",
    allow: Sequence[str] = (),
    extra: Sequence[str] = (),
    exclude: Sequence[str] = (),
    values: Sequence[str] = (),
    margin: float = 0.01,
    output: str | os.PathLike[str] | None = None,
    **run: Unpack[RunOptions],
) -> Study:
    """Find what helps a command, and prove it.

    Args:
        allow: effects that settings may have besides speed: "numerics", "semantics".
        extra: knobs or settings to try whatever they may change, as `--try`.
        values: more values of knobs, as "loader.num_workers=2,4,8".
        output: where a recipe is written, if something was proved; None leaves it in the study's folder.
    """
    from dynotune.search import RECIPE, TuneRequest
    from dynotune.search import tune as studies

    options: RunOptions = {"seed": 0, **run}
    spec = _spec(command, options, window_steps=steps, objective=objective, caches=caches)
    words: dict[str, Any] = {
        "allow": list(allow),
        "extra": list(extra),
        "exclude": list(exclude),
        "values": list(values),
    }
    request = _checked(TuneRequest(run=spec, margin=margin, **words))
    with _watched(run, "tune") as watcher:
        folder, found = studies.tune(request, budget_s, watcher)
    if output is not None and found.recipe:
        with may_fail(f"write {output}", f"It is in {folder / RECIPE}.", UsageError):
            atomic.write(Path(output), (folder / RECIPE).read_bytes())
    return shown(found)


def memory(
    command: Command,
    *,
    settings: Settings = (),
    batches: Mapping[str, Sequence[int]] | None = None,
    predict: Sequence[int] = (),
    gpu: str | None = None,
    **run: Unpack[RunOptions],
) -> MemoryAccount:
    """Say where a command's device memory goes, and what fits.

    Args:
        batches: two to run, as {"arg.batch": [8, 16]} for `{batch}` in the command; from them others are predicted.
        predict: batches to name, of those.
        gpu: the GPU to fit on, as "H100-80GB"; the one here by default.
    """
    from dynotune import knobs
    from dynotune.diagnose import live_memory

    chosen = [knobs.parse(f"{knob}={value}") for knob, named in (batches or {}).items() for value in named]
    if len(chosen) == 1 or (predict and not chosen):
        raise UsageError("Other batches are predicted from two.", hint='Give batches={"arg.batch": [8, 16]}.')
    spec = _spec(command, run, settings)
    with _watched(run) as watcher:
        return shown(live_memory(spec, watcher, batches=chosen, card=gpu, asked=list(predict))[0])


def trace(
    command: Command,
    *,
    settings: Settings = (),
    steps: int | None = None,
    stacks: bool = False,
    shapes: bool = False,
    **run: Unpack[RunOptions],
) -> TraceSummary:
    """Record a few steady steps of a command, with Python's functions or shapes if asked; say what they went to."""
    from dynotune.measure.live import RecordRequest, record

    spec = _spec(command, run, settings)
    request = _checked(RecordRequest(run=spec, num_steps=steps, stacks=stacks, shapes=shapes))
    with _watched(run) as watcher:
        recording = record(request, watcher)
    found: Any = explained([timelines(recording.traces)], "ranks")[0]
    told: TraceSummary = msgspec.structs.replace(found, notes=[*recording.notes, *found.notes])
    return shown(told)


def read_traces(
    *files: str | os.PathLike[str], question: Question = None, max_bytes: int | None = None
) -> TraceSummary | TraceDifference:
    """Say what traces of one job went to, or how the second of two differs.

    Args:
        files: of torch.profiler or Nsight Systems, or a folder of them.
        question: take two as before and after ("compare"), or all as the ranks of one job ("ranks").
        max_bytes: most that a compressed file may unpack to.

    Raises UsageError, RecordError: a file is missing or damaged, or they are neither ranks nor two to compare.
    """
    from dynotune.trace import files_of

    arguments = files_of([Path(file) for file in files])
    with from_elsewhere(files[0] if files else "the trace"):
        return shown(explained([timelines(paths, max_bytes) for paths in arguments], question)[0])


def read_snapshot(file: str | os.PathLike[str], *, max_bytes: int = MAX_SNAPSHOT_BYTES) -> MemoryAccount:
    """Say where memory goes in a snapshot of torch's allocator. Raises UsageError, RecordError: it is none."""
    from dynotune import memory
    from dynotune.schema.memory_account import MemoryAccount
    from dynotune.trace import as_text, files_of, is_snapshot
    from dynotune.trace.snapshot import load_snapshot

    ((path, *rest),) = files_of([Path(file)])
    if rest or not is_snapshot(path):
        raise UsageError(f"{file} is no memory snapshot.", hint=f"dynotune trace {file} explains recorded traces.")
    with from_elsewhere(file):
        ranks = [memory.of_snapshot(lives) for lives in load_snapshot(path, limit_bytes=max_bytes).values()]
    notes = [] if ranks else ["the snapshot holds no memory and no history"]
    return shown(MemoryAccount(file=as_text(path), ranks=ranks, notes=notes))


def load(path: str | os.PathLike[str]) -> Any:
    """Read what dynotune wrote before: a JSON file, or the folder of a study, a comparison or a diagnosis.

    Raises UsageError, RecordError: there is none, it holds no answer, or it is damaged or of another version.
    """
    file = file_of(Path(path))
    noun = noun_of(file)
    with from_elsewhere(file):
        if noun == "observation":
            from dynotune.diagnose import conclude, replayed

            return shown(conclude(replayed(file)))
        return shown(document.read(file, _kinds()[noun][0]))


def save(found: msgspec.Struct, path: str | os.PathLike[str]) -> None:
    """Write a document as `--json` does. Raises UsageError: it cannot be written."""
    with may_fail(f"write {path}", "Name another file.", UsageError):
        atomic.write(Path(path), document.encode(found) + b"\n")


def file_of(path: Path) -> Path:
    """Return the file itself, or the one of a folder that has a report. Raises UsageError: there is none."""
    try:
        if not path.is_dir():
            if not path.exists():
                raise UsageError(
                    f"There is no file or folder {path}.", hint="Name a folder of a study, or a JSON file of dynotune."
                )
            return path
        found = next((path / name for name in IN_A_FOLDER if (path / name).is_file()), None)
    except (OSError, ValueError) as error:
        from dynotune.trace import unreadable

        raise unreadable(str(path), error) from error
    if found is None:
        raise UsageError(
            f"The folder {path} holds nothing that has a report.", hint=f"Looked for {', '.join(IN_A_FOLDER)}."
        )
    return found


def noun_of(file: Path) -> str:
    """Return what the file holds: `study` for `dynotune.study/2`.

    Raises UsageError: it cannot be read, or has no report.
    """
    try:
        schema = document.parse(atomic.read(file), document.Head).schema
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.", hint="Check that you may read it.") from error
    except ValueError as error:
        raise UsageError(
            f"{file} is not a JSON document: {error}.", hint="Was it cut short, or is it of another program?"
        ) from error
    noun = schema.removeprefix("dynotune.").partition("/")[0] if schema.startswith("dynotune.") else ""
    if noun not in _kinds():
        found = f": it is {with_article(noun)}" if noun else ""
        raise UsageError(f"{file} holds no report{found}.", hint=f"It is made of one of these: {', '.join(_kinds())}.")
    return noun


def with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun.replace('_', ' ')}"


@functools.cache
def _kinds() -> dict[str, tuple[type[msgspec.Struct], Callable[[Any], RenderableType]]]:
    """Return types and reports of documents, by the noun in their schema. An observation is concluded from."""
    from dynotune import report
    from dynotune.doctor import all_rules
    from dynotune.report.startup import starts
    from dynotune.report.study import study_report
    from dynotune.report.trace import difference_report, trace_report
    from dynotune.schema.comparison import Comparison
    from dynotune.schema.diagnosis import Diagnosis, Examination
    from dynotune.schema.memory_account import MemoryAccount
    from dynotune.schema.startup import Startup
    from dynotune.schema.study import Study
    from dynotune.schema.trace_summary import TraceDifference, TraceSummary

    costs = {rule.id: rule.costs for rule in all_rules().values()}
    return {
        "study": (Study, study_report),
        "comparison": (Comparison, report.comparison_table),
        "observation": (Diagnosis, report.diagnosis_report),
        "diagnosis": (Diagnosis, report.diagnosis_report),
        "trace": (TraceSummary, trace_report),
        "trace_difference": (TraceDifference, difference_report),
        "memory": (MemoryAccount, report.memory_report),
        "examination": (Examination, functools.partial(report.examination_report, costs=costs)),
        "startup": (Startup, starts.startup_report),
    }


def report_of(found: msgspec.Struct) -> RenderableType:
    """Return what the terminal shows of a document."""
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
    """Return the document so that it prints as its report, and shows it in a notebook."""
    fields = {name: getattr(found, name) for name in found.__struct_fields__}
    return found if isinstance(found, _Shown) else _extended(type(found))(**fields)  # type: ignore[return-value]


def timelines(
    paths: Sequence[Path], limit_bytes: int | None = None, progress: Callable[[int, int | None], None] | None = None
) -> list[Timeline]:
    """Read the processes in files of traces; `progress` is told bytes done, and how many there are."""
    from dynotune.trace import as_text
    from dynotune.trace.readers import read_traces

    found = read_traces(paths, limit_bytes=limit_bytes, progress=progress)
    return [replace(timeline, source=as_text(Path(timeline.source))) for timeline in found]


def explained(
    arguments: Sequence[Sequence[Timeline]], question: Question
) -> tuple[TraceSummary | TraceDifference, str]:
    """Return what one trace says, or how two differ, and why they were taken so where that was not asked for."""
    from dynotune.trace import arrange, difference, summarise

    arrangement = arrange(arguments, question)
    summaries = [summarise(found) for found in arrangement.traces]
    return summaries[0] if len(summaries) == 1 else difference(*summaries), arrangement.why


def raise_if_failed(found: Comparison, *, with_output: bool) -> None:
    """Raise CommandFailed if an arm's command failed: that was the answer. `with_output`: with its last lines."""
    if found.failed is None:
        return
    from dynotune.launch.records import why_memory_ran_out

    failed = found.failed
    raise CommandFailed(
        f"The command failed in the {failed.arm}. {why_memory_ran_out(failed.last_lines)}".rstrip(),
        hint=f"All that it printed is in {failed.run}.",
        command_exit_code=failed.exit_code,
        last_lines=tuple(failed.last_lines) if with_output else (),
    )


def _examination(path: Path) -> Examination:
    """Read an examination that somebody else may have written."""
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


def _words(command: Command) -> list[str]:
    try:
        return shlex.split(command) if isinstance(command, str) else [os.fspath(word) for word in command]
    except ValueError as error:
        raise UsageError(f"{command!r} is no command line: {error}.", hint="Give a list of its words.") from None


def _settings(given: Settings) -> list[Setting]:
    from dynotune import knobs
    from dynotune.schema.setting import UNSET

    if isinstance(given, Mapping):
        given = [f"{knob}={UNSET if value is None else value}" for knob, value in given.items()]
    return knobs.parse_all([given] if isinstance(given, str) else given)


def _checked(asked: S) -> S:
    """Return it as it is. Raises UsageError: a value is not of its type, or a number of steps is none."""
    try:
        document.parse(document.encode(asked), type(asked))
    except ValueError as error:
        raise UsageError(f"An argument does not fit: {error}.", hint="help(dynotune.api) lists them.") from None
    for name in ("window_steps", "warmup_steps", "num_steps"):
        if (value := getattr(asked, name, None)) is not None and value < 1:
            raise UsageError(f"{value} is not a number of steps.", hint="Give a whole number above 0.")
    return asked


def _spec(command: Command, options: RunOptions, settings: Settings = (), **fields: Any) -> RunSpec:
    """Return the run that the options describe. Raises UsageError: it cannot begin; TypeError: no such option."""
    from dynotune import launch

    if unknown := options.keys() - RunOptions.__annotations__.keys():
        raise TypeError(f"there is no option {', '.join(sorted(unknown))}; see dynotune.api.RunOptions")
    named: dict[str, Any] = {_FIELDS.get(name, name): value for name, value in options.items() if name != "progress"}
    base = Path(options.get("run_dir") or private.state_folder() / "runs").expanduser().absolute()
    named |= fields | {"cwd": Path(options.get("cwd", ".")).absolute(), "base": base}
    named["env"] = dict(options.get("env", os.environ))
    run = _checked(RunSpec(command=_words(command), settings=_settings(settings), **named))
    if not run.command:
        raise UsageError("There is no command to run.", hint='For example "python train.py".')
    redaction.learn(run.env, run.command)
    launch.check_run(run)
    return run


@contextmanager
def _watched(options: RunOptions, subcommand: str = "") -> Iterator[Watcher]:
    """Show progress on standard error; of what is interrupted, say how it goes on."""
    from dynotune.measure.comparison import Interrupted
    from dynotune.report import Progress, console

    screen = console(stderr=True)
    screen.quiet = not options.get("progress", True)
    with Progress(screen) as watcher:
        try:
            yield watcher
        except Interrupted as stopped:
            stopped.add_note(f"What was measured is kept: dynotune {subcommand} --resume {stopped.folder}")
            raise
