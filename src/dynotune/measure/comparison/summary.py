"""Compute from runs the values of a pair, the figures shown beside them, and the reasons that void a pair."""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from dynotune.measure.live.lane_order import most_in_a_lane
from dynotune.measure.live.outcome import Outcome
from dynotune.measure.live.window_plan import WindowPlan
from dynotune.schema import document
from dynotune.schema.comparison import ArmName, ArmSummary, Comparison, Unit
from dynotune.schema.errors import StatisticsError
from dynotune.schema.run import EnvironmentChange, Process, Readback, Run, TimedWindow
from dynotune.schema.study import BreakEven


class MeasuredRun(msgspec.Struct, frozen=True):
    """A run with the processes that timed its window (one per rank).

    A run that ended with its first step lists all ranks, or the process that ran the most steps.
    """

    run: Run
    ranks: list[Process]

    @property
    def windows(self) -> list[TimedWindow]:
        return [rank.window for rank in self.ranks if rank.window is not None]

    @property
    def wall_s(self) -> float:
        """Return the wall time (s) of the slowest rank's window."""
        return max(window.end_s - window.begin_s for window in self.windows)

    @property
    def num_steps(self) -> int:
        return max(window.num_steps for window in self.windows)

    @property
    def num_samples(self) -> int | None:
        """Sum the samples of all ranks; None if a rank could not count them.

        Of steps that draw from no loader, the inputs of the outermost module tell.
        """
        counts = [_num_samples(rank, rank.window) for rank in self.ranks if rank.window is not None]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) and sum(known) > 0 else None

    def each(self, total: float, unit: Unit) -> float:
        """Divide `total` by the number of samples, or by the number of steps.

        Raises StatisticsError: samples could be counted in the pilots but not in this run.
        """
        num = self.num_steps if unit == "step" else self.num_samples
        if num is None:
            raise StatisticsError(
                f"The samples of {self.run.id} could not be counted, those of the first runs could."
            )
        return total / num


def measured(run: Run) -> MeasuredRun:
    if timed := [process for process in run.processes if process.window is not None]:
        return MeasuredRun(run, timed)
    stepping = [process for process in run.processes if process.num_steps]
    ranks = [process for process in stepping if process.rank is not None]
    most = max((process.num_steps for process in stepping), default=0)
    return MeasuredRun(run, ranks if len(ranks) > 1 else [p for p in stepping if p.num_steps == most][:1])


def read_run(folder: Path) -> MeasuredRun:
    """Read a run from its folder. Raises RecordError: the run cannot be read."""
    return measured(document.read(folder / "run.json", Run))


def value_s(outcome: Outcome, unit: Unit) -> float:
    """Return the window's wall time per sample or step in seconds. Raises StatisticsError as `each` does."""
    found = measured(outcome.run)
    return found.each(found.wall_s, unit)


def _num_samples(rank: Process, window: TimedWindow) -> int | None:
    if window.num_samples is None and rank.call_samples is not None:
        return rank.call_samples * window.num_steps
    return window.num_samples


def unit(pilots: Sequence[Outcome]) -> Unit:
    """Return `sample` if both pilots could count samples in every steady step, else `step`.

    Without a loader, samples are what the leading dimension of the model's inputs shows: of sequences, that
    may be a length. It counts only if it differs between the pilots, whose steps then hold unequal work.
    """
    sizes = [[process.call_samples for process in measured(pilot.run).ranks] for pilot in pilots]
    if all(size and None not in size for size in sizes) and len(set(map(tuple, sizes))) > 1:
        return "sample"
    known = [
        all(step.num_samples is not None for step in record.steps[len(record.steps) // 2 :])
        for pilot in pilots
        for record in pilot.records
    ]
    return "sample" if known and all(known) else "step"


def step(outcome: Outcome) -> str:
    counted = [process for process in outcome.run.processes if process.step]
    return max(counted, key=lambda process: process.num_steps).step or "" if counted else ""


class Pace(NamedTuple):
    """A linear model of a run's time: from the launch, n steps take `start_s + n · step_s` seconds."""

    start_s: float
    step_s: float


def pace(run: MeasuredRun) -> Pace | None:
    """Return the pace of the rank whose window began last; None for a run without a window or a launch."""
    launched_s = run.run.launched_s
    if not run.windows or launched_s is None:
        return None
    window = max(run.windows, key=lambda window: window.begin_s)
    step_s = run.wall_s / run.num_steps
    return Pace(window.begin_s - launched_s - window.first_step * step_s, step_s)


def arm_summary(runs: Sequence[MeasuredRun], unit: Unit, values: Sequence[float] = ()) -> ArmSummary:
    """Return medians over the runs and over the objective's `values`; None if nothing was measured."""
    if not runs:
        return ArmSummary(value=_median(values))
    timed = [run for run in runs if run.windows]
    per_step = _median(run.wall_s / run.num_steps for run in timed)
    counted = [(run.wall_s, run.num_samples) for run in timed if run.num_samples]
    per_sample = (
        statistics.median(wall_s / num for wall_s, num in counted) if unit == "sample" and counted else None
    )
    return ArmSummary(
        value=_median(values),
        s_per_sample=per_sample,
        samples_per_s=1 / per_sample if per_sample else None,
        s_per_step=per_step,
        median_step_s=_median(rank.median_step_s for run in runs for rank in run.ranks),
        time_to_first_step_s=_median(rank.time_to_first_step_s for run in runs for rank in run.ranks),
        start_s=_median(found.start_s for run in runs if (found := pace(run)) is not None),
        loader_wait_share=_median(
            rank.window.wait_s / (rank.window.end_s - rank.window.begin_s)
            if rank.window is not None and rank.window.wait_s is not None and rank.draws
            else None
            for run in runs
            for rank in run.ranks
        ),
        peak_rss_bytes=_most(rank.peak_rss_bytes for run in runs for rank in run.ranks),
        peak_device_bytes=_most(rank.peak_device_bytes for run in runs for rank in run.ranks),
    )


def void_reasons(runs: Mapping[ArmName, Outcome]) -> list[str]:
    """List reasons why a run did not measure its settings, without the run's name: equal reasons count
    together."""
    reasons = [
        reason for outcome in runs.values() if outcome.outside is not None for reason in outcome.outside.void
    ]
    return list(dict.fromkeys(reasons))


def merged_readback(
    before: Mapping[str, Readback], outcome: Outcome, but: Collection[str] = ()
) -> dict[str, Readback]:
    """Merge a run's read-back into the earlier read-back, except `but`; once unverified, a knob stays
    unverified."""
    unverified = {knob for knob, readback in before.items() if readback.ok is None}
    told = {one.knob: one for one in outcome.run.readback if one.knob not in unverified.union(but)}
    return {**before, **told}


def changes_by_program(comparison: Comparison, outcome: Outcome) -> list[EnvironmentChange]:
    """List the program's changes to environment variables that settings set, each source line once."""
    names = {
        setting.knob.removeprefix("env.")
        for setting in [*comparison.candidate_settings, *comparison.run.settings]
        if setting.knob.startswith("env.")
    }
    known = {(change.name, change.file, change.line, change.value): change for change in comparison.set_by}
    for process in outcome.run.processes:
        for change in process.environment_changes:
            place = (change.name, change.file, change.line, change.value)
            # If a change was held back in one run, report it as held back, even if another run allowed it.
            if change.name in names and (place not in known or change.kept):
                known[place] = change
    return list(known.values())


def cost(comparison: Comparison, window: WindowPlan, num_lanes: int = 1) -> str:
    most_s = 2 * most_in_a_lane(comparison.max_pairs, num_lanes) * window.run_s
    each = "Each run ends with its first steps"
    if window.num_steps:
        epochs = f" ({window.whole_epochs} whole epochs)" if window.whole_epochs else ""
        each = f"Each run: {window.warmup_steps} warm-up steps, then {window.num_steps} timed steps{epochs}"
    return (
        f"{each}; about {window.run_s:.0f} s. Up to {comparison.max_pairs} pairs"
        f"{f' in {num_lanes} lanes' if num_lanes > 1 else ''}, {most_s / 60:.1f} min; "
        "it stops once the result is clear, and repeats pairs that do not count."
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def pays_off(recipe_runs: Sequence[MeasuredRun], baseline_runs: Sequence[MeasuredRun]) -> BreakEven:
    """Return the number of steps after which a setting with a longer start, such as compilation, has saved
    time.

    The estimate uses medians over the runs of baseline and candidate; a run's window gives its pace and start
    time.

    For runs with warm caches, the start counts with warm caches; the very first start took longer.

    Raises StatisticsError: baseline or candidate has no run with a known window and launch.
    """
    recipe, baseline = _pace(recipe_runs, "recipe"), _pace(baseline_runs, "baseline")
    later_s, saved_s = recipe.start_s - baseline.start_s, baseline.step_s - recipe.step_s
    after_steps = None
    if saved_s > 0:
        after_steps = 0 if later_s < 0 else math.floor(later_s / saved_s) + 1
    return BreakEven(start_s=recipe.start_s, baseline_start_s=baseline.start_s, after_steps=after_steps)


def _pace(runs: Sequence[MeasuredRun], arm: str) -> Pace:
    paces = [found for run in runs if (found := pace(run)) is not None]
    if not paces:
        raise StatisticsError(
            f"When the {arm} is ahead cannot be told: no run of it has a window and a launch."
        )
    return Pace(
        statistics.median(one.start_s for one in paces), statistics.median(one.step_s for one in paces)
    )
