"""Make one start of a command with caches cold, warm or off, and report the data that the start left in the caches."""

import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from dynotune.launch import last_lines
from dynotune.launch.caches import contents as caches
from dynotune.launch.process import temporary_folder
from dynotune.launch.records import COMPILED, Record
from dynotune.measure.comparison import objective
from dynotune.measure.live.launch_plan import LaunchPlan, launch_plan
from dynotune.measure.live.live_run import Enough, run_once
from dynotune.measure.live.outcome import NUM_LAST_LINES, Outcome, refuse_failed
from dynotune.measure.live.readiness import steady_steps
from dynotune.measure.live.ready_line import pattern
from dynotune.schema import document
from dynotune.schema.caches import CacheName, Growth
from dynotune.schema.errors import CannotRunHere, CommandFailed, may_fail
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.run import Plan, Purpose, RunSpec
from dynotune.schema.startup import ARMS, PHASES, Arm, Compiled, Phase, Span, Start
from dynotune.text import words

NUM_IMPORTS = 5
COVERED: dict[str, tuple[Phase, ...]] = {
    "imports": ("imports_before_torch", "torch_import", "imports", "compiler_import"),
    "cuda": ("cuda_start",),
    "weights": ("weights", "to_device"),
    "model_build": ("model_build",),
    "compile": ("compile",),
}
"""Map each kind of data that the agent reports as invisible to the phases that are then unknown."""
LEAST_LAUNCHER_S = 0.02
"""The kernel records a process's start in hundredths of a second."""


def split(spans: Iterable[Span], begin_s: float, end_s: float) -> dict[Phase, float]:
    """Divide the time from `begin_s` to `end_s`: each instant belongs to the latest-begun span around the instant.

    Spans may nest, overlap, repeat, and extend beyond the ends; time outside all spans is `other`.

    Returns:
        Seconds by phase, always with `other`; their sum is `end_s - begin_s`.
    """
    waiting = sorted((span for span in spans if span.end_s > span.begin_s), key=lambda span: span.begin_s)
    edges = {edge for span in waiting for edge in (span.begin_s, span.end_s) if begin_s < edge < end_s}
    found: dict[Phase, float] = {"other": 0.0}
    around: list[Span] = []
    at_span = 0
    for at_s, until_s in itertools.pairwise(sorted({begin_s, end_s} | edges)):
        while at_span < len(waiting) and waiting[at_span].begin_s <= at_s:
            around.append(waiting[at_span])
            at_span += 1
        around = [span for span in around if span.end_s > at_s]
        # If spans begin together, the shorter one is inside.
        innermost = max(around, key=lambda span: (span.begin_s, -span.end_s), default=None)
        phase: Phase = "other" if innermost is None else innermost.phase
        found[phase] = found.get(phase, 0.0) + until_s - at_s
    return found


def phases(record: Record, launched_s: float, end_s: float) -> dict[Phase, float | Unknown]:
    """Return the phases from launch to `end_s`, of the process that ran the first step or printed the awaited line.

    Returns:
        All phases in order, in seconds; 0 if a phase was observed and did not occur. Known phases sum to `end_s -
        launched_s`.
    """
    begun_s = next((span.begin_s for span in _recorded(record) if span.phase == "agent"), None)
    if begun_s is None:
        return unknown("this process was not watched from its start")
    spans = _spans(record)
    shared = split([*spans, *_before(record, launched_s, begun_s), *_first_step(record, end_s)], launched_s, end_s)
    # The first step's wait for its batch is known in length but not in time; it is subtracted from the step's own time.
    wait_s = min(record.steps[0].wait_s, shared.get("first_step", 0.0)) if record.steps else 0.0
    if wait_s > 0:
        shared["first_batch"] = wait_s
        shared["first_step"] -= wait_s
    not_seen = _not_seen(record)
    return {phase: shared[phase] if phase in shared else not_seen.get(phase, 0.0) for phase in PHASES}


def unknown(reason: str) -> dict[Phase, float | Unknown]:
    """Return all phases as unknown, for a start of which nothing was recorded."""
    return dict.fromkeys(PHASES, Unknown(reason))


def imports(record: Record) -> list[tuple[str, float]]:
    """Return the longest imports, each with the imports that it contains."""
    took: dict[str, float] = {}
    for span in _recorded(record):
        if span.name:
            took[span.name] = took.get(span.name, 0.0) + span.end_s - span.begin_s
    return sorted(took.items(), key=lambda item: -item[1])[:NUM_IMPORTS]


def compiled(record: Record) -> Compiled | None:
    """Return the counts of torch.compile; None if nothing was compiled or torch does not count."""
    last = record.last("compiled") or {}
    counts, threads = last.get("counts"), last.get("compile_threads")
    if not isinstance(counts, dict):
        return None
    kinds = ("fxgraph_cache_hit", "fxgraph_cache_miss", "fxgraph_cache_bypass")
    found, missed, bypassed = (n if isinstance(n := counts.get(kind), int) else 0 for kind in kinds)
    num_threads = threads if isinstance(threads, int) else None
    return Compiled(num_found=found, num_missed=missed + bypassed, num_threads=num_threads)


def _recorded(record: Record) -> list[Span]:
    found = []
    for event in record.events.get("span", []):
        with contextlib.suppress(ValueError, KeyError):  # Skip a damaged event; the events around it stay valid.
            found.append(document.convert({key: event[key] for key in Span.__struct_fields__}, Span))
    return found


def _spans(record: Record) -> list[Span]:
    """Return spans, with imports before torch separated from those after it."""
    recorded = _recorded(record)
    torch_s = min((span.begin_s for span in recorded if span.phase == "torch_import"), default=None)
    found: list[Span] = []
    for span in recorded:
        if span.phase != "imports" or torch_s is None or span.begin_s >= torch_s:
            found.append(span)
            continue
        found.append(Span("imports_before_torch", span.begin_s, min(span.end_s, torch_s)))
        # The first import may itself import torch.
        found.append(Span("imports", torch_s, span.end_s))
    return found


def _before(record: Record, launched_s: float, begun_s: float) -> list[Span]:
    """Return the times before the agent's first line: before the process began, and in the interpreter."""
    started_s = (record.last("starting_process") or {}).get("started_s")
    if isinstance(started_s, int | float) and launched_s + LEAST_LAUNCHER_S < started_s < begun_s:
        return [Span("launcher", launched_s, started_s), Span("interpreter", started_s, begun_s)]
    return [Span("interpreter", launched_s, begun_s)]


def _first_step(record: Record, end_s: float) -> list[Span]:
    begin_s = record.begin_s
    if begin_s is None or not record.steps:
        return []
    step = str((record.last("cycle") or {}).get("step", ""))
    if step.startswith("call"):
        # A call is recorded at its end, and so is the begin of a step that begins with a call.
        roots = [float(event.get("at_s", begin_s)) for event in record.events.get("root", [])]
        begin_s = max((at_s for at_s in roots if at_s < begin_s), default=begin_s)
    return [Span("first_step", begin_s, end_s)] if begin_s < end_s else []


def _not_seen(record: Record) -> dict[Phase, Unknown]:
    told = record.last("starting")
    if told is None:
        why = Unknown("torch was not imported, or the start ended before")
        return dict.fromkeys(("cuda_start", "model_build", "weights", "to_device", "compile"), why)
    reasons = told.get("unknown", {})
    return {
        phase: Unknown(str(reason))
        for name, reason in (reasons.items() if isinstance(reasons, dict) else [])
        for phase in COVERED.get(name, ())
    }


OFF = {"CUDA_CACHE_DISABLE": "1", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "USE_PYTORCH_KERNEL_CACHE": "0"}
"""Nothing is read from a cache or kept in one. inductor then compiles Triton's kernels again too, in a fresh folder
each time. Kernels that a program gives Triton itself are cold because the folder is emptied. TRITON_ALWAYS_COMPILE is
not set: inductor's processes pass kernels on through Triton's cache, so everything would be compiled twice. Source:
torch/_inductor/compile_fx.py (with_fresh_cache_if_config), CUDA programming guide, cuda_environment_variables of torch.
"""


NOT_RECORDED = "no Python of this command recorded them"


class Places(NamedTuple):
    """Folders that starts with one state of the caches use.

    `temporary`: TMPDIR of these starts, because inductor's precompiled headers lie below it, whatever
    TORCHINDUCTOR_CACHE_DIR is. The path is short, because a socket's path has at most 108 characters.
    """

    caches: Path
    temporary: Path

    def environment(self, arm: Arm) -> dict[str, str]:
        self.temporary.mkdir(mode=0o700, exist_ok=True)
        named = {**caches.environment(self.caches), "TMPDIR": str(self.temporary)}
        return named | (OFF if arm == "off" else {})

    def clear(self) -> None:
        caches.clear(self.caches)
        caches.clear(self.temporary)


@contextlib.contextmanager
def all_places(folder: Path, env: Mapping[str, str]) -> Iterator[dict[Arm, Places]]:
    """Yield the folders for all states of the caches. Temporary folders are removed at the end; warm caches stay."""
    wanted = env.get("TMPDIR", "")
    base = Path(wanted if wanted and Path(wanted).is_dir() else tempfile.gettempdir())
    with contextlib.ExitStack() as stack:
        with may_fail("make a temporary folder", "Free some space there, or set TMPDIR."):
            temporary = stack.enter_context(temporary_folder(base))
        places = {arm: Places(folder / "caches" / arm, temporary / arm[0]) for arm in ARMS}
        for arm in ("cold", "off"):
            stack.callback(shutil.rmtree, places[arm].caches, ignore_errors=True)
        yield places


def run_start(
    request: RunSpec,
    arm: Arm,
    *,
    places: Places,
    clear: bool,
    folder: Path,
    purpose: Purpose,
    facts: Facts,
    limit_s: float,
    enough: Enough,
) -> tuple[Outcome, Start]:
    """Start the command in the existing `folder`, and end it after its first step (`enough`) or the awaited line.

    The start keeps the program's own random numbers and hashes: if compiled code depends on them, no start is warm.

    Args:
        places: folders of the caches, including those of other states.
        clear: whether to empty the caches before the start.

    Raises:
        CommandFailed: the command ended with an error before its first step, or without the awaited line.
        CannotRunHere: the command ran no step, or took longer than `limit_s`.
    """
    if clear:
        places.clear()
    plan = launch_plan(
        msgspec.structs.replace(request, seed=None),
        [],
        folder=folder,
        label=f"a start with caches {arm}",
        purpose=purpose,
        facts=facts,
        more_env=places.environment(arm),
        keep=[places.caches, places.temporary],
        plan=Plan(note_events=purpose == "pilot", sync_steps=True, startup=True),
        samples=True,
        run_to_end=False,
    )
    found = caches.places(plan.env, request.cwd)
    before = caches.snapshot(found)
    outcome = run_once(plan, folder=folder, limit_s=limit_s, enough=enough)
    _refuse_unready(outcome, plan, limit_s)
    after = caches.snapshot(found)
    held = {name: sum(files.values()) for name, files in after.items()}
    return outcome, _start(
        arm, outcome, caches.growth(before, after), held, watched_on=purpose == "pilot" and arm != "off"
    )


def _refuse_unready(outcome: Outcome, launch: LaunchPlan, limit_s: float) -> None:
    run = outcome.run
    if launch.ready_pattern is None:
        if run.ended_by == "window" or (run.exit_code == 0 and outcome.records):
            return
        try:
            refuse_failed(outcome, launch, limit_s)
        except CannotRunHere as error:
            if outcome.num_steps == 0:
                error.hint += " Or name a line of its output that ends the start, with --ready-pattern REGEX."
            raise
        return
    if run.ready_s is not None:
        return
    lines, matched = last_lines(outcome.folder, NUM_LAST_LINES), repr(launch.ready_pattern)
    if run.ended_by == "command":
        ending = f" {words.ending(run.exit_code)}" if run.exit_code else ""
        raise CommandFailed(
            f"The command ended{ending} in {launch.label} before a line matched {matched}.",
            hint=f"All that it printed is in {outcome.folder}.",
            command_exit_code=run.exit_code or 0,
            last_lines=lines,
        )
    if lines and pattern(launch.ready_pattern).search(lines[-1]):
        raise CannotRunHere(
            f"{matched} was printed, but its line was not ended in {limit_s:.0f} s: {lines[-1]}",
            hint="A line counts once its line end is printed: print that too, or wait for the line before it.",
        )
    seen = f" It printed last: {lines[-1]}" if lines else " It printed nothing: output to a file may be held back."
    raise CannotRunHere(
        f"No line matched {matched} in {limit_s:.0f} s.{seen}",
        hint="Give more with --timeout; or let it print the line at once (python -u, stdbuf -oL).",
    )


def _start(arm: Arm, outcome: Outcome, added: list[Growth], held: dict[CacheName, int], *, watched_on: bool) -> Start:
    value_s, record = objective.value(outcome, "time-to-first-step", "step"), _main(outcome)
    end_s = outcome.launched_s + value_s
    until_steady_s, late_s = _until_steady(record) if record and watched_on and record.steps else (None, None)
    return Start(
        arm=arm,
        run=outcome.run.id,
        value_s=value_s,
        phases=phases(record, outcome.launched_s, end_s) if record else unknown(NOT_RECORDED),
        added=added,
        held=held,
        imports=imports(record) if record else [],
        compiled=compiled(record) if record else None,
        until_steady_s=until_steady_s,
        late_s=late_s,
        at_exit=outcome.ready_at_exit,
    )


def _main(outcome: Outcome) -> Record | None:
    """Return the process whose first step ended last; without steps, the first process that imported torch."""
    if outcome.run.ready_s is None:
        return max(outcome.records, key=lambda record: record.steps[0].end_s if record.steps else 0.0)
    with_torch = [record for record in outcome.all_records if record.last("torch")]
    return next(iter(with_torch or outcome.all_records), None)


def _until_steady(record: Record) -> tuple[float | Unknown, float | None]:
    """Return the seconds from the first step's end to steady steps, and the excess of these steps over steady steps.

    The excess leaves out steps in which something was compiled.
    """
    num, times = steady_steps(record), record.step_s
    if num is None:
        return Unknown("its steps had not become steady when it was ended"), None
    until_s = record.steps[num - 1].end_s - record.steps[0].end_s if num > 1 else 0.0
    if num >= len(times):
        return until_s, None
    usual_s = sorted(times[num:])[(len(times) - num) // 2]
    early = [(took_s, step.flags) for took_s, step in zip(times[1:num], record.steps[1:num], strict=False)]
    return until_s, sum(max(0.0, took_s - usual_s) for took_s, flags in early if not flags & COMPILED)
