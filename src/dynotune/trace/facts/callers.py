"""Who calls each operator: the program's own functions one by one, or what they call to do much at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dynotune.schema.trace_summary import Caller
from dynotune.trace.facts.host_time import COMPILED
from dynotune.trace.facts.idle import loader_spans
from dynotune.trace.facts.nesting import Nesting, begins_inside, nest, outermost
from dynotune.trace.facts.source_locations import has_file, is_users
from dynotune.trace.facts.steps import BACKWARD, named, updates
from dynotune.trace.timeline import UNKNOWN, HostKind, Ints, Timeline

CALLERS: tuple[Caller, ...] = ("program", "library", "compiled", "optimizer", "backward", "loader", "unknown")
FEW_PER_CALL = 8
"""Operators in one call of a library's function, or inside one operator: as many as a layer has. With more of them it
is the library that repeats or composes them, and the program called it once."""


def callers(timeline: Timeline, rows: Ints) -> Ints:
    """Index into `CALLERS` for each of these rows of the host, which are operators in the table's order.

    Whether the program or a library calls one is told by the outermost operator around it.
    """
    host = timeline.host
    found = np.full(len(rows), CALLERS.index("unknown"), dtype=np.int64)
    users, any_file = (np.array([tell(name) for name in timeline.names], dtype=bool) for tell in (is_users, has_file))
    either = (HostKind.ANNOTATION, HostKind.OPERATOR)
    optimizers, updates_ns = updates(timeline)
    begin_ns = host.start_ns.copy()
    begin_ns[optimizers] = updates_ns
    beside = [
        ("loader", loader_spans(timeline)),
        ("optimizer", optimizers),
        ("compiled", named(timeline, COMPILED, *either)),
        ("backward", named(timeline, BACKWARD, HostKind.OPERATOR)),
    ]
    with_stacks = host.thread[host.kind == HostKind.PYTHON]
    for thread in np.intersect1d(with_stacks, host.thread[rows]).tolist():
        own = np.flatnonzero(host.thread[rows] == thread)
        functions = np.flatnonzero((host.thread == thread) & (host.kind == HostKind.PYTHON) & any_file[host.name])
        spans = nest(functions, host.start_ns[functions], host.end_ns[functions])
        outer = outermost(host, rows[own])
        outer_ns = host.start_ns[outer]
        by_program = _by_program(spans, users[host.name[functions]], outer_ns)
        around = np.maximum(np.searchsorted(outer_ns, host.start_ns[rows[own]], side="right") - 1, 0)
        has_few = np.bincount(around, minlength=len(outer)) <= FEW_PER_CALL + 1
        one_by_one = by_program[around] & (has_few[around] | np.isin(rows[own], outer))
        found[own] = np.where(one_by_one, CALLERS.index("program"), CALLERS.index("library"))
    for name, spans_of in reversed(beside):
        found[begins_inside(host, rows, spans_of, begin_ns[spans_of])] = CALLERS.index(name)
    return found


def _by_program(spans: Nesting, is_user: NDArray[np.bool_], start_ns: Ints) -> NDArray[np.bool_]:
    """Whether operators that start then are called by a function of the user's, or by a library's that has few."""
    if not len(spans):
        return np.zeros(len(start_ns), dtype=bool)
    inside = spans.innermost(start_ns)
    has_user = spans.nearest(is_user) != UNKNOWN
    # The call by which a function of the user's enters a library, at or above each span.
    parent_is_user = (spans.parent != UNKNOWN) & is_user[np.maximum(spans.parent, 0)]
    entry = spans.nearest(is_user | parent_is_user)
    known = (inside != UNKNOWN) & has_user[np.maximum(inside, 0)]
    entered = np.where(known, entry[np.maximum(inside, 0)], 0)
    num = np.bincount(entered[known], minlength=len(spans))
    found: NDArray[np.bool_] = known & (is_user[entered] | (num[entered] <= FEW_PER_CALL))
    return found
