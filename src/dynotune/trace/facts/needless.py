"""Find work that a training may not need: forward passes that run again, and values that no gradient flows
through."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from dynotune.schema.trace_summary import Ungraded
from dynotune.trace.facts import intervals
from dynotune.trace.facts.host_names import BACKWARD, MODULE, named
from dynotune.trace.facts.nesting import begins_inside, nest, outermost
from dynotune.trace.facts.origins import backward_nodes, forwards
from dynotune.trace.facts.source_files import is_users
from dynotune.trace.timeline import UNKNOWN, HostKind, Ints, Timeline, touching

LEAST_SHARE = 0.01
_RANDOM = re.compile(r"aten::(\w*(rand|dropout|bernoulli|multinomial|poisson)|normal|uniform|exponential)")
"""Operators that draw random numbers: their values differ in every step, so nothing can keep them."""


def recomputed(timeline: Timeline, window: tuple[int, int]) -> float | None:
    """Return the share of forward passes that run inside the backward pass, as gradient checkpointing does.

    It is a share of the device's work; without a device, of the window [start, end) of ns. None without
    stacks, because only they show modules.
    """
    host = timeline.host
    if not (host.kind == HostKind.PYTHON).any():
        return None
    modules = named(timeline, MODULE, HostKind.PYTHON)
    nodes = outermost(host, named(timeline, BACKWARD, HostKind.OPERATOR))
    again = modules[begins_inside(host, modules, nodes)] if len(nodes) else modules[:0]
    return _share(timeline, window, outermost(host, again))


def ungraded(timeline: Timeline, window: tuple[int, int]) -> list[Ungraded]:
    """Return the functions of the user's modules that compute values without a gradient, the largest share
    first.

    Counted are operators that a function calls itself while gradients are enabled, inside a module, if no
    node of the backward pass comes from them: no parameter takes part in their values. Random numbers are
    left out.
    """
    host = timeline.host
    nodes = backward_nodes(timeline)
    made = forwards(timeline, nodes)
    made = np.unique(made[made != UNKNOWN])
    if not len(made):
        return []
    thread = int(host.thread[made[0]])
    of_thread = (host.thread == thread) & touching(host, window)
    is_user = np.array([is_users(name) for name in timeline.names], dtype=bool)[host.name]
    functions = np.flatnonzero(of_thread & (host.kind == HostKind.PYTHON) & is_user)
    modules = named(timeline, MODULE, HostKind.PYTHON)
    modules = modules[of_thread[modules]]
    operators = outermost(host, np.flatnonzero(of_thread & (host.kind == HostKind.OPERATOR)))
    graded = np.searchsorted(made, operators), np.searchsorted(host.start_ns[made], host.end_ns[operators])
    is_drawn = np.array([_RANDOM.match(name) is not None for name in timeline.names], dtype=bool)
    kept = (graded[0] >= graded[1]) & (host.sequence[operators] != UNKNOWN) & ~is_drawn[host.name[operators]]
    kept &= begins_inside(host, operators, modules) & ~begins_inside(host, operators, nodes)
    operators = operators[kept]
    rows = np.sort(np.concatenate((functions, modules)))
    spans = nest(rows, host.start_ns[rows], host.end_ns[rows])
    inside = spans.innermost(host.start_ns[operators])
    own = (inside != UNKNOWN) & np.isin(spans.rows[np.maximum(inside, 0)], functions)
    operators, caller = operators[own], host.name[spans.rows[inside[own]]]
    found = [
        Ungraded(function=timeline.names[name], share=_share(timeline, window, operators[caller == name]))
        for name in np.unique(caller).tolist()
    ]
    return sorted((row for row in found if row.share >= LEAST_SHARE), key=lambda row: -row.share)


def _share(timeline: Timeline, window: tuple[int, int], rows: Ints) -> float:
    """Return the share of the device's work that host spans queue; without a device, their share of the
    window."""
    host, device = timeline.host, timeline.device
    if not len(device):
        return intervals.length(intervals.union_of(host, rows, window)) / max(1, window[1] - window[0])
    launched = np.flatnonzero((device.launch != UNKNOWN) & touching(device, window))
    length_ns = device.end_ns[launched] - device.start_ns[launched]
    inside: NDArray[np.bool_] = begins_inside(host, device.launch[launched], rows)
    return float(length_ns[inside].sum() / max(1, length_ns.sum()))
