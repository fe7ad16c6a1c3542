"""Make one start of a command with caches cold, warm or off, and report the data that the start left in the
caches."""

from pathlib import Path

import msgspec

from dynotune.launch import last_lines
from dynotune.launch.caches import contents as caches
from dynotune.launch.records import COMPILED, Record
from dynotune.measure.comparison import objective
from dynotune.measure.live.launch_plan import LaunchPlan, launch_plan
from dynotune.measure.live.live_run import Enough, run_once
from dynotune.measure.live.outcome import NUM_LAST_LINES, Outcome, refuse_failed
from dynotune.measure.live.readiness import steady_steps
from dynotune.measure.live.ready_line import pattern
from dynotune.measure.startup.cache_folders import Places
from dynotune.measure.startup.phases import compiled, imports, phases, unknown
from dynotune.schema.caches import CacheName, Growth
from dynotune.schema.errors import CannotRunHere, CommandFailed
from dynotune.schema.events import TorchImported
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.run import Plan, Purpose, RunSpec
from dynotune.schema.startup import CacheState, Start
from dynotune.text import words

NOT_RECORDED = "no Python of this command recorded them"


def run_start(
    request: RunSpec,
    arm: CacheState,
    *,
    places: Places,
    clear: bool,
    folder: Path,
    purpose: Purpose,
    facts: Facts,
    limit_s: float,
    enough: Enough,
) -> tuple[Outcome, Start]:
    """Start the command in the existing `folder`, and end it after its first step (`enough`) or the awaited
    line.

    The start keeps the program's own random numbers and hashes: if compiled code depends on them, no start is
    warm.

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
            hint=(
                "A line counts once its line end is printed: print that too, or wait for the line before it."
            ),
        )
    seen = (
        f" It printed last: {lines[-1]}"
        if lines
        else " It printed nothing: output to a file may be held back."
    )
    raise CannotRunHere(
        f"No line matched {matched} in {limit_s:.0f} s.{seen}",
        hint="Give more with --timeout; or let it print the line at once (python -u, stdbuf -oL).",
    )


def _start(
    arm: CacheState, outcome: Outcome, added: list[Growth], held: dict[CacheName, int], *, watched_on: bool
) -> Start:
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
    """Return the process whose first step ended last; without steps, the first process that imported
    torch."""
    if outcome.run.ready_s is None:
        return max(outcome.records, key=lambda record: record.steps[0].end_s if record.steps else 0.0)
    with_torch = [record for record in outcome.all_records if record.last(TorchImported)]
    return next(iter(with_torch or outcome.all_records), None)


def _until_steady(record: Record) -> tuple[float | Unknown, float | None]:
    """Return the seconds from the first step's end to steady steps, and the excess of these steps over steady
    steps.

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
