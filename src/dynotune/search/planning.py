"""Find and prove the largest value of a placeholder that holds limits, by runs that are kept on disk."""

from __future__ import annotations

import math
import time
from pathlib import Path

import msgspec

from dynotune.launch import new_run_folder
from dynotune.launch.process import origin, variants
from dynotune.launch.records import streams
from dynotune.measure.bench import Interrupted, Journal, ValueBench, preflight
from dynotune.measure.live import Watcher, facts_of, machine_lock, refuse_another_machine
from dynotune.schema import document, resumption
from dynotune.schema.errors import DynotuneError, UsageError
from dynotune.schema.facts import Unknown
from dynotune.schema.largest import MOST_VALUE, OF_FRAMES, WINDOW_S, LargestValue, Limit
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting
from dynotune.search import largest, serving_bounds
from dynotune.text import largest_words

FILE = "largest.json"
BUDGET_S = 300.0
LARGEST_MOST = 100_000
RATE_ERROR = 0.01
"""Part of the rate by which the clocks of sources differ, and by which a stream may be slower."""
FEWEST_FRAMES = 20
"""Fewest frames of a stream in a window: with fewer, those at its ends hide a stream that is starved."""
GROWTH_WINDOW_S = streams.FEWEST_BLOCKS * streams.BLOCK_S
"""Shortest window that shows whether latency grows."""
FRAMES_AT_ENDS = 2
"""Frames that a window may have more or less because of where it begins and ends."""


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A placeholder `{name}` whose largest value is to be found, and the limits that it is to hold.

    Args:
        fps: frames per second that each of the value's streams is to have; adds a limit.
        deadline_s: 99th percentile of a frame's latency in each stream; adds a limit, and one of its growth.
    """

    run: RunSpec
    name: str
    limits: list[Limit] = []
    fps: float | None = None
    deadline_s: float | None = None
    window_s: float = WINDOW_S
    least: int = 1
    most: int = MOST_VALUE

    def all_limits(self) -> list[Limit]:
        """Return the limits with those of streams.

        Raises UsageError: there is none, or two of one kind; a number is none that can be measured.
        """
        self._refuse_numbers()
        found = list(self.limits)
        if self.fps is not None:
            num_frames = self.fps * self.window_s
            missed = max(RATE_ERROR * num_frames, FRAMES_AT_ENDS)
            found.insert(0, Limit("frame-rate", (num_frames - missed) / self.window_s))
        if self.deadline_s is not None:
            found.append(Limit("frame-latency-p99", self.deadline_s))
            found.append(Limit("latency-growth", self.deadline_s))
        quantities = [limit.quantity for limit in found]
        if not found:
            raise UsageError(
                "There is no limit to hold.",
                hint="For streams --fps 25 and --deadline 40ms; else --limit latency-p99=40ms, memory=20GiB.",
            )
        if len(set(quantities)) < len(quantities):
            raise UsageError("A limit was given twice.", hint="Give each quantity one limit.")
        if self.fps is None and any(quantity in OF_FRAMES for quantity in quantities):
            raise UsageError("A deadline of frames also needs the frames' rate.", hint="Add --fps 25.")
        return found

    def _refuse_numbers(self) -> None:
        """Raise UsageError: a number is not above 0, or the window is too short for what it is to show."""
        numbers = {"The rate": self.fps, "The deadline": self.deadline_s, "The window": self.window_s}
        numbers |= {f"The limit of {limit.quantity}": limit.bound for limit in self.limits}
        for what, number in numbers.items():
            if number is not None and not 0 < number < math.inf:
                raise UsageError(f"{what} is {number:g}.", hint="It takes a number above 0.")
        if self.fps is not None and round(self.fps * self.window_s, 6) < FEWEST_FRAMES:
            raise UsageError(
                f"A window of {self.window_s:g} s holds {self.fps * self.window_s:.3g} frames of a stream: "
                "too few to tell one that is starved.",
                hint=f"Give --window {math.ceil(FEWEST_FRAMES / self.fps)}s or more.",
            )
        if self.deadline_s is not None and self.window_s < GROWTH_WINDOW_S:
            raise UsageError(
                f"A window of {self.window_s:g} s does not show whether latency grows, which a deadline "
                "needs.",
                hint=f"Give --window {GROWTH_WINDOW_S:g}s or more.",
            )


def plan(
    request: PlanRequest, watcher: Watcher, *, budget_s: float | None = None
) -> tuple[Path, LargestValue]:
    """Search the largest value; each run is on disk before the next one begins.

    Raises:
        UsageError: the command has no such placeholder, or the limits do not fit together; nothing has run.
        CommandFailed, CannotRunHere: the command shows nothing at the least value, or cannot run here.
        Interrupted: `resume` goes on.
    """
    run, limits = request.run, request.all_limits()
    if not 1 <= request.least <= request.most <= LARGEST_MOST:
        raise UsageError(
            f"{request.least} to {request.most} is not a range to search in.",
            hint=f"--least and --most take whole numbers from 1 to {LARGEST_MOST:,}.",
        )
    variants.variant(run.command, run.env, [Setting(f"arg.{request.name}", request.least)], run.cwd)
    facts = facts_of(run)
    measured = [limit.objective for limit in limits if limit.objective is not None] or [run.objective]
    wary = list(
        dict.fromkeys(
            caution
            for objective in measured
            for caution in preflight(
                msgspec.structs.replace(run, objective=objective), {"baseline": run.settings}, facts
            )
        )
    )
    folder = new_run_folder(run.base)
    for caution in wary:
        watcher.warn(caution)
    begun = LargestValue(
        id=folder.name,
        name=request.name,
        run=run.recorded,
        limits=limits,
        fps=request.fps,
        window_s=request.window_s,
        least=request.least,
        most=request.most,
        warnings=wary,
        facts=facts,
    )
    origin.mark(folder, begun)
    document.write(folder / FILE, begun)
    return folder, _attempt(folder, run, watcher, BUDGET_S if budget_s is None else budget_s)


def resume(
    folder: Path, now: RunSpec, watcher: Watcher, *, budget_s: float | None = None
) -> tuple[Path, LargestValue]:
    """Continue the search in `folder` after its last run; a finished one is only read.

    Raises RecordError, UsageError, CannotRunHere, Interrupted: as `measure.bench.protocol.resume`.
    """
    begun = document.read(folder / FILE, LargestValue)
    if begun.end not in (None, "budget"):
        return folder, begun
    origin.refuse_foreign(folder, begun, now)
    begun = resumption.completed(begun, now)
    run = begun.run.resumed(now)
    refuse_another_machine("plan", begun.facts, facts_of(run))
    return folder, _attempt(folder, run, watcher, BUDGET_S if budget_s is None else budget_s)


def _attempt(folder: Path, run: RunSpec, watcher: Watcher, budget_s: float) -> LargestValue:
    try:
        with machine_lock(run, watcher):
            journal = Journal(document.read(folder / FILE, LargestValue), folder / FILE)
            try:
                return _search(journal, run, folder, watcher, budget_s)
            except DynotuneError as error:
                if journal.document.runs:
                    again = f"dynotune plan {journal.document.name} --resume {folder}"
                    error.hint += f" The runs so far are kept; {again} goes on."
                raise
    except KeyboardInterrupt as stopped:
        raise Interrupted(folder) from stopped


def _search(
    journal: Journal[LargestValue], run: RunSpec, folder: Path, watcher: Watcher, budget_s: float
) -> LargestValue:
    """Run one value after another until the largest is proved or the time is over."""
    began_s, plan = time.monotonic(), journal.document
    bench = ValueBench(
        run, plan.name, plan.limits, fps=plan.fps, window_s=plan.window_s, folder=folder, facts=plan.facts
    )
    bench.has_run, num_before = any(one.measured for one in plan.runs), len(plan.runs)
    while True:
        plan = journal.document
        found = largest.search(
            plan.runs, plan.limits, least=plan.least, most=plan.most, predicted=_expected(plan)
        )
        if found.next_value is None:
            return _concluded(journal, found)
        left_s = budget_s - (time.monotonic() - began_s)
        if plan.runs and left_s < plan.runs[-1].wall_s:
            if len(plan.runs) == num_before:
                watcher.warn(
                    f"Nothing was run: a run took {plan.runs[-1].wall_s:.0f} s, and --budget is "
                    f"{budget_s:.0f} s. Give at least --budget {math.ceil(plan.runs[-1].wall_s) + 1}s."
                )
            return _out_of_time(journal)
        watcher.running(f"{{{plan.name}}} = {found.next_value}", left_s=left_s)
        made = bench.run(found.next_value, len(plan.runs))
        journal.update(runs=[*plan.runs, made], end=None)
        watcher.say(largest_words.run_in_words(made, journal.document))
        if len(journal.document.runs) <= 2:
            _predict(journal, watcher)


def _expected(plan: LargestValue) -> int | None:
    """Return the value to expect once two values have shown what a further stream takes.

    The more streams, the more a frame takes: threads contend for locks and caches. So the largest value that
    held so far tells, and the prediction that the user is told stays that of the first two runs.
    """
    held = [run for run in plan.runs if run.serving is not None and run.leans(plan.limits)]
    if len({run.value for run in plan.runs}) < 2 or not held:
        return None
    bounds = serving_bounds.predicted(held, plan.limits, plan.fps, plan.facts)
    known = [] if isinstance(bounds, Unknown) else [one.largest for one in bounds if one.largest is not None]
    return min(known, default=None)


def _predict(journal: Journal[LargestValue], watcher: Watcher) -> None:
    plan = journal.document
    bounds = serving_bounds.predicted(plan.runs, plan.limits, plan.fps, plan.facts)
    plan = journal.update(predicted=bounds)
    if len(plan.runs) == 2 and plan.prediction is not None:
        watcher.say(largest_words.prediction_in_words(plan))


def _concluded(journal: Journal[LargestValue], found: largest.Found) -> LargestValue:
    plan = journal.document
    at_refuted = [run for run in plan.runs if run.value == found.refuted]
    return journal.update(
        end=found.end,
        largest=found.largest,
        refuted=found.refuted,
        undecided=list(found.undecided),
        binds=serving_bounds.binding(at_refuted, plan.limits) if at_refuted else None,
    )


def _out_of_time(journal: Journal[LargestValue]) -> LargestValue:
    plan = journal.document
    value, refuted = largest.proved(plan.runs, plan.limits)
    at_refuted = [run for run in plan.runs if run.value == refuted]
    between = sorted(
        {run.value for run in plan.runs if (value or 0) < run.value < (refuted or plan.most + 1)}
    )
    return journal.update(
        end="budget",
        largest=value,
        refuted=refuted,
        undecided=between,
        binds=serving_bounds.binding(at_refuted, plan.limits) if at_refuted else None,
    )
