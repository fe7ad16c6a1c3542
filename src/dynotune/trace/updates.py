"""Where optimizers update: of `step(closure)`, as Lightning calls it, what comes after the closure's backward pass."""

from __future__ import annotations

import re

import numpy as np

from dynotune.trace.steps import OPTIMIZER, named
from dynotune.trace.timeline import HostKind, Ints, Timeline

_BACKWARD = re.compile(r"autograd::engine::")


def updates(timeline: Timeline) -> tuple[Ints, Ints]:
    """Rows of the host's calls of `Optimizer.step`, and when each begins to update, in nanoseconds."""
    host = timeline.host
    calls = named(timeline, OPTIMIZER, HostKind.ANNOTATION, HostKind.OPERATOR)
    start_ns, end_ns = host.start_ns[calls].copy(), host.end_ns[calls]
    backward = named(timeline, _BACKWARD, HostKind.OPERATOR)
    if not len(calls) or not len(backward):
        return calls, start_ns
    backward = backward[np.argsort(host.start_ns[backward], kind="stable")]
    # Of what began before the call's end, whatever ends last: nested ones end before those around them.
    reach = np.maximum.accumulate(host.end_ns[backward])
    last = np.searchsorted(host.start_ns[backward], end_ns, side="left") - 1
    inside = (last >= 0) & (host.start_ns[backward[np.maximum(last, 0)]] >= start_ns)
    start_ns[inside] = np.clip(reach[last[inside]], start_ns[inside], end_ns[inside])
    return calls, start_ns
