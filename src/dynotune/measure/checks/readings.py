"""Read the values that a program computed in a guarded run from the records of its processes."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from dynotune.launch.records import Record
from dynotune.schema.errors import RecordError
from dynotune.schema.events import AgentError, Digest, MemoryPeaks, ResultsRead
from dynotune.schema.facts import Unknown


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """Results that one process computed.

    Args:
        draws: kinds of devices whose random number generators the process's modules used.
        precision: the precision in which the process computes, as far as visible.
        num_captured: number of values that were not read because a CUDA graph was being captured.
        metric: values of the metric for each call, in order; `metric_error`: why there is no metric.
        peak_bytes: peak of device memory. `room`: number of equal runs that fit into device memory at once.
        parts: results of inner modules in the outermost module's first call, in the order in which their
            calls ended.
    """

    what: Literal["losses", "outputs", "updates"]
    losses: list[float | None] = []
    outputs: list[list[Digest]] = []
    draws: list[str] = []
    precision: str = ""
    num_captured: int = 0
    parts: list[tuple[str, list[Digest]]] = []
    metric: list[float] = []
    metric_error: str = ""
    peak_bytes: int | None = None
    room: int = 1

    @property
    def num_values(self) -> int:
        return len(self.losses) if self.what == "losses" else len(self.outputs)


Readings = list[Reading]
"""Readings of the ranks, in order."""


def readings(records: Sequence[Record]) -> Readings | Unknown:
    """Return the results of the processes that ran steps; Unknown if one of these processes has no results.

    Raises RecordError: the record has another form than the agent's.
    """
    found = []
    for record in sorted(records, key=lambda record: record.rank or 0):
        record.refuse_dropped(ResultsRead, MemoryPeaks)
        event, error = record.last(ResultsRead), record.last(AgentError)
        why = f": {error.error}" if error is not None else ""
        if event is None:
            return Unknown(f"a process ended before its losses were read{why}")
        found.append(_reading(event, record))
        if not found[-1].num_values:
            why = ": they are inside CUDA graphs" if found[-1].num_captured else why
            return Unknown(f"no losses and no outputs of floating point were seen{why}")
    return found or Unknown("no process made a step")


def _reading(event: ResultsRead, record: Record) -> Reading:
    losses = [value for value in event.values if not isinstance(value, list)]
    outputs = [value for value in event.values if isinstance(value, list)]
    if losses if event.what == "outputs" else outputs:
        raise RecordError(f"{record.path} is damaged: its results are not in the agent's form.")
    peaks = record.last(MemoryPeaks)
    return Reading(
        what=event.what,
        losses=losses,
        outputs=outputs,
        draws=event.draws,
        precision=event.precision,
        num_captured=event.num_captured,
        parts=event.parts,
        metric=event.metric,
        metric_error=event.metric_error,
        peak_bytes=peaks.peak_device_bytes if peaks is not None else None,
    )
