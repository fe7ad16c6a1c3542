"""dynotune as functions, for scripts and notebooks.

Each function does what the subcommand of the same name does, and returns the same document: a struct of
`dynotune.schema` that prints as the terminal's report, also in a notebook. The command runs in processes of
its own; nothing here imports torch. Arguments are the command line's options, times are seconds. Progress
goes to stderr.

Functions that run a command raise errors of `dynotune.schema.errors`: UsageError for a request that does not
fit, CommandFailed if the command ended with an error, CannotRunHere if the machine or the program lacks what
is needed.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

import msgspec

from dynotune.api.documents import (
    IN_A_FOLDER,
    MAX_SNAPSHOT_BYTES,
    Question,
    check_output,
    examination_of,
    explained,
    file_of,
    load,
    noun_of,
    read_snapshot,
    read_traces,
    replay,
    report_of,
    save,
    shown,
    timelines,
    with_article,
)
from dynotune.api.notebook import load_ipython_extension
from dynotune.schema import atomic, document, private, redaction, untrusted
from dynotune.schema.errors import CommandFailed, UsageError, may_fail
from dynotune.schema.home import expanded
from dynotune.schema.run import Caches, Objective, Phase, RunSpec

if TYPE_CHECKING:
    from dynotune.measure.live import Watcher
    from dynotune.schema.account import RunAccount
    from dynotune.schema.bisection import Bisection
    from dynotune.schema.comparison import Comparison, InProcess
    from dynotune.schema.diagnosis import Diagnosis, Examination, MemoryAccount
    from dynotune.schema.largest import LargestValue, Quantity
    from dynotune.schema.setting import Setting
    from dynotune.schema.study import Study
    from dynotune.schema.trace_summary import TraceSummary

__all__ = [
    "IN_A_FOLDER",
    "MAX_SNAPSHOT_BYTES",
    "Question",
    "account",
    "bisect",
    "check_output",
    "compare",
    "diagnose",
    "diagnosed",
    "doctor",
    "explained",
    "file_of",
    "load",
    "load_ipython_extension",
    "memory",
    "noun_of",
    "plan",
    "raise_if_failed",
    "read_snapshot",
    "read_traces",
    "replay",
    "report_of",
    "save",
    "shown",
    "timelines",
    "trace",
    "tune",
    "with_article",
]

Command = str | Sequence[str | os.PathLike[str]] | Callable[[], object]
"""A command line, or its words: "python train.py", ["python", "train.py"]. A function of a module is a
command that calls the function for ever, and each call of the function is a step."""
Settings = str | Iterable[str] | Mapping[str, object]
"""Settings of one arm: {"loader.num_workers": 4}, ["loader.num_workers=4"]. None removes a variable."""
S = TypeVar("S", bound=msgspec.Struct)

DOCTOR_S = 1.9  # time for the facts; imports and output take the rest of three seconds
_BOUNDS = {
    "nice": (0, 19),
    "seed": (0, 2**32 - 1),
    "margin": (0.0, 1.0),
    "precision": (0.01, math.inf),
    "budget_s": (1.0, math.inf),
    "timeout_s": (1e-3, math.inf),
}
_FIELDS = {"steps": "window_steps", "warmup": "warmup_steps", "run_dir": "base"}


class RunOptions(TypedDict, total=False):
    """Options of the run of a command.

    Args:
        cwd, env: the command's folder and all its environment variables; by default those of this process.
        progress: print progress on standard error; True by default.
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
    offline_trackers: bool
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
    """Report what machine and environment cost in speed, without running anything.

    Args:
        command, python: the interpreter to examine is `python`, or that of `command`; by default the shell's.
        baseline: another machine's examination, as `save` wrote it, to compare with.

    Raises UsageError, RecordError if the interpreter or the file does not exist, or the file holds no
    examination.
    """
    from dynotune import probe
    from dynotune.claims import all_claims
    from dynotune.doctor import ObservationView, differences, examine, seen_here
    from dynotune.launch.caches import unpacked_origin
    from dynotune.schema.diagnosis import Examination
    from dynotune.schema.observation import Observation

    other = None if baseline is None else examination_of(Path(baseline)).facts
    env = os.environ if env is None else env
    asked = probe.interpreter_asked(python, _words(command), env)
    facts = probe.machine(env, python=asked, cwd=Path.cwd(), deadline_s=DOCTOR_S)
    facts |= unpacked_origin.facts(facts, env, Path.cwd())
    seen = ObservationView(Observation(facts=facts))
    findings, unknown = examine(seen, "machine")
    differing = None if other is None else differences(facts, other)
    claims = list(seen_here(seen, all_claims(), [finding.id for finding in findings]))
    return shown(
        Examination(findings=findings, unknown=unknown, facts=facts, differences=differing, claims=claims)
    )


def diagnose(
    command: Command,
    *,
    settings: Settings = (),
    steps: int | None = None,
    isolate_loader: bool = False,
    delays: bool = True,
    **run: Unpack[RunOptions],
) -> Diagnosis:
    """Find out why a command is slow: time the command, then record a few of its steps.

    Args:
        isolate_loader: also time the loader alone, and then steps that use one batch again and again.
        delays: also delay parts of the steps for some seconds, to see which ones a step waits for.
    """
    spec = _spec(command, run, settings, window_steps=steps)
    with _watched(run) as watcher:
        return diagnosed(spec, watcher, isolate_loader=isolate_loader, delays=delays)[0]


def diagnosed(
    run: RunSpec, watcher: Watcher, *, isolate_loader: bool, delays: bool
) -> tuple[Diagnosis, Path]:
    """Do what `diagnose` does for a run that is specified already; also return the file of its
    observation."""
    from dynotune.diagnose import conclude, observed

    observation, path, beside = observed(run, watcher, isolate_loader=isolate_loader, delays=delays)
    return shown(conclude(observation, **beside)), path


def account(command: Command, *, settings: Settings = (), **run: Unpack[RunOptions]) -> RunAccount:
    """Run a command to its end, or for `timeout_s`, and show where the time of the whole run went, in rows
    that sum to it.

    What the command prints is kept in the run's folder. A command that fails is accounted for, too.
    """
    from dynotune.measure.account import accounted

    spec = _spec(command, run, settings)
    with _watched(run) as watcher:
        return shown(accounted(spec, watcher)[0])


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
    """Prove on a command whether the candidate's settings help, compared with the baseline's settings or with
    none.

    Args:
        margin: ratios within this distance of 1 count as the same.
        precision: go on until the confidence interval is as narrow as this share of the measured difference.
        in_process: "auto" compares in blocks within one run first, if the settings can be switched there, and
            then states the speed-up by fresh pairs; "only" gives blocks alone, "never" fresh pairs alone.
    """
    from dynotune.measure.bench import protocol
    from dynotune.measure.live import CompareRequest

    options: RunOptions = {"seed": 0, **run}
    spec = _spec(command, options, baseline, window_steps=steps, objective=objective, caches=caches)
    chosen = _settings(candidate)
    limits: dict[str, Any] = {
        "max_pairs": pairs,
        "margin": margin,
        "budget_s": budget_s,
        "precision": precision,
    }
    request = _checked(CompareRequest(run=spec, candidate=chosen, in_process=in_process, **limits))
    with _watched(run, "compare") as watcher:
        found = protocol.compare(request, watcher)
    raise_if_failed(found, with_output=True)
    return shown(found)


def bisect(
    command: Command,
    good: str,
    bad: str,
    *,
    steps: int | None = None,
    objective: Objective = "throughput",
    caches: Caches = "warm",
    pairs: int = 24,
    margin: float = 0.02,
    budget_s: float | None = None,
    **run: Unpack[RunOptions],
) -> Bisection:
    """Find which step between a good and a bad end made a command slow.

    Args:
        good, bad: "git.ref=REVISION", "package.NAME=VERSION", or a file of `doctor`, both of one kind.
        pairs: most pairs of each comparison.
        margin: smallest relative difference of the ends that is searched for.
        budget_s: seconds after which no further comparison begins.
    """
    from dynotune import bisect as search

    options: RunOptions = {"seed": 0, **run}
    spec = _spec(command, options, (), window_steps=steps, objective=objective, caches=caches)
    request = _checked(
        search.BisectRequest(run=spec, good=good, bad=bad, max_pairs=pairs, margin=margin, budget_s=budget_s)
    )
    with _watched(run, "bisect") as watcher:
        found = search.bisect(request, watcher)
    return shown(found)


def tune(
    command: Command,
    *,
    budget_s: float | None = None,
    steps: int | None = None,
    objective: Objective = "throughput",
    caches: Caches = "warm",
    exact: bool = False,
    allow: Sequence[str] = (),
    extra: Sequence[str] = (),
    exclude: Sequence[str] = (),
    values: Sequence[str] = (),
    margin: float = 0.01,
    output: str | os.PathLike[str] | None = None,
    **run: Unpack[RunOptions],
) -> Study:
    """Find the settings that help a command, and prove them.

    Args:
        budget_s: most seconds for everything; by default three minutes.
        exact: try no setting that rounds; without it, such settings are tried, and their results checked.
        allow: "semantics" also tries settings that may change what the program computes.
        extra: knobs or settings to try whatever their effects are.
        values: further values of knobs to try, as "loader.num_workers=2,4,8".
        output: file for the recipe, if something was proved; None keeps the recipe in the study's folder.
    """
    from dynotune.search import RECIPE, TuneRequest
    from dynotune.search import tune as studies

    options: RunOptions = {"seed": 0, **run}
    spec = _spec(command, options, window_steps=steps, objective=objective, caches=caches)
    words: dict[str, Any] = {
        "allow": list(allow),
        "exact": exact,
        "extra": list(extra),
        "exclude": list(exclude),
        "values": list(values),
    }
    request = _checked(TuneRequest(run=spec, margin=margin, **words))
    budget_s = studies.BUDGET_S if budget_s is None else budget_s
    if not budget_s > 0:
        raise UsageError(
            f"A budget of {budget_s:g} s lets nothing run.", hint="budget_s=180 is three minutes."
        )
    check_output(output, "output")
    with _watched(run, "tune") as watcher:
        folder, found = studies.tune(request, budget_s, watcher)
    if output is not None and found.recipe:
        with may_fail(f"write {output}", f"It is in {folder / RECIPE}.", UsageError):
            atomic.write(Path(output), untrusted.read(folder / RECIPE))
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
    """Show where a command's device memory goes, and what fits.

    Args:
        batches: two batch sizes to run, {"arg.batch": [8, 16]} for `{batch}` in the command; others are
            predicted.
        predict: batch sizes whose memory the answer lists.
        gpu: the GPU whose memory is the limit, as "H100-80GB"; by default this machine's GPU.
    """
    from dynotune import knobs
    from dynotune.diagnose import live_memory

    named = [(knob, value) for knob, values in (batches or {}).items() for value in values]
    is_right = all(
        isinstance(value, int) and value > 0 and knob.startswith(("arg.", "env.")) for knob, value in named
    )
    if not is_right or len(batches or {}) > 1 or len(set(named)) == 1 or (predict and not named):
        raise UsageError("Other batches are predicted from two.", hint='Give batches={"arg.batch": [8, 16]}.')
    chosen = [knobs.parse(f"{knob}={value}") for knob, value in dict.fromkeys(named)]
    spec = _spec(command, run, settings)
    with _watched(run) as watcher:
        return shown(live_memory(spec, watcher, batches=chosen, card=gpu, asked=list(predict))[0])


def plan(
    command: Command,
    name: str,
    *,
    fps: float | None = None,
    deadline_s: float | None = None,
    limits: Mapping[Quantity, float] | None = None,
    window_s: float | None = None,
    least: int = 1,
    most: int | None = None,
    budget_s: float | None = None,
    settings: Settings = (),
    **run: Unpack[RunOptions],
) -> LargestValue:
    """Find and prove the largest value of `{name}` in the command that holds limits.

    Args:
        fps: frames per second that each stream has to get, where the value is a number of streams.
        deadline_s: time within which 99% of the frames of each stream have to be done.
        limits: further limits: {"latency-p99": 0.04, "memory": 20 * 2**30}, in s, bytes, samples per second
            for "throughput", and J per sample for "energy".
        window_s: how long the frames of each run are timed; by default ten seconds.
        least, most: the values among which is searched; by default from 1 to 1024.
        budget_s: most seconds for everything; by default five minutes.
    """
    from dynotune.schema.largest import MOST_VALUE, WINDOW_S, Limit
    from dynotune.search import planning

    spec = _spec(command, {"seed": 0, **run}, settings)
    request = _checked(
        planning.PlanRequest(
            run=spec,
            name=name,
            limits=[Limit(quantity, bound) for quantity, bound in (limits or {}).items()],
            fps=fps,
            deadline_s=deadline_s,
            window_s=WINDOW_S if window_s is None else window_s,
            least=least,
            most=MOST_VALUE if most is None else most,
        )
    )
    with _watched(run, f"plan {name}") as watcher:
        return shown(planning.plan(request, watcher, budget_s=budget_s)[1])


def trace(
    command: Command,
    *,
    settings: Settings = (),
    steps: int | None = None,
    stacks: bool = False,
    shapes: bool = False,
    **run: Unpack[RunOptions],
) -> TraceSummary:
    """Record a few steady steps of a command, with Python functions or shapes if asked; report what took
    time."""
    from dynotune.measure.live import RecordRequest, record

    spec = _spec(command, run, settings)
    request = _checked(RecordRequest(run=spec, num_steps=steps, stacks=stacks, shapes=shapes))
    with _watched(run) as watcher:
        recording = record(request, watcher)
    found: Any = explained([timelines(recording.traces)], "ranks", notes=recording.cautions)[0]
    summary: TraceSummary = shown(found)
    return summary


def raise_if_failed(found: Comparison, *, with_output: bool) -> None:
    """Raise CommandFailed if the command failed in an arm. `with_output`: quote the last lines of its
    output."""
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
    if callable(command):
        module, name = _place_of(command)
        return [sys.executable, "-c", f"import {module} as module\nwhile True:\n    module.{name}()"]
    try:
        return shlex.split(command) if isinstance(command, str) else [os.fspath(word) for word in command]
    except ValueError as error:
        raise UsageError(
            f"{command!r} is no command line: {error}.", hint="Give a list of its words."
        ) from None


def _place_of(function: Callable[[], object]) -> tuple[str, str]:
    """Return the module and the name by which another process can import a function."""
    module, name = getattr(function, "__module__", "__main__"), getattr(function, "__qualname__", "")
    if module == "__main__" or not name.isidentifier():
        raise UsageError(
            f"{name or function!r} cannot be imported by another process.",
            hint="Put it at the top level of a module; or write a whole program in a cell under %%dynotune.",
        )
    return module, name


def _settings(given: Settings) -> list[Setting]:
    from dynotune import knobs
    from dynotune.schema.setting import UNSET

    if isinstance(given, Mapping):
        given = [f"{knob}={UNSET if value is None else value}" for knob, value in given.items()]
    return knobs.parse_all([given] if isinstance(given, str) else given)


def _checked(asked: S) -> S:
    """Return `spec`. Raises UsageError if a value has the wrong type, or a number of steps is not
    positive."""
    try:
        document.parse(document.encode(asked), type(asked))
    except ValueError as error:
        raise UsageError(
            f"An argument does not fit: {error}.", hint="help(dynotune.api) lists them."
        ) from None
    for name in ("window_steps", "warmup_steps", "num_steps"):
        if (value := getattr(asked, name, None)) is not None and value < 1:
            raise UsageError(f"{value} is not a number of steps.", hint="Give a whole number above 0.")
    for name, (least, most) in _BOUNDS.items():
        if (value := getattr(asked, name, None)) is not None and not least <= value <= most:
            raise UsageError(f"{name}={value} is not from {least:g} to {most:g}.", hint="Give another value.")
    return asked


def _spec(command: Command, options: RunOptions, settings: Settings = (), **fields: Any) -> RunSpec:
    """Return the RunSpec of the options. UsageError if the run cannot begin; TypeError if an option is
    unknown."""
    from dynotune import launch

    if unknown := options.keys() - RunOptions.__annotations__.keys():
        raise TypeError(f"there is no option {', '.join(sorted(unknown))}; see dynotune.api.RunOptions")
    named: dict[str, Any] = {
        _FIELDS.get(name, name): value for name, value in options.items() if name != "progress"
    }
    base = expanded(Path(options.get("run_dir") or private.state_folder() / "runs"))
    named |= fields | {"cwd": Path(options.get("cwd", ".")).absolute(), "base": base}
    named["env"] = dict(options.get("env", os.environ))
    if callable(command):
        named.setdefault("step_function", ":".join(_place_of(command)))
    run = _checked(RunSpec(command=_words(command), settings=_settings(settings), **named))
    if not run.command:
        raise UsageError("There is no command to run.", hint='For example "python train.py".')
    redaction.learn(run.env, run.command)
    launch.check_run(run)
    return run


@contextmanager
def _watched(options: RunOptions, subcommand: str = "") -> Iterator[Watcher]:
    """Show progress on standard error; if the work is interrupted, print how to continue it."""
    from dynotune.measure.bench import Interrupted
    from dynotune.report import Progress, console

    screen = console(stderr=True)
    screen.quiet = not options.get("progress", True)
    with Progress(screen) as watcher:
        try:
            yield watcher
        except Interrupted as stopped:
            stopped.add_note(f"What was measured is kept: dynotune {subcommand} --resume {stopped.folder}")
            raise
