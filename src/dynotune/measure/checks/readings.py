"""Read the values that a program computed in a guarded run from the records of its processes."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from dynotune.launch.records import Record
from dynotune.measure.checks.differences import Digest
from dynotune.schema import document
from dynotune.schema.errors import RecordError
from dynotune.schema.facts import Unknown


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """Results that one process computed.

    Args:
        draws: kinds of devices whose random number generators the process's modules used.
        precision: the precision in which the process computes, as far as visible.
        num_captured: number of values that were not read because a CUDA graph was being captured.
        metric: values of the metric for each call, in order; `metric_error`: why there is no metric.
        peak_bytes: peak of device memory. `room`: number of equal runs that fit into device memory at once.
        parts: results of inner modules in the outermost module's first call, in the order in which their calls ended.
    """

    what: Literal["losses", "outputs"]
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
    for record in sorted(records, key=lambda record: record.among_ranks("rank") or 0):
        event = record.last("results")
        why = "".join([f": {error.get('error')}" for error in record.events.get("error", [])][-1:])
        if event is None:
            return Unknown(f"a process ended before its losses were read{why}")
        found.append(_reading(event, record))
        if not found[-1].num_values:
            why = ": they are inside CUDA graphs" if found[-1].num_captured else why
            return Unknown(f"no losses and no outputs of floating point were seen{why}")
    return found or Unknown("no process made a step")


def _reading(event: dict[str, Any], record: Record) -> Reading:
    values = "losses" if event.get("what") == "losses" else "outputs"
    try:
        peak_bytes = (record.last("memory") or {}).get("peak_device_bytes")
        return document.convert({**event, values: event.get("values"), "peak_bytes": peak_bytes}, Reading)
    except (ValueError, TypeError) as error:
        raise RecordError(f"{record.path} is damaged: its results are not in the agent's form.") from error
