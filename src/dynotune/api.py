"""dynotune as functions, for scripts and notebooks.

A function runs what the subcommand of its name runs, and returns the same document: a struct of `dynotune.schema`
that prints as the terminal's report and shows itself in a notebook. The command runs in processes of its own; nothing
here imports torch. Errors are those of `dynotune.schema.errors`. Progress goes to standard error.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack

import msgspec

from dynotune.schema import atomic, comparison, diagnosis, document, private, redaction, startup, study
from dynotune.schema import memory_account as memory_accounts
from dynotune.schema import trace_summary as trace_summaries
from dynotune.schema.errors import CommandFailed, DynotuneError, RecordError, UsageError, from_elsewhere, may_fail
from dynotune.schema.run import Caches, Objective, Phase, RunSpec

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dynotune.measure.live import Watcher
    from dynotune.schema.setting import Setting
    from dynotune.trace import Timeline

__all__ = [
    "CommandFailed",
    "Comparison",
    "Diagnosis",
    "DynotuneError",
    "Examination",
    "MemoryAccount",
    "RecordError",
    "Startup",
    "Study",
    "TraceDifference",
    "TraceSummary",
    "UsageError",
    "compare",
    "diagnose",
    "doctor",
    "load",
    "memory",
    "read_snapshot",
    "read_traces",
    "trace",
    "tune",
]

Command = str | Sequence[str | os.PathLike[str]]
"""A command line, or its words: "python train.py", ["python", "train.py"]."""
Settings = str | Iterable[str] | Mapping[str, object]
"""Settings of one arm: {"loader.num_workers": 4}, ["loader.num_workers=4"]. None as a value takes a variable away."""
Question = Literal["compare", "ranks"] | None

DOCTOR_S = 1.9
"""For the facts; importing and drawing take the rest of three seconds."""
# A snapshot that is made to harm can take fifty times its size in memory.
MAX_SNAPSHOT_BYTES = 1 << 30
# What a folder may hold, the first that is there.
IN_A_FOLDER = ("study.json", "comparison.json", "observation.json", "startup.json", "memory.json")
_FIELDS = {"steps": "window_steps", "warmup": "warmup_steps", "run_dir": "base"}


class RunOptions(TypedDict, total=False):
    """How a command is run: what the options of these names say on the command line.

    Args:
        cwd, env: the folder it runs in, and all of its variables; those of this process by default.
        timeout_s: most time for one run, seconds.
        run_dir: the folder for records.
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
    run_dir: str | os.PathLike[str]
    progress: bool


class _Shown:
    """What documents have in common here: they print as their report, and show it in a notebook."""

    __slots__ = ()

    def __repr__(self: Any) -> str:
        from dynotune.report import as_text

        return as_text(report_of(document.without_secrets(self)))

    def _repr_html_(self: Any) -> str:
        from dynotune.report import as_html

        return as_html(report_of(document.without_secrets(self)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON, as `--json` does. Raises UsageError: it cannot be written."""
        with may_fail(f"write {path}", "Name another file.", UsageError):
            atomic.write(Path(path), document.encode(self) + b"\n")


class Examination(_Shown, diagnosis.Examination, frozen=True, kw_only=True):
    """What machine and environment cost."""


class Diagnosis(_Shown, diagnosis.Diagnosis, frozen=True, kw_only=True):
    """Why a command is slow: `findings`, worst first."""


class Comparison(_Shown, comparison.Comparison, frozen=True, kw_only=True):
    """Two arms of a command: `verdict`, `speedup` and its interval `ci`."""


class Study(_Shown, study.Study, frozen=True, kw_only=True):
    """What was tried and proved: `recipe` holds the settings, `confirmed` their comparison."""


class MemoryAccount(_Shown, memory_accounts.MemoryAccount, frozen=True, kw_only=True):
    """Where device memory goes."""


class TraceSummary(_Shown, trace_summaries.TraceSummary, frozen=True, kw_only=True):
    """Where the time of a recorded trace went."""


class TraceDifference(_Shown, trace_summaries.TraceDifference, frozen=True, kw_only=True):
    """How a trace differs from an earlier one."""


class Startup(_Shown, startup.Startup, frozen=True, kw_only=True):
    """What the start of a command is made of."""


Document = Examination | Diagnosis | Comparison | Study | MemoryAccount | TraceSummary | TraceDifference | Startup
D = TypeVar("D", bound=Document)
_KINDS: dict[str, type[Document]] = {
    "study": Study,
    "comparison": Comparison,
    "observation": Diagnosis,
    "diagnosis": Diagnosis,
    "trace": TraceSummary,
    "trace_difference": TraceDifference,
    "memory": MemoryAccount,
    "examination": Examination,
    "startup": Startup,
}
"""By the noun in a file's schema. An observation is concluded from."""


def doctor(
    command: Command = (),
    *,
    python: str | None = None,
    baseline: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Examination:
    """Say what this machine, interpreter and environment cost, without running anything.

    Args:
        command, python: say which interpreter is meant; by default the one that the shell would start.
        baseline: an examination of another machine, as `save` wrote it, to compare with.

    Raises:
        UsageError: there is no such file or interpreter.
        RecordError: the file is no examination.
    """
    from dynotune import probe
    from dynotune.claims import all_claims
    from dynotune.doctor import ObservationView, differences, examine, seen_here
    from dynotune.schema.observation import Observation

    other = None if baseline is None else load(baseline)
    if not isinstance(other, Examination | None):
        raise UsageError(f"{baseline} is no examination.", hint="dynotune doctor --json FILE writes one.")
    env = os.environ if env is None else env
    asked = probe.interpreter_asked(python, _words(command), env)
    facts = probe.machine(env, python=asked, cwd=Path.cwd(), deadline_s=DOCTOR_S)
    seen = ObservationView(Observation(facts=facts))
    findings, unknown = examine(seen, "machine")
    return Examination(
        findings=findings,
        unknown=unknown,
        facts=facts,
        differences=None if other is None else differences(facts, other.facts),
        claims=list(seen_here(seen, all_claims(), [finding.id for finding in findings])),
    )


def diagnose(
    command: Command,
    *,
    settings: Settings = (),
    steps: int | None = None,
    isolate_loader: bool = False,
    roofline: bool = False,
    **run: Unpack[RunOptions],
) -> Diagnosis:
    """Say why a command is slow: it is timed, then a few of its steps are recorded.

    Args:
        settings: applied to the command.
        steps: timed; chosen from the noise by default.
        isolate_loader: also time the loader alone, then the step with one batch replayed.
        roofline: also measure how far a step is from what the device can do.

    Raises:
        UsageError: a setting or the command does not exist.
        CommandFailed: the command ended with an error.
        CannotRunHere: it has no torch, or makes too few steps.
    """
    from dynotune.diagnose import conclude, observed

    spec = _spec(command, run, settings=settings, steps=steps)
    with _watched(run) as watcher:
        observation, _, beside = observed(spec, watcher, isolate_loader=isolate_loader, roofline=roofline)
    return _as(Diagnosis, conclude(observation, **beside))


def compare(
    command: Command,
    candidate: Settings,
    *,
    baseline: Settings = (),
    steps: int | None = None,
    objective: Objective = "throughput",
    caches: Caches = "warm",
    pairs: int = comparison.MAX_PAIRS,
    margin: float = comparison.MARGIN,
    budget_s: float | None = None,
    precision: float | None = None,
    in_process: comparison.InProcess = "auto",
    **run: Unpack[RunOptions],
) -> Comparison:
    """Prove on a command whether settings help.

    Args:
        candidate, baseline: settings of the two arms; the baseline is the plain command by default.
        objective: what is compared.
        pairs: most pairs of runs.
        margin: ratios within this distance of 1 count as the same.
        budget_s: most time in all, seconds.
        precision: go on until the interval is as narrow as this share of the difference.
        in_process: compare within one run of the command: "auto", "only" or "never".

    Raises:
        UsageError: a setting or the command does not exist, or both arms are the same.
        CommandFailed: the command ended with an error, in either arm.
        CannotRunHere: what is asked for needs another machine or program.
    """
    from dynotune.measure.comparison import protocol
    from dynotune.measure.live import CompareRequest

    spec = _spec(command, {"seed": 0, **run}, settings=baseline, steps=steps, objective=objective, caches=caches)
    chosen = _settings(candidate)
    if chosen == spec.settings:
        raise UsageError("Both arms are the same.", hint='Name a setting, as {"loader.num_workers": 4}.')
    request = CompareRequest(
        run=spec,
        candidate=chosen,
        max_pairs=pairs,
        margin=margin,
        budget_s=budget_s,
        precision=precision,
        in_process=in_process,
    )
    with _watched(run, "compare") as watcher:
        found = protocol.compare(request, watcher)
    raise_if_failed(found, with_output=True)
    return _as(Comparison, found)


def tune(
    command: Command,
    *,
    budget_s: float = 900.0,
    steps: int | None = None,
    objective: Objective = "throughput",
    caches: Caches = "warm",
    allow: Iterable[str] = (),
    extra: Iterable[str] = (),
    exclude: Iterable[str] = (),
    values: Iterable[str] = (),
    margin: float = 0.01,
    output: str | os.PathLike[str] | None = None,
    **run: Unpack[RunOptions],
) -> Study:
    """Find what helps a command, and prove it.

    Args:
        budget_s: most time in all, seconds.
        allow: effects that settings may have besides speed: "numerics", "semantics".
        extra: knobs or settings to try whatever they may change, as `--try`.
        exclude: knobs or settings not to try.
        values: more values of knobs, as "loader.num_workers=2,4,8".
        output: where a recipe is written, if something was proved; None leaves it in the study's folder.

    Raises:
        UsageError: what is asked for does not exist or fit together.
        CommandFailed: the command as it is ended with an error.
        CannotRunHere: what is asked for needs another machine or program.
    """
    from dynotune.search import RECIPE, TuneRequest
    from dynotune.search import tune as studies

    spec = _spec(command, {"seed": 0, **run}, steps=steps, objective=objective, caches=caches)
    request = TuneRequest(
        run=spec, margin=margin, allow=list(allow), extra=list(extra), exclude=list(exclude), values=list(values)
    )  # fmt: skip
    with _watched(run, "tune") as watcher:
        folder, found = studies.tune(request, budget_s, watcher)
    if output is not None and found.recipe:
        with may_fail(f"write {output}", f"It is in {folder / RECIPE}.", UsageError):
            atomic.write(Path(output), (folder / RECIPE).read_bytes())
    return _as(Study, found)


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
        batches: two batches to run, as {"arg.batch": [8, 16]} for `{batch}` in the command; all others are predicted.
        predict: batches to name, of those.
        gpu: the GPU to fit on, as "H100-80GB"; the one here by default.

    Raises:
        UsageError: fewer than two batches, an unknown GPU, or as `diagnose`.
        CommandFailed, CannotRunHere: as `diagnose`.
    """
    from dynotune import knobs
    from dynotune.diagnose import live_memory

    chosen = [knobs.parse(f"{knob}={value}") for knob, named in (batches or {}).items() for value in named]
    if len(chosen) == 1 or (predict and not chosen):
        raise UsageError("Other batches are predicted from two.", hint='Give batches={"arg.batch": [8, 16]}.')
    spec = _spec(command, run, settings=settings)
    with _watched(run) as watcher:
        account, _ = live_memory(spec, watcher, batches=chosen, card=gpu, asked=list(predict))
    return _as(MemoryAccount, account)


def trace(
    command: Command,
    *,
    settings: Settings = (),
    steps: int | None = None,
    stacks: bool = False,
    shapes: bool = False,
    **run: Unpack[RunOptions],
) -> TraceSummary:
    """Record a few steady steps of a command, and say what their time went to.

    Args:
        steps: to record; up to 10 by default.
        stacks, shapes: with Python's functions, with the shapes of inputs; both make steps slower.

    Raises DynotuneError: as `diagnose`.
    """
    from dynotune.measure.live import RecordRequest, record

    request = RecordRequest(run=_spec(command, run, settings=settings), num_steps=steps, stacks=stacks, shapes=shapes)
    with _watched(run) as watcher:
        recording = record(request, watcher)
    found, _ = explained([timelines(recording.traces)], "ranks")
    assert isinstance(found, TraceSummary)
    return msgspec.structs.replace(found, notes=[*recording.notes, *found.notes])


def read_traces(
    *files: str | os.PathLike[str], question: Question = None, max_bytes: int | None = None
) -> TraceSummary | TraceDifference:
    """Say what recorded traces say: of one job, or of two how the second differs.

    Args:
        files: of torch.profiler or Nsight Systems, or a folder of them.
        question: take two as before and after ("compare"), or all as the ranks of one job ("ranks").
        max_bytes: most that a compressed file may unpack to.

    Raises:
        UsageError: a file is missing, or they are neither ranks nor two to compare.
        RecordError: a file is damaged.
    """
    from dynotune.trace import files_of

    arguments = files_of([Path(file) for file in files])
    with from_elsewhere(files[0] if files else "the trace"):
        return explained([timelines(paths, max_bytes) for paths in arguments], question)[0]


def read_snapshot(file: str | os.PathLike[str], *, max_bytes: int = MAX_SNAPSHOT_BYTES) -> MemoryAccount:
    """Say where memory goes in a snapshot of torch's allocator. Raises UsageError, RecordError: it is none."""
    from dynotune import memory
    from dynotune.trace import as_text, files_of, is_snapshot
    from dynotune.trace.snapshot import load_snapshot

    ((path, *rest),) = files_of([Path(file)])
    if rest or not is_snapshot(path):
        raise UsageError(f"{file} is no memory snapshot.", hint=f"dynotune trace {file} explains recorded traces.")
    with from_elsewhere(file):
        ranks = [memory.of_snapshot(lives) for lives in load_snapshot(path, limit_bytes=max_bytes).values()]
    notes = [] if ranks else ["the snapshot holds no memory and no history"]
    return MemoryAccount(file=as_text(path), ranks=ranks, notes=notes)


def load(path: str | os.PathLike[str]) -> Document:
    """Read what dynotune wrote before: a JSON file, or the folder of a study, a comparison or a diagnosis.

    Raises:
        UsageError: there is none, or it holds no answer.
        RecordError: it is damaged, or of another version.
    """
    file = file_of(Path(path))
    noun = noun_of(file)
    with from_elsewhere(file):
        if noun == "observation":
            from dynotune.diagnose import conclude, replayed

            return _as(Diagnosis, conclude(replayed(file)))
        return document.read(file, _KINDS[noun])


def file_of(path: Path) -> Path:
    """Return the file itself, or the one of a folder that has a report. Raises UsageError: there is none."""
    try:
        if not path.is_dir():
            if not path.exists():
                raise UsageError(f"There is no {path}.", hint="Name a folder of a study, or a JSON file of dynotune.")
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
    if noun not in _KINDS:
        found = f": it is {with_article(noun)}" if noun else ""
        raise UsageError(f"{file} holds no report{found}.", hint=f"It is made of one of these: {', '.join(_KINDS)}.")
    return noun


def with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun.replace('_', ' ')}"


def report_of(found: msgspec.Struct) -> RenderableType:
    """Return what the terminal shows of a document."""
    from dynotune import report
    from dynotune.doctor import all_rules
    from dynotune.report.startup import starts
    from dynotune.report.study import study_report
    from dynotune.report.trace import difference_report, trace_report

    def examination_report(found: diagnosis.Examination) -> RenderableType:
        return report.examination_report(found, costs={rule.id: rule.costs for rule in all_rules().values()})

    reports: dict[type[msgspec.Struct], Callable[[Any], RenderableType]] = {
        diagnosis.Examination: examination_report,
        diagnosis.Diagnosis: report.diagnosis_report,
        comparison.Comparison: report.comparison_table,
        study.Study: study_report,
        memory_accounts.MemoryAccount: report.memory_report,
        trace_summaries.TraceSummary: trace_report,
        trace_summaries.TraceDifference: difference_report,
        startup.Startup: starts.startup_report,
    }
    return next(shown for kind, shown in reports.items() if isinstance(found, kind))(found)


def timelines(
    paths: Sequence[Path], limit_bytes: int | None = None, progress: Callable[[int, int | None], None] | None = None
) -> list[Timeline]:
    """Read the processes in files of traces; `progress` is told bytes done, and how many there are."""
    from dataclasses import replace

    from dynotune.trace import as_text, readers

    found = readers.read_traces(paths, limit_bytes=limit_bytes, progress=progress)
    return [replace(timeline, source=as_text(Path(timeline.source))) for timeline in found]


def explained(
    arguments: Sequence[Sequence[Timeline]], question: Question
) -> tuple[TraceSummary | TraceDifference, str]:
    """Return what one trace says, or how two differ, and why they were taken so where that was not asked for."""
    from dynotune.trace import arrange, difference, summarise

    arrangement = arrange(arguments, question)
    summaries = [summarise(found) for found in arrangement.traces]
    if len(summaries) == 1:
        return _as(TraceSummary, summaries[0]), arrangement.why
    return _as(TraceDifference, difference(*summaries)), arrangement.why


def raise_if_failed(found: comparison.Comparison, *, with_output: bool) -> None:
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


def _words(command: Command) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else [os.fspath(word) for word in command]


def _settings(given: Settings) -> list[Setting]:
    from dynotune import knobs

    if isinstance(given, Mapping):
        given = [f"{knob}={_value(value)}" for knob, value in given.items()]
    return knobs.parse_all([given] if isinstance(given, str) else given)


def _value(value: object) -> str:
    from dynotune.schema.setting import UNSET

    return UNSET if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _spec(command: Command, options: Mapping[str, Any], *, settings: Settings = (), **fields: Any) -> RunSpec:
    """Return the run that the options describe. Raises UsageError: it cannot begin; TypeError: no such option."""
    from dynotune import launch

    if unknown := options.keys() - RunOptions.__annotations__.keys():
        raise TypeError(f"there is no option {', '.join(sorted(unknown))}; help(dynotune.api.RunOptions) lists them")
    asked = {name: value for name, value in {**options, **fields}.items() if value is not None and name != "progress"}
    for name in {"steps", "warmup"} & asked.keys():
        if not isinstance(asked[name], int) or asked[name] < 1:
            raise UsageError(f"{name}={asked[name]!r} is not a number of steps.", hint="Give a whole number above 0.")
    asked["cwd"] = os.fspath(Path(asked.get("cwd", ".")).absolute())
    asked["run_dir"] = os.fspath(Path(asked.get("run_dir") or private.state_folder() / "runs").expanduser().absolute())
    asked["env"] = dict(asked.get("env", os.environ))
    words = _words(command)
    try:
        plain = {_FIELDS.get(name, name): value for name, value in asked.items()}
        run = document.convert({"command": words, **plain}, RunSpec)
    except ValueError as error:
        raise UsageError(f"An option does not fit: {error}.", hint="See help(dynotune.api.RunOptions).") from None
    if not words:
        raise UsageError("There is no command to run.", hint='For example "python train.py".')
    redaction.learn(run.env, run.command)
    run = msgspec.structs.replace(run, settings=_settings(settings))
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


def _as(kind: type[D], found: msgspec.Struct) -> D:
    return kind(**{name: getattr(found, name) for name in found.__struct_fields__})
