"""The rows of a timeline in words."""

from __future__ import annotations

from pathlib import Path

from dynotune.trace.readers import kineto
from dynotune.trace.timeline import UNKNOWN, DeviceKind, HostKind, Timeline


def only(path: Path, **how: int) -> Timeline:
    (timeline,) = kineto.read(path, **how)
    return timeline


def host(timeline: Timeline) -> list[tuple[object, ...]]:
    """Rows in words: name, kind, start, end, thread, correlation."""
    of = timeline.host
    return [
        (timeline.names[name], HostKind(kind).name, start, end, timeline.threads[thread], correlation)
        for name, kind, start, end, thread, correlation in zip(
            of.name.tolist(), of.kind.tolist(), of.start_ns.tolist(), of.end_ns.tolist(), of.thread.tolist(),
            of.correlation.tolist(), strict=True,
        )
    ]  # fmt: skip


def device(timeline: Timeline) -> list[tuple[object, ...]]:
    """Rows in words: name, kind, start, end, device, stream, bytes, start of the call that queued it."""
    of = timeline.device
    launched = [None if row == UNKNOWN else int(timeline.host.start_ns[row]) for row in of.launch.tolist()]
    return [
        (timeline.names[name], DeviceKind(kind).name, *rest)
        for name, kind, *rest in zip(
            of.name.tolist(), of.kind.tolist(), of.start_ns.tolist(), of.end_ns.tolist(), of.device.tolist(),
            of.stream.tolist(), of.num_bytes.tolist(), launched, strict=True,
        )
    ]  # fmt: skip
