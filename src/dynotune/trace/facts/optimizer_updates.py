"""When optimizers update. In Lightning's `step(closure)`, the update follows the closure's backward pass."""

from __future__ import annotations

import numpy as np

from dynotune.trace.facts.host_names import BACKWARD, OPTIMIZER, named
from dynotune.trace.timeline import HostKind, Ints, Timeline


def updates(timeline: Timeline, within: tuple[int, int] | None = None) -> tuple[Ints, Ints]:
    """Return calls of `Optimizer.step` wholly `within` a time window, and when (ns) each begins to update."""
    host = timeline.host
    calls = named(timeline, OPTIMIZER, HostKind.ANNOTATION, HostKind.OPERATOR)
    if within is not None:
        calls = calls[(host.start_ns[calls] >= within[0]) & (host.end_ns[calls] <= within[1])]
    start_ns, end_ns = host.start_ns[calls].copy(), host.end_ns[calls]
    backward = named(timeline, BACKWARD, HostKind.OPERATOR)
    if not len(calls) or not len(backward):
        return calls, start_ns
    backward = backward[np.argsort(host.start_ns[backward], kind="stable")]
    # Take the latest end of the backward passes that began before the call's end: nested ones end before
    # outer ones.
    reach = np.maximum.accumulate(host.end_ns[backward])
    last = np.searchsorted(host.start_ns[backward], end_ns, side="left") - 1
    inside = (last >= 0) & (host.start_ns[backward[np.maximum(last, 0)]] >= start_ns)
    start_ns[inside] = np.clip(reach[last[inside]], start_ns[inside], end_ns[inside])
    return calls, start_ns
