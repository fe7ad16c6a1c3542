"""Names of host spans that show what a program does, and the spans with such a name."""

from __future__ import annotations

import re

import numpy as np

from dynotune.trace.timeline import HostKind, Ints, Timeline

STEP = re.compile(r"ProfilerStep[#*]")
OPTIMIZER = re.compile(r"Optimizer\.step#")
LOADER = re.compile(r"enumerate\(DataLoader\)#")
MODULE = re.compile(r"nn\.Module: ")
BACKWARD = re.compile(r"autograd::engine::")
# Code that torch.compile generates calls no operator: the kernels of this code run inside these spans.
COMPILED = re.compile(r"## Call CompiledFxGraph|CompiledFunction")


def named(timeline: Timeline, pattern: re.Pattern[str], *kinds: HostKind) -> Ints:
    """Return the host spans (rows) of the given kinds whose name matches the pattern from its beginning."""
    matching = np.array([pattern.match(name) is not None for name in timeline.names], dtype=bool)
    if not matching.any():
        return np.empty(0, dtype=np.int64)
    host = timeline.host
    rows: Ints = np.flatnonzero(matching[host.name] & np.isin(host.kind, kinds))
    return rows
