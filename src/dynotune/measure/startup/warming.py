"""Run a command again and again until a run adds nothing to any compile cache."""

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dynotune.launch import new_run_folder
from dynotune.launch.caches import Place, contents
from dynotune.launch.process import fresh_folder
from dynotune.launch.records import Record
from dynotune.measure.live import cautions
from dynotune.measure.live.launch_plan import LaunchPlan, launch_plan
from dynotune.measure.live.live_run import run_once
from dynotune.measure.live.outcome import Outcome, refuse_failed
from dynotune.measure.live.readiness import Steadiness
from dynotune.measure.live.ready_line import ReadyOn, pattern
from dynotune.measure.live.request import Watcher
from dynotune.measure.live.reservation import machine_lock
from dynotune.schema.caches import TITLES, Cache, Growth, Warmed, WarmRun
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.run import LIMIT_S, Plan, RunSpec

MAX_RUNS = 5
# The driver deletes the oldest entries of a full cache.
NEARLY_FULL = 0.9


class WarmRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A command whose caches are to be filled.

    Args:
        run: run whose `env` has the variables of `--caches DIR`; with `run_to_end`, every run continues to
            its own end.
        max_runs: number of runs; the last of them must add nothing.
        variables: variables of `--caches DIR`, for the answer.
    """

    run: RunSpec
    max_runs: int = MAX_RUNS
    variables: dict[str, str] = {}


def warm(request: WarmRequest, watcher: Watcher) -> Warmed:
    """Run the command until a run adds nothing to any cache, at most `max_runs` times.

    A run continues until its steps are steady, a line matches `ready_pattern`, or it ends. Each run keeps the
    program's own random numbers and hashes, so that it compiles the same code as a start without dynotune.

    Raises:
        CommandFailed: the command ended with an error.
        CannotRunHere: the command took longer than its limit.
        UsageError: `ready_pattern` is not a regular expression.
    """
    if request.run.ready_pattern is not None:
        pattern(request.run.ready_pattern)
    found = contents.places(request.run.env, request.run.cwd)
    folder = new_run_folder(request.run.base)
    runs: list[WarmRun] = []
    _make_kept(found, request.run.cwd)
    with machine_lock(request.run, watcher):
        cautions.say_where(request.run, folder / "run", watcher)
        before = contents.snapshot(found)
        # All programs leave precompiled headers, so they say nothing about this one.
        empty = not any(files for name, files in before.items() if name != "headers")
        for number in range(1, request.max_runs + 1):
            left_s = runs[-1].wall_s * (request.max_runs - number + 1) if runs else None
            watcher.running(f"the command, run {number}", left_s=left_s)
            outcome, first_s = _run(request, found, fresh_folder(folder / f"run-{number}"), number)
            after = contents.snapshot(found)
            run = WarmRun(
                added=contents.growth(before, after),
                wall_s=outcome.run.wall_s or 0.0,
                time_to_first_step_s=first_s,
                ended_by=outcome.run.ended_by or "",
                folder=str(outcome.folder),
            )
            runs.append(run)
            first = "" if first_s is None else f", first step after {first_s:.1f} s"
            watcher.say(
                f"Run {number} added {f'{run.num_added} files' if run.num_added else 'nothing'}{first}."
            )
            before = after
            if not run.num_added:
                break
    states = contents.sizes(request.run.env, request.run.cwd)
    is_warm = not run.num_added
    return Warmed(
        command=request.run.command,
        end="not-warm" if not is_warm else "nothing" if empty and len(runs) == 1 else "warm",
        runs=runs,
        caches=states,
        why=[] if is_warm else _why(runs, states),
        notes=_notes(states, outcome),
        variables=request.variables,
    )


def _run(
    request: WarmRequest, found: Sequence[Place], folder: Path, number: int
) -> tuple[Outcome, float | None]:
    """Run the command once; return the seconds to the program's first step, or to the awaited line of
    output."""
    run = request.run
    plan = launch_plan(
        run,
        [],
        folder=folder,
        label=f"run {number}",
        purpose="pilot",
        facts={},
        keep=[place.path for place in found if isinstance(place.path, Path) and place.path.is_dir()],
        plan=Plan(note_events=True),
    )
    ready = None if run.ready_pattern is None else ReadyOn(pattern(run.ready_pattern), folder)
    steady = Steadiness(run)

    def enough(records: list[Record]) -> bool:
        # Look for the line also in a run that continues, to get the time of the line.
        is_there = steady(records) if ready is None else ready()
        return is_there and not run.run_to_end

    limit_s = run.timeout_s or LIMIT_S
    outcome = run_once(plan, folder=folder, limit_s=limit_s, enough=enough)
    # The line may have been its last output.
    is_ready = ready is not None and ready(ended=True)
    _refuse(outcome, plan, limit_s, run, is_ready=is_ready)
    if ready is not None and ready.ready_s is not None:
        return outcome, ready.ready_s - outcome.launched_s
    firsts = [record.steps[0].end_s - outcome.launched_s for record in outcome.records if record.steps]
    return outcome, max(firsts, default=None)


def _refuse(outcome: Outcome, launch: LaunchPlan, limit_s: float, spec: RunSpec, *, is_ready: bool) -> None:
    run, wanted = outcome.run, spec.ready_pattern
    printed = f"All that it printed is in {outcome.folder}"
    if run.ended_by == "window" or (run.ended_by == "command" and run.exit_code == 0):
        if wanted is not None and not is_ready:
            raise CannotRunHere(
                f"The command ended without printing a line that matches {wanted}.",
                hint=f"{printed}; --run-to-end waits for its end alone.",
            )
        return
    if run.ended_by == "timeout" and (spec.run_to_end or wanted is not None):
        waited = (
            f"beyond what matches {wanted}: it did not end the line"
            if is_ready
            else f"to print a line that matches {wanted}"
        )
        raise CannotRunHere(
            f"{launch.label.capitalize()} did not get {'to end' if spec.run_to_end else waited} in "
            f"{limit_s:.0f} s.",
            hint=f"{printed}. Give more time with --timeout.",
        )
    if run.ended_by == "timeout" and outcome.num_steps:
        # It never becomes steady, which does not matter here: by now it has compiled everything that it ever
        # will.
        return
    try:
        refuse_failed(outcome, launch, limit_s)
    except CannotRunHere as error:
        error.hint = (
            "For a program without steps, --ready-pattern REGEX names a line that it prints when it is "
            "ready, and "
            f"--run-to-end lets it run to its end. {error.hint}"
        )
        raise


def _make_kept(found: Sequence[Place], cwd: Path) -> None:
    """Create a cache in the working folder, since a copy-on-write view would discard a cache that a run
    creates."""
    for place in found:
        if (
            isinstance(place.path, Path)
            and place.path.resolve().is_relative_to(cwd.resolve())
            and not place.off
        ):
            with contextlib.suppress(OSError):
                place.path.mkdir(parents=True, exist_ok=True)


def _why(runs: Sequence[WarmRun], states: Sequence[Cache]) -> list[str]:
    lines = []
    by_name = {state.name: state for state in states}
    for growth in runs[-1].added:
        if growth.num_files:
            kinds = f" ({', '.join(growth.kinds)})" if growth.kinds else ""
            dropped = f" and {growth.num_removed} were dropped" if growth.num_removed else ""
            lines.append(
                f"{TITLES[growth.name]}: the last of {len(runs)} runs still added {growth.num_files} "
                f"files{kinds}"
                f"{dropped}: {_reason(growth, by_name[growth.name])}"
            )
    return lines


def _reason(growth: Growth, state: Cache) -> str:
    limit, size = state.limit_bytes, state.size_bytes
    if isinstance(limit, int) and isinstance(size, int) and size >= NEARLY_FULL * limit:
        return (
            f"it is full (CUDA_CACHE_MAXSIZE is {limit:,} bytes), so each start drops what the next one "
            "needs."
        )
    if growth.name == "cuda" and growth.num_removed:
        return "it may be full. CUDA_CACHE_MAXSIZE=4294967296 is the most that the driver takes."
    if growth.name == "inductor":
        return (
            "each start makes graphs that none before had: a random number, a time, a path or an order of "
            "a set in the "
            "compiled code, or inputs of new shapes. TORCH_LOGS=recompiles,+torch._inductor.codecache "
            "shows the keys."
        )
    return "each start compiles what none before had. A few more runs may do: --max-runs."


def _notes(states: Sequence[Cache], outcome: Outcome) -> list[str]:
    notes = []
    for state in states:
        title, again = TITLES[state.name], "The code that it would hold is compiled at every start."
        if state.off:
            # Headers are left out on purpose; a cache without a home folder is rarely used by this program.
            if state.name != "headers" and "HOME" not in state.off:
                notes.append(f"{title} keeps nothing: {state.off}. {again}")
            continue
        if state.writable is False:
            notes.append(f"{title} cannot be written: {state.path}. {again}")
        if state.lasts is not True and isinstance(state.num_files, int) and state.num_files:
            notes.append(f"{title} may not last: {state.storage}.")
    inside = [
        path
        for path in outcome.run.changed_files
        if re.search(r"fxgraph/|/triton/|ComputeCache|\.cubin$", path)
    ]
    if inside and outcome.run.sandbox == "overlay":
        notes.append(
            f"The command keeps a cache in its own folder ({inside[0]}), which was a copy: nothing of it "
            "was kept. "
            "Run with --no-sandbox, or name the folder in the environment."
        )
    return notes
