"""Attribute a step of the command's slowest rank, from what its processes recorded of themselves and from the
trace."""

from collections.abc import Sequence

import msgspec

from dynotune.diagnose.attribute import IMBALANCE, attribute, slowest_rank
from dynotune.schema.attribution import Attribution
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import ProcessState
from dynotune.schema.trace_summary import TraceSummary
from dynotune.trace import Timeline, summarise
from dynotune.trace.what_if import predictions, retimed, savings


def attributed(
    processes: Sequence[ProcessState], trace: TraceSummary | Unknown, timelines: Sequence[Timeline] = ()
) -> Attribution | Unknown:
    """Return the parts of a step of the slowest rank, or of the first if none is late.

    Args:
        timelines: the timelines that `trace` summarises; each is rescaled to the unrecorded step as a whole.
    """
    if not processes:
        return Unknown("no process of the command made steps")
    late = None if isinstance(trace, Unknown) else slowest_rank(trace)
    process = next((one for one in processes if one.rank == late and late is not None), processes[0])
    timing = process.timing
    if isinstance(timing, Unknown):
        return timing
    if isinstance(trace, Unknown):
        return Unknown(f"nothing was recorded: {trace.reason.rstrip('.')}")
    slowed, without, predicted = None, {}, {}
    if timelines and trace.window_s and trace.num_steps:
        slowed = trace.window_s / trace.num_steps / timing.step_s
        brought = [retimed(timeline, timing.step_s, timing.wait_s) for timeline in timelines]
        alone, of_job = summarise([timeline for timeline, _ in brought]), trace
        # Each rank was rescaled by itself; only the comparison of all ranks shows which rank waits for which.
        both = [
            row for one in (of_job, alone) for row in one.causes if (row.id == IMBALANCE) is (one is of_job)
        ]
        trace = msgspec.structs.replace(alone, causes=both, ranks=of_job.ranks)
        at = next((at for at, timeline in enumerate(timelines) if timeline.rank == late), 0)
        without = savings(timelines[at], timing.wait_s, brought[at][1])
        predicted = predictions(timelines[at], timing.wait_s, brought[at][1])
    found = attribute(
        timing,
        trace,
        uses_device=uses_device(processes),
        slowed=slowed,
        garbage_s=_garbage_s(process),
        without=without,
    )
    return found if isinstance(found, Unknown) else msgspec.structs.replace(found, predicted=predicted)


def _garbage_s(process: ProcessState) -> float:
    """Return the seconds of an unrecorded step that garbage collection takes; 0 if collections were not
    counted."""
    found, timing = process.collections, process.timing
    if isinstance(found, Unknown) or isinstance(timing, Unknown):
        return 0.0
    return found.total_s / timing.num_steps


def uses_device(processes: Sequence[ProcessState]) -> bool:
    """Tell whether any process has a model on a CUDA device or used CUDA's allocator."""
    on_device = any(
        name.startswith("cuda") for process in processes for model in process.models for name in model.devices
    )
    return on_device or any(
        row.peak_allocated_bytes > 0 for process in processes for row in process.allocators
    )
