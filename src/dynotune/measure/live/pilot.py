"""Make one untimed run each of baseline and candidate to warm caches, and plan the window from these pilots."""

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from dynotune.launch.records import ALLOCATED, COMPILED, EPOCH, Record
from dynotune.measure.live.outcome import STEP_FUNCTION, Outcome
from dynotune.measure.live.request import CompareRequest
from dynotune.measure.live.warmup import MAX_WINDOW_S, MIN_WINDOW_S, MIN_WINDOW_STEPS, steady_from, window_length
from dynotune.schema.comparison import TELLING_PAIRS
from dynotune.schema.errors import CannotRunHere, TooFewSteps, UsageError
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import batches_ahead

# A pilot goes on for some time after it is steady, because these steps show its noise.
STEADY_S = 2.0
STEADY_STEPS = 30
# Most programs run steps by then.
NO_STEP_S = 20.0
# A program that never becomes steady is measured all the same, with a caution.
RESTLESS_S = 120.0
# The step is recognised some events into the run; the window begins after that in every run.
ROOM_STEPS = 2
MIN_STEPS = 8
# A process that the kernel preempts is away for a time slice of 3 to 4 ms, and returns to cold caches. In a window
# shorter than the first length, one such event is several per cent, and no reasonable number of pairs averages it out.
# Below the second length it still has a large effect.
LEAST_WINDOW_S = 0.1
SHORT_WINDOW_S = 0.5
# Steps for a 99th percentile: of 1000 steps, 10 lie beyond it, and its rank among them is known to about a third; of
# 200 steps, two lie beyond it. Do not wait for the first number if steps are slow. Below 100, it is the slowest step.
P99_STEPS, FEW_P99_STEPS, LEAST_P99_STEPS = 1000, 200, 100
# Energy samples are half a second apart, with linear interpolation between them.
ENERGY_WINDOW_S, LEAST_ENERGY_WINDOW_S = 3.0, 1.0
# Share of a first run's extra time (with empty caches) that is planned for later runs: a compiled net started in 28 s
# and then in 12 s, most of it imports.
COLD_KEPT = 0.5


class WindowPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The window of every run of a comparison.

    Args:
        start_s: seconds from launch to the window, in the slowest planning run; `step_s`: seconds of the slowest step.
        steady: false if a pilot had not become steady.
        whole_epochs: number of the loader's epochs in the window; 0 if the window is shorter, or epochs are unknown.
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


# A run of known length may take longer than its pilot: another candidate, cold pages, a busy machine.
PATIENCE = 4.0
PATIENCE_S = 60.0
PILOT_LIMIT_S = 900.0


def limit_s(run: RunSpec, run_s: float | None) -> float:
    """Return the time limit of one run; `run_s`: its expected duration (s), None for a pilot."""
    if run.timeout_s is not None:
        return run.timeout_s
    if run_s is None:
        return PILOT_LIMIT_S
    # No pilot shows the duration of a program that runs to its own end.
    return math.inf if run.run_to_end else PATIENCE * run_s + PATIENCE_S


class Steadiness:
    """Test whether a pilot has run for long enough."""

    def __init__(self, run: RunSpec) -> None:
        self._asked: int | None = None
        if run.warmup_steps is not None and run.window_steps is not None:
            self._asked = run.warmup_steps + run.window_steps
        self._next_look = STEADY_STEPS

    def __call__(self, records: list[Record]) -> bool:
        if not records:
            return False
        record = records[0]
        if self._asked is not None:
            return len(record.steps) >= self._asked
        if len(record.steps) < self._next_look:
            return False
        # Each check takes time in proportion to the number of steps.
        self._next_look = len(record.steps) + 1 + len(record.steps) // 8
        steps = record.step_s
        steady = steady_steps(record)
        if steady is None:
            return sum(steps) > RESTLESS_S
        return len(steps) - steady >= STEADY_STEPS and sum(steps[steady:]) >= STEADY_S


class UntilStep:
    """Wait for `enough` steps; if no step comes for a while, explain once how to name a step.

    `compiles`: tells whether the program has begun to compile, which may take minutes before the first step.
    """

    def __init__(
        self,
        enough: Callable[[list[Record]], bool],
        say: Callable[[str], None],
        compiles: Callable[[], bool] = lambda: False,
    ) -> None:
        self._enough, self._say, self._compiles = enough, say, compiles
        self._due_s = time.monotonic() + NO_STEP_S

    def __call__(self, records: list[Record]) -> bool:
        if records:
            self._due_s = math.inf
        elif time.monotonic() > self._due_s:
            self._due_s = math.inf
            self._say(
                "The program compiles (torch.compile), which may take minutes before its first step."
                if self._compiles()
                else f"No step in the first {NO_STEP_S:.0f} s: the command may still be starting. If it is at its work "
                "by now, its batches, calls of modules and updates show no cycle: stop it, and name or check the "
                f"function whose return ends a step: {STEP_FUNCTION}."
            )
        return self._enough(records)


class FirstStep:
    """Test whether a run has ended its first step, which is the step found by the pilot of the same settings.

    Cycles before the training (inspecting data, evaluating) look like steps at first. So the run continues until the
    pilot's step is found, or as many steps as in the pilot have run.
    """

    def __init__(self, pilot: Outcome) -> None:
        self._num_steps = max((len(record.steps) for record in pilot.records), default=1)
        self._steps = {(record.last("cycle") or {}).get("step") for record in pilot.records}

    def __call__(self, records: list[Record]) -> bool:
        for record in records:
            found = (record.last("cycle") or {}).get("step") in self._steps
            if not record.steps or not (found or len(record.steps) >= self._num_steps):
                return False
        return bool(records)


def steady_steps(record: Record) -> int | None:
    """Return the number of steps before the run was steady; None while unknown."""
    flags = [step.flags for step in record.steps]
    events = [index for index, flag in enumerate(flags) if flag & COMPILED]
    allocating = [index for index, flag in enumerate(flags) if flag & ALLOCATED]
    # Repeated allocation (a cache emptied in the loop) belongs to the program's normal work, not to its warm-up.
    if sum(index >= len(flags) // 2 for index in allocating) <= len(flags) // 20:
        events += allocating
    return steady_from(record.step_s, events=events)


def lane_of(pair: int, num_lanes: int) -> int:
    """Return the index (from 0) of the lane that runs the pair; both pairs of a block run in the same lane."""
    return pair // 2 % num_lanes


def most_in_a_lane(num_pairs: int, num_lanes: int) -> int:
    """Return the first lane's number of pairs, which is the largest number and so determines the total time."""
    return sum(lane_of(pair, num_lanes) == 0 for pair in range(num_pairs))


def plan(
    request: CompareRequest,
    pilots: Sequence[Outcome],
    left_s: float | None,
    *,
    cold_kept: float | None = None,
    num_lanes: int = 1,
) -> tuple[WindowPlan, int]:
    """Plan the window and the number of pairs: as requested, or the largest even number that the time left allows.

    Fewer pairs with a full window are preferred to many pairs with a short one. An odd number is the last resort.

    `cold_kept`: as for `plan_window`; None for the usual value with the caches of `request`.

    Raises:
        CannotRunHere: as for `plan_window`, or the window is too short to show a difference.
        UsageError: the time left is too short for a comparison that could find a difference.
    """
    cold_kept = (1.0 if request.run.caches == "cold" else COLD_KEPT) if cold_kept is None else cold_kept
    ahead = batches_ahead([*request.run.settings, *request.candidate])
    planned = functools.partial(plan_window, request.run, pilots, num_ahead=ahead, cold_kept=cold_kept)
    whole = planned()
    if request.run.window_steps is None and whole.num_steps:  # explicitly requested windows may be short
        refuse_too_short(request.run, whole)
    if left_s is None:
        return whole, request.max_pairs
    fewest = min(TELLING_PAIRS, request.max_pairs)
    numbers = [n for n in range(request.max_pairs, fewest - 1, -1) if n % 2 == 0 or n == request.max_pairs]
    enough = min(whole.num_steps, math.ceil(MIN_WINDOW_S / whole.step_s))
    few = min(whole.num_steps, math.ceil(LEAST_WINDOW_S / whole.step_s))
    floor = min(whole.num_steps, max(fewest_steps(request.run, whole.step_s), ahead))
    leasts = (max(enough, floor), max(few, floor))
    for least, num_pairs in [(least, num) for some in (numbers, [fewest]) for least in leasts for num in some]:
        try:
            num_runs = 2 * most_in_a_lane(num_pairs, num_lanes)
            window = planned(num_runs=num_runs, budget_s=left_s)
        except UsageError:
            continue
        if window.num_steps >= least and num_runs * window.run_s <= left_s:
            return window, num_pairs
    shortest = min(whole.num_steps, max(few, floor, MIN_WINDOW_STEPS) if request.run.window_steps is None else math.inf)
    run_s = whole.start_s + shortest * whole.step_s
    raise UsageError(
        f"An answer needs {fewest} pairs, and they do not fit into the {max(0.0, left_s):.0f} s left of the budget.",
        hint=f"A pair takes at least {2 * run_s:.0f} s here: give at least "
        f"--budget {int(2 * most_in_a_lane(fewest, num_lanes) * run_s + request.budget_s - left_s) + 1}s."
        if request.budget_s is not None
        else "",
    )


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
        num_telling: number of first pilots from which noise, start time and so the window are estimated; None for all.
            The pilots of further candidates differ by more than noise, and start with cold caches.
        of_start: share of the shortest start time that the window must reach, if the budget allows it.
        num_ahead: batches that may be ready when an arm begins its steps: the rate of making batches shows only after
            these are used up, and only in as many further steps, since batches come in bursts. As far as time allows.
        cold_kept: share of the pilots' compile time that is planned for later runs.

    Raises:
        CannotRunHere: the program ends before anything can be timed.
        UsageError: the budget allows no window.
    """
    if run.objective == "time-to-first-step":
        return _first_step_only(pilots[:num_telling])
    records = [pilot.records[0] for pilot in pilots]
    found = [steady_steps(record) for record in records]
    ended = [len(r.steps) for r, pilot in zip(records, pilots, strict=True) if pilot.run.ended_by == "command"]
    most = min(ended, default=None)
    warmup = _warmup(run, records, found, most, num_ahead)
    if most is not None:
        _refuse_too_few(run, most, warmup, is_cut_off=any(record.last("exit") is None for record in records))
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
        telling = P99_STEPS if run.objective == "latency-p99" else 0
        wanted = max(telling, num_ahead, math.ceil(of_start * soonest_s / step_s))
        num_steps = max(num_steps, fewest, min(wanted, int(longest_s / step_s)))
        whole_epochs = _whole_epochs(epoch_steps(records), num_steps, longest_s / step_s, most and most - warmup)
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

    After a window's end, where the device was synchronised, the host runs ahead, so steps are unusual for a while.
    """
    window, times = record.last("window"), record.step_s
    if window and (end := window["first_step"] + window["num_steps"]) >= MIN_WINDOW_STEPS:
        times = times[:end]
    return times[max(0, min(warmup, len(times) - MIN_WINDOW_STEPS)) :]


def _timed_step_s(record: Record) -> float:
    """Return the step time (s) of a run with a window, which is synchronised at both ends; 0 without a window."""
    window = record.last("window")
    return (window["end_s"] - window["begin_s"]) / window["num_steps"] if window and window["num_steps"] else 0.0


def _warmup(
    run: RunSpec, records: Sequence[Record], found: Sequence[int | None], most: int | None, num_ahead: int
) -> int:
    """Return the number of steps before the window; by the window's begin, every run must have found its step."""
    fixed = max(num_steps_to_find(record) for record in records)
    if run.warmup_steps is not None:
        return max(run.warmup_steps, fixed + 1)
    settled = [index if index is not None else len(r.steps) // 2 for index, r in zip(found, records, strict=True)]
    warmup = max(*settled, fixed + ROOM_STEPS, 1)
    if most is not None and most - warmup < MIN_WINDOW_STEPS:
        warmup = min(warmup, max(fixed + ROOM_STEPS, most // 3))
    step_s = max((statistics.fmean(times) for r in records if (times := steps_from(warmup, r))), default=math.inf)
    waited = max(warmup, min(num_ahead, warmup + math.ceil(MAX_WINDOW_S / step_s)))
    # If the command makes too few steps for that, all arms have the same head start.
    return waited if most is None or most - waited >= (run.window_steps or MIN_STEPS) else warmup


def _refuse_too_few(run: RunSpec, most: int, warmup: int, *, is_cut_off: bool) -> None:
    """Refuse a pilot with too few steps; `is_cut_off`: a process that runs steps did not report its end."""
    wanted = run.window_steps or MIN_STEPS
    if most - warmup >= wanted:
        return
    error = TooFewSteps(most, wanted, warmup, fewer="--warmup and --steps")
    error.hint += is_cut_off * " If it leaves its work in the background and ends, give the command that does the work."
    raise error


def fewest_steps(run: RunSpec, step_s: float) -> int:
    """Return the smallest number of steps that the objective needs, if the program runs so many."""
    if run.objective == "latency-p99":
        return FEW_P99_STEPS
    return math.ceil(ENERGY_WINDOW_S / step_s) if run.objective == "energy" else 0


def _first_step_only(pilots: Sequence[Outcome]) -> WindowPlan:
    """Plan runs that end with the first step, which is recognised a few steps later, with the cycle of events."""
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
    if run.objective == "latency-p99" and window.num_steps < LEAST_P99_STEPS:
        few = f": of less than {LEAST_P99_STEPS} the 99th percentile is the slowest step, which says little."
        instead = "choose another --objective"
    elif run.objective == "energy" and window.window_s < LEAST_ENERGY_WINDOW_S:
        few = f", {1000 * window.window_s:.0f} ms in all: too short for energy, which is sampled twice a second."
    elif window.window_s < LEAST_WINDOW_S:
        few = (
            f", {1000 * window.window_s:.0f} ms in all: too short to tell. Below {1000 * LEAST_WINDOW_S:.0f} ms the "
            "kernel's scheduling decides, not the settings."
        )
    else:
        return
    raise CannotRunHere(would_be + few, hint=f"Let the command run longer (more epochs, more data), or {instead}.")


def _whole_epochs(epoch: int | None, num_steps: int, longest: float, most: int | None) -> int:
    """Return the number of epochs in a window of about `num_steps` steps; 0 if not even one fits.

    Events that occur once an epoch (new workers, a short last batch) then occur equally often in every window.
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
    # An evaluation on the same data also begins the loader; then the lengths differ and the length is unknown.
    return lengths.pop() if len(lengths) == 1 else None


def num_steps_to_find(record: Record) -> int:
    """Return the number of steps that had passed when the cycle was fixed."""
    return int((record.last("cycle") or {}).get("num_steps", 0))


def found_warm(pilot: Outcome, other: Outcome, *, is_first: bool) -> Outcome | None:
    """Return the best case of a later run with caches filled by the pilot; None if nothing changes.

    Compile time before the first step is not visible, nor is the very first run's reading from a cold disk. The sum of
    compile time and reading is at most the time by which the pilot reached that step later than the `other` pilot.
    """
    compiling, later_s = _compiling(pilot.records[0]), 0.0
    if is_first or 0 in compiling:
        later_s = max(0.0, _before_steps_s(pilot) - _before_steps_s(other))
    return replace(pilot, launched_s=pilot.launched_s + later_s) if compiling or later_s > 0 else None


def _before_steps_s(pilot: Outcome) -> float:
    record = pilot.records[0]
    return record.steps[0].end_s - record.step_s[0] - pilot.launched_s


def compiled_s(pilot: Outcome, num_steps: int | None = None) -> float:
    """Return by how many seconds compiling lengthened the pilot's first `num_steps` steps (None: all steps)."""
    record = pilot.records[0]
    compiling = [record.step_s[index] for index in _compiling(record) if num_steps is None or index < num_steps]
    usual_s = statistics.median(record.step_s) if compiling else 0.0
    return math.fsum(max(0.0, step_s - usual_s) for step_s in compiling)


def compiles(pilot: Outcome) -> bool:
    """Tell whether the pilot compiled anything, as far as torch reports it."""
    return bool(_compiling(pilot.records[0]))


def _compiling(record: Record) -> list[int]:
    """List the steps that compiled something, and any early steps that were not checked for compiling."""
    flagged = [index for index, step in enumerate(record.steps) if step.flags & COMPILED]
    asked_from = min((int(cycle.get("num_steps", 0)) for cycle in record.events.get("cycle", ())), default=0)
    return [*(range(flagged[0]) if flagged and flagged[0] <= asked_from else ()), *flagged]
