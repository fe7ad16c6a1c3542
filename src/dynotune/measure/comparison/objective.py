"""Compute a run's value for each objective of a comparison. Lower values are better for all objectives."""

import itertools
import math
from collections.abc import Mapping, Sequence

from dynotune import probe
from dynotune.launch.records import Record
from dynotune.measure.comparison import drawn_blocks, summary
from dynotune.measure.live.outcome import Outcome
from dynotune.measure.live.window_plan import FEW_P99_STEPS
from dynotune.schema.comparison import ArmName, Unit, ValueUnit
from dynotune.schema.errors import CannotRunHere, StatisticsError
from dynotune.schema.events import Window
from dynotune.schema.facts import Unknown
from dynotune.schema.run import PERCENTILES, Objective, Run, RunSpec, TimedWindow

PERCENTILE = 0.99
NUM_BLOCKS = 10


def value(outcome: Outcome, objective: Objective, unit: Unit) -> float:
    """Return a run's value for the objective (above 0), in the unit that follows:

    - `throughput`: wall time of the window per sample or step, in seconds.
    - `latency-p99`: 99th percentile of the window's single steps, each synchronised, of the slowest rank;
        seconds.
    - `call-latency-p99`: 99th percentile of the window's calls of outermost modules, or of the function that
        the user named as the step, each until the device is done; of the slowest rank; seconds.
    - `time-to-first-step`: seconds from launch to the end of the slowest rank's first step, or to the awaited
        line.
    - `memory`: sum of the allocators' peaks over all devices of all ranks; without a device, the process
        tree's peak.
    - `energy`: joules that the used GPUs took in the window, per sample or step.

    Args:
        outcome: result of `run_settings`, with its records.
        unit: unit that the pilots could count.

    Raises StatisticsError: the value of this run is unknown.
    """
    match objective:
        case "throughput":
            found = summary.value_s(outcome, unit)
        case "latency-p99":
            found = max(_p99_s(_step_times_s(record, window)) for record, window in _timed(outcome))
        case "call-latency-p99":
            found = max(_p99_s(_call_times_s(record)) for record, _ in _timed(outcome))
        case "time-to-first-step":
            found = _time_to_first_step_s(outcome)
        case "memory":
            found = _peak_bytes(outcome)
        case "energy":
            found = _energy_j(outcome, unit)
    if not (math.isfinite(found) and found > 0):
        raise StatisticsError(f"The value of {outcome.run.id} is {found}: nothing can be compared with that.")
    return found


def interval(outcome: Outcome, objective: Objective, value: float) -> tuple[float, float]:
    """Return the 95% interval of a run's value over blocks of its window; the value itself where a run gives
    one number."""
    if objective not in ("throughput", *PERCENTILES):
        return value, value
    record, window = max(_timed(outcome), key=lambda row: row[1].end_s - row[1].begin_s)
    calls = objective == "call-latency-p99"
    times_s = _call_times_s(record) if calls else _step_times_s(record, window)
    blocks = [position * NUM_BLOCKS // len(times_s) for position in range(len(times_s))]
    if objective in PERCENTILES:
        return drawn_blocks.interval(
            times_s, blocks, lambda drawn: float(sorted(drawn)[_rank(len(drawn)) - 1])
        )
    mean_s = sum(times_s) / len(times_s)
    low, high = drawn_blocks.interval(times_s, blocks, lambda drawn: float(drawn.mean()))
    return value * low / mean_s, value * high / mean_s


def unit_of(objective: Objective, unit: Unit) -> ValueUnit:
    """Return the unit of a value."""
    match objective:
        case "throughput":
            return "s/sample" if unit == "sample" else "s/step"
        case "energy":
            return "J/sample" if unit == "sample" else "J/step"
        case "memory":
            return "bytes"
        case _:
            return "s"


def refuse_impossible(run: RunSpec) -> None:
    """Refuse, before anything runs, an objective that cannot be measured on this machine.

    Raises CannotRunHere: the objective needs hardware that this machine lacks.
    """
    if run.objective != "energy":
        return
    gpus = probe.nvml.visible_gpus(run.env)
    if isinstance(gpus, Unknown) or not gpus:
        why = gpus.reason if isinstance(gpus, Unknown) else "the command sees no GPU"
        raise CannotRunHere(
            f"The objective energy needs a GPU that answers NVML: {why}.",
            hint="The energy of CPUs is not measured. Choose another --objective, such as throughput.",
        )


def cautions(objective: Objective, window_steps: int) -> list[str]:
    """List cautions that follow from the objective itself, before anything is compared."""
    if objective not in PERCENTILES:
        return []
    beyond = window_steps - _rank(window_steps)
    unseen = (
        f"The 99th percentile of {window_steps} steps has {beyond} of them beyond it. Events rarer than "
        "one step in "
        f"{window_steps} occur in few runs or in none, and the interval does not include them."
    )
    if window_steps >= FEW_P99_STEPS:
        return [unseen]
    return [unseen, f"{window_steps} steps are few for a 99th percentile: give more with --steps."]


def void_reasons(objective: Objective, runs: Mapping[ArmName, Outcome]) -> list[str]:
    """Return the reasons of `summary.void_reasons`; other programs that take time do not change a run's
    memory."""
    return [] if objective == "memory" else summary.void_reasons(runs)


def notes(objective: Objective, outcomes: Sequence[Outcome]) -> list[str]:
    """List cautions that follow from the runs with this objective."""
    by_power = sum(outcome.run.energy_from == "power" for outcome in outcomes)
    if objective == "energy" and by_power:
        source = "summed up from its power, sampled twice a second"
        return [f"The GPU has no counter of energy: in {by_power} runs it was {source}."]
    if objective == "memory" and any(
        _is_sampled(outcome) for outcome in outcomes if outcome.run.purpose == "measured"
    ):
        return [
            "The memory of several processes together was sampled twice a second: a short peak may be missed."
        ]
    return []


def _is_sampled(outcome: Outcome) -> bool:
    tree_bytes = outcome.run.peak_tree_bytes
    if isinstance(tree_bytes, Unknown) or _device_bytes(outcome) is not None:
        return False
    return tree_bytes > _largest_process_bytes(outcome.run)


def _timed(outcome: Outcome) -> list[tuple[Record, TimedWindow]]:
    """Return the record and the window of each rank."""
    windows = {process.pid: process.window for process in outcome.run.processes if process.window is not None}
    found = [
        (record, windows[record.pid])
        for record in outcome.all_records or outcome.records
        if record.pid in windows
    ]
    if not found:
        raise StatisticsError(f"{outcome.run.id} has no window with records of its steps.")
    return found


def _p99_s(times_s: Sequence[float]) -> float:
    return sorted(times_s)[_rank(len(times_s)) - 1]


def _call_times_s(record: Record) -> list[float]:
    window = record.last(Window)
    if window is None or not window.call_s:
        raise StatisticsError(
            f"No call of a model was timed in {record.path}: name the function that serves a request with "
            "--step-function."
        )
    return window.call_s


def _step_times_s(record: Record, window: TimedWindow) -> list[float]:
    steps = record.steps[window.first_step : window.first_step + window.num_steps]
    if len(steps) < window.num_steps or not steps:
        raise StatisticsError(f"Of {window.num_steps} steps of the window {len(steps)} are in {record.path}.")
    # The time to prepare the window follows the previous step, and does not belong to the window's first
    # step.
    ends_s = [window.begin_s, *(step.end_s for step in steps)]
    return [end_s - begin_s for begin_s, end_s in itertools.pairwise(ends_s)]


def _rank(num: int) -> int:
    """Return the rank (from 1) of the 99th percentile among `num` ordered values, so that it is an observed
    value."""
    return math.ceil(round(PERCENTILE * num, 9))


def _time_to_first_step_s(outcome: Outcome) -> float:
    if outcome.run.ready_s is not None:
        return outcome.run.ready_s
    firsts = [record.steps[0].end_s for record in outcome.records if record.steps]
    if not firsts:
        raise StatisticsError(f"{outcome.run.id} made no step.")
    return max(firsts) - outcome.launched_s


def _peak_bytes(outcome: Outcome) -> float:
    on_devices = _device_bytes(outcome)
    if on_devices is not None:
        return on_devices
    run = outcome.run
    if isinstance(run.peak_tree_bytes, Unknown):
        raise StatisticsError(f"The memory of {run.id} is not known: {run.peak_tree_bytes.reason}.")
    # The kernel also knows the peak of each process between samples.
    return max(run.peak_tree_bytes, _largest_process_bytes(run))


def _largest_process_bytes(run: Run) -> int:
    return max((process.peak_rss_bytes or 0 for process in run.processes), default=0)


def _device_bytes(outcome: Outcome) -> float | None:
    """Sum the peaks of device memory (bytes) over the ranks; None if no device allocator was used."""
    ranks = [process for process in outcome.run.processes if process.window is not None]
    known = [rank.peak_device_bytes for rank in ranks if rank.peak_device_bytes]
    return float(sum(known)) if known else None


def _energy_j(outcome: Outcome, unit: Unit) -> float:
    run = outcome.run
    if isinstance(run.energy_j, Unknown):
        raise StatisticsError(f"The energy of {run.id} is not known: {run.energy_j.reason}.")
    return summary.measured(run).each(run.energy_j, unit)
