"""Plan the window of measured runs from pilots: where the window begins, and how many steps it has.

A pilot is an untimed run that fills caches; the records of its steps show warm-up, step time, and epochs.
"""

import itertools
import math
import statistics
from collections.abc import Sequence

import msgspec

from dynotune.launch.records import EPOCH, Record
from dynotune.measure.live.compilation import compiled_s
from dynotune.measure.live.outcome import Outcome
from dynotune.measure.live.readiness import steady_steps
from dynotune.measure.live.window_length import MAX_WINDOW_S, MIN_WINDOW_STEPS, window_length
from dynotune.schema.errors import CannotRunHere, TooFewSteps
from dynotune.schema.events import CycleFound, ProcessExited, Window
from dynotune.schema.run import PERCENTILES, RunSpec

# The step is recognised some events into the run; the window begins after that in every run.
ROOM_STEPS = 2
MIN_STEPS = 8
# A process that the kernel preempts is away for a time slice of 3 to 4 ms, and returns to cold caches. In a
# window shorter than the first length, one such event is several per cent, and no reasonable number of pairs
# averages it out. Below the second length it still has a large effect.
LEAST_WINDOW_S = 0.1
SHORT_WINDOW_S = 0.5
# Steps for a 99th percentile: of 1000 steps, 10 lie beyond it, and its rank among them is known to about a
# third; of 200 steps, two lie beyond it. Do not wait for the first number if steps are slow. Below 100, it is
# the slowest step.
P99_STEPS = 1000
FEW_P99_STEPS = 200
LEAST_P99_STEPS = 100
# Energy samples are half a second apart, with linear interpolation between them.
ENERGY_WINDOW_S, LEAST_ENERGY_WINDOW_S = 3.0, 1.0


class WindowPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The window of every run of a comparison.

    Args:
        start_s: seconds from launch to the window, in the slowest planning run; `step_s`: seconds of the
            slowest step.
        steady: false if a pilot had not become steady.
        whole_epochs: number of the loader's epochs in the window; 0 if the window is shorter, or epochs are
            unknown.
        num_steps: 0 if a run ends with its first step and no steps are timed.
    """

    warmup_steps: int
    num_steps: int
    start_s: float
    step_s: float
    steady: bool = True
    whole_epochs: int = 0

    @property
    def window_s(self) -> float:
        return self.num_steps * self.step_s

    @property
    def run_s(self) -> float:
        return self.start_s + self.window_s


def plan_window(
    run: RunSpec,
    pilots: Sequence[Outcome],
    *,
    num_runs: int = 1,
    budget_s: float | None = None,
    num_telling: int | None = None,
    of_start: float = 0.0,
    num_ahead: int = 0,
    cold_kept: float = 1.0,
) -> WindowPlan:
    """Plan the window for all runs, from one pilot for each set of settings.

    Args:
        num_telling: number of first pilots from which noise, start time and so the window are estimated; None
            for all. The pilots of further candidates differ by more than noise, and start with cold caches.
        of_start: share of the shortest start time that the window must reach, if the budget allows it.
        num_ahead: batches that may be ready when an arm begins its steps: the rate of making batches shows
            only after these are used up, and only in as many further steps, since batches come in bursts. As
            far as time allows.
        cold_kept: share of the pilots' compile time that is planned for later runs.

    Raises:
        CannotRunHere: the program ends before anything can be timed.
        UsageError: the budget allows no window.
    """
    if run.objective == "time-to-first-step":
        return _first_step_only(pilots[:num_telling])
    records = [pilot.records[0] for pilot in pilots]
    found = [steady_steps(record) for record in records]
    ended = [
        len(r.steps) for r, pilot in zip(records, pilots, strict=True) if pilot.run.ended_by == "command"
    ]
    most = min(ended, default=None)
    warmup = _warmup(run, records, found, most, num_ahead)
    if most is not None:
        _refuse_too_few(
            run, most, warmup, is_cut_off=any(record.last(ProcessExited) is None for record in records)
        )
    start_s = max(_start_s(pilot, warmup, cold_kept) for pilot in pilots[:num_telling])
    steady = [steps_from(warmup, r) for r in records]
    # If windows may be shorter than an epoch and contain no epoch's begin, all steps together show more.
    step_s = max(*map(_timed_step_s, records), *(statistics.fmean(times) for times in steady if times))
    num_steps, whole_epochs = run.window_steps, 0
    if num_steps is None:
        usable = [[times] for times in steady[:num_telling] if len(times) >= MIN_WINDOW_STEPS]
        num_steps = MIN_WINDOW_STEPS
        if usable:
            num_steps = window_length(usable, start_s=start_s, budget_s=budget_s, num_runs=num_runs)
        longest_s = MAX_WINDOW_S if budget_s is None else min(MAX_WINDOW_S, budget_s / num_runs - start_s)
        fewest = fewest_steps(run, step_s)
        soonest_s = min(_start_s(pilot, warmup, cold_kept) for pilot in pilots)
        # A percentile gains from more steps, if they do not take too long.
        telling = P99_STEPS if run.objective in PERCENTILES else 0
        wanted = max(telling, num_ahead, math.ceil(of_start * soonest_s / step_s))
        num_steps = max(num_steps, fewest, min(wanted, int(longest_s / step_s)))
        whole_epochs = _whole_epochs(
            epoch_steps(records), num_steps, longest_s / step_s, most and most - warmup
        )
        num_steps = max(fewest, whole_epochs * (epoch_steps(records) or 0) or num_steps)
        if most is not None:
            num_steps = min(num_steps, most - warmup)
    return WindowPlan(
        warmup_steps=warmup,
        num_steps=num_steps,
        start_s=start_s,
        step_s=step_s,
        steady=None not in found or run.warmup_steps is not None,
        whole_epochs=whole_epochs,
    )


def steps_from(warmup: int, record: Record) -> list[float]:
    """Return times of the steps after warm-up, or of the last steps if few; no steps after a window's end.

    After a window's end, where the device was synchronised, the host runs ahead, so steps are unusual for a
    while.
    """
    window, times = record.last(Window), record.step_s
    if window and (end := window.first_step + window.num_steps) >= MIN_WINDOW_STEPS:
        times = times[:end]
    return times[max(0, min(warmup, len(times) - MIN_WINDOW_STEPS)) :]


def _timed_step_s(record: Record) -> float:
    """Return the step time (s) of a run with a window, which is synchronised at both ends; 0 without a
    window."""
    window = record.last(Window)
    return (window.end_s - window.begin_s) / window.num_steps if window and window.num_steps else 0.0


def _warmup(
    run: RunSpec, records: Sequence[Record], found: Sequence[int | None], most: int | None, num_ahead: int
) -> int:
    """Return the number of steps before the window; by the window's begin, every run must have found its
    step."""
    fixed = max(num_steps_to_find(record) for record in records)
    if run.warmup_steps is not None:
        return max(run.warmup_steps, fixed + 1)
    settled = [
        index if index is not None else len(r.steps) // 2 for index, r in zip(found, records, strict=True)
    ]
    warmup = max(*settled, fixed + ROOM_STEPS, 1)
    if most is not None and most - warmup < MIN_WINDOW_STEPS:
        warmup = min(warmup, max(fixed + ROOM_STEPS, most // 3))
    step_s = max(
        (statistics.fmean(times) for r in records if (times := steps_from(warmup, r))), default=math.inf
    )
    waited = max(warmup, min(num_ahead, warmup + math.ceil(MAX_WINDOW_S / step_s)))
    # If the command makes too few steps for that, all arms have the same head start.
    return waited if most is None or most - waited >= (run.window_steps or MIN_STEPS) else warmup


def _refuse_too_few(run: RunSpec, most: int, warmup: int, *, is_cut_off: bool) -> None:
    """Refuse a pilot with too few steps; `is_cut_off`: a process that runs steps did not report its end."""
    wanted = run.window_steps or MIN_STEPS
    if most - warmup >= wanted:
        return
    error = TooFewSteps(most, wanted, warmup, fewer="--warmup and --steps")
    if is_cut_off:
        error.hint += (
            " If it leaves its work in the background and ends, give the command that does the work."
        )
    raise error


def fewest_steps(run: RunSpec, step_s: float) -> int:
    """Return the smallest number of steps that the objective needs, if the program runs so many."""
    if run.objective in PERCENTILES:
        return FEW_P99_STEPS
    return math.ceil(ENERGY_WINDOW_S / step_s) if run.objective == "energy" else 0


def _first_step_only(pilots: Sequence[Outcome]) -> WindowPlan:
    """Plan runs that end with the first step, which is recognised a few steps later, with the cycle of
    events."""
    ends_s = []
    for pilot in pilots:
        record = pilot.records[0]
        found = record.steps[min(num_steps_to_find(record), len(record.steps) - 1)]
        ends_s.append(found.end_s - pilot.launched_s)
    step_s = max(statistics.median(pilot.records[0].step_s) for pilot in pilots)
    return WindowPlan(warmup_steps=0, num_steps=0, start_s=max(ends_s), step_s=step_s)


def refuse_too_short(run: RunSpec, window: WindowPlan) -> None:
    """Raise CannotRunHere if a window as short as this shows nothing."""
    would_be, instead = f"The window would be {window.num_steps} steps", "ask for more with --steps"
    if run.objective in PERCENTILES and window.num_steps < LEAST_P99_STEPS:
        few = f": of less than {LEAST_P99_STEPS} the 99th percentile is the slowest step, which says little."
        instead = "choose another --objective"
    elif run.objective == "energy" and window.window_s < LEAST_ENERGY_WINDOW_S:
        few = (
            f", {1000 * window.window_s:.0f} ms in all: too short for energy, which is sampled twice a "
            "second."
        )
    elif window.window_s < LEAST_WINDOW_S:
        few = (
            f", {1000 * window.window_s:.0f} ms in all: too short to tell. Below "
            f"{1000 * LEAST_WINDOW_S:.0f} ms the "
            "kernel's scheduling decides, not the settings."
        )
    else:
        return
    raise CannotRunHere(
        would_be + few, hint=f"Let the command run longer (more epochs, more data), or {instead}."
    )


def _whole_epochs(epoch: int | None, num_steps: int, longest: float, most: int | None) -> int:
    """Return the number of epochs in a window of about `num_steps` steps; 0 if not even one fits.

    Events that occur once an epoch (new workers, a short last batch) then occur equally often in every
    window.
    """
    if epoch is None or epoch > longest or (most is not None and epoch > most):
        return 0
    wanted = max(1, round(num_steps / epoch))
    return min(wanted, max(1, int(longest // epoch)), wanted if most is None else most // epoch)


def _start_s(pilot: Outcome, warmup: int, cold_kept: float) -> float:
    """Return the time (s) from launch to the begin of the window."""
    steps = pilot.records[0].steps[: max(1, warmup)]
    return steps[-1].end_s - pilot.launched_s - (1 - cold_kept) * compiled_s(pilot, len(steps))


def epoch_steps(records: Sequence[Record]) -> int | None:
    """Return the number of steps in an epoch, if the pilots saw whole epochs of equal length."""
    lengths = set()
    for record in records:
        begins = [index for index, step in enumerate(record.steps) if step.flags & EPOCH]
        lengths |= {after - before for before, after in itertools.pairwise(begins)}
    # An evaluation on the same data also begins the loader; then the lengths differ and the length is
    # unknown.
    return lengths.pop() if len(lengths) == 1 else None


def num_steps_to_find(record: Record) -> int:
    """Return the number of steps that had passed when the cycle was fixed."""
    cycle = record.last(CycleFound)
    return cycle.num_steps if cycle is not None else 0
