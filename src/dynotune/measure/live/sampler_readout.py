"""What the sampler saw beside a run: causes outside it, the energy of the GPUs, the memory of the tree."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dynotune import probe
from dynotune.schema.facts import Unknown
from dynotune.schema.run import Process, Run

AROUND_TRACE_S = 0.4


def energy(samples: Sequence[probe.Sample], processes: Sequence[Process]) -> probe.Energy | Unknown:
    """In the windows of all ranks together."""
    windows = [process.window for process in processes if process.window is not None]
    if not windows:
        return Unknown("no window was timed")
    begin_s, end_s = min(window.begin_s for window in windows), max(window.end_s for window in windows)
    return probe.energy(samples, begin_s, end_s)


def peak_tree_bytes(samples: Sequence[probe.Sample]) -> int | Unknown:
    """The most that a sample saw; between samples it may have been more."""
    found = [sample.tree_bytes for sample in samples if sample.tree_bytes is not None]
    known = [num_bytes for num_bytes in found if not isinstance(num_bytes, Unknown)]
    if known:
        return max(known)
    return next((why for why in found if isinstance(why, Unknown)), Unknown("it was not asked for"))


def outside(sampler: probe.Sampler, run: Run) -> probe.Interference | None:
    """What came from outside while it was measured; None where nothing was."""
    spans = [(process.window.begin_s, process.window.end_s) for process in run.processes if process.window is not None]
    # The steps of a trace take less than the samples are apart: what came just before counts too.
    spans += [
        (process.trace.begin_s - AROUND_TRACE_S, process.trace.end_s)
        for process in run.processes
        if process.trace is not None and process.trace.begin_s is not None and process.trace.end_s is not None
    ]
    if not spans and run.purpose == "measured" and run.launched_s is not None and sampler.samples:
        # Up to the first step, or to the line that was waited for: sampling begins just after the launch.
        firsts = (
            [run.ready_s]
            if run.ready_s is not None
            else [process.time_to_first_step_s for process in run.processes if process.time_to_first_step_s is not None]
        )
        begin_s = max(run.launched_s, sampler.samples[0].time_s)
        spans = [(begin_s, run.launched_s + first_s) for first_s in firsts if run.launched_s + first_s > begin_s]
    if not spans:
        return None
    judged = probe.judge(sampler.samples, min(begin for begin, _ in spans), max(end for _, end in spans))
    return msgspec.structs.replace(judged, unknown=[*judged.unknown, *sampler.errors])
