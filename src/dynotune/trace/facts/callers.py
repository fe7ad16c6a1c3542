"""Who calls an operator: program, library, compiled code, optimizer, backward pass or loader."""

import numpy as np
from numpy.typing import NDArray

from dynotune.schema.trace_summary import Caller
from dynotune.trace.facts.host_names import BACKWARD, COMPILED, named
from dynotune.trace.facts.idle import loader_spans
from dynotune.trace.facts.nesting import Nesting, begins_inside, nest, outermost
from dynotune.trace.facts.optimizer_updates import updates
from dynotune.trace.facts.source_files import has_file, is_users
from dynotune.trace.timeline import UNKNOWN, HostKind, Ints, Timeline

CALLERS: tuple[Caller, ...] = ("program", "library", "compiled", "optimizer", "backward", "loader", "unknown")
FEW_PER_CALL = 8
"""Most operators in one call of a library function, or in one operator, that count as called by the program:
as many as a layer has. With more operators, the library itself repeats or composes them, and the program
called the library once."""


def callers(timeline: Timeline, rows: Ints) -> Ints:
    """Return the index into `CALLERS` for each of the given operators (host spans in the table's order).

    The outermost operator around an operator decides whether the program or a library calls it.
    """
    host = timeline.host
    found = np.full(len(rows), CALLERS.index("unknown"), dtype=np.int64)
    users = np.array([is_users(name) for name in timeline.names], dtype=bool)
    any_file = np.array([has_file(name) for name in timeline.names], dtype=bool)
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
        is_function = (host.thread == thread) & (host.kind == HostKind.PYTHON)
        functions = np.flatnonzero(is_function & any_file[host.name])
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
    """Return whether a user function, or a library function of few operators, calls at each time."""
    if not len(spans):
        return np.zeros(len(start_ns), dtype=bool)
    inside = spans.innermost(start_ns)
    has_user = spans.nearest(is_user) != UNKNOWN
    # The library function that a user's function called directly, at or above each span.
    parent_is_user = (spans.parent != UNKNOWN) & is_user[np.maximum(spans.parent, 0)]
    entry = spans.nearest(is_user | parent_is_user)
    known = (inside != UNKNOWN) & has_user[np.maximum(inside, 0)]
    entered = np.where(known, entry[np.maximum(inside, 0)], 0)
    num = np.bincount(entered[known], minlength=len(spans))
    found: NDArray[np.bool_] = known & (is_user[entered] | (num[entered] <= FEW_PER_CALL))
    return found
