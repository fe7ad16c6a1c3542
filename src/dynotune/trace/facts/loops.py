"""Find loops of the program: calls that one call of a function repeats, and the work that each turn queues or
runs.

A trace shows functions, not lines: a turn is what a function calls equally often. docs/reference/trace.md
defines it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynotune.schema.trace_summary import Loop
from dynotune.trace.facts import intervals
from dynotune.trace.facts.host_names import BACKWARD
from dynotune.trace.facts.nesting import Nesting, nest, outermost
from dynotune.trace.facts.origins import backward_nodes, forwards
from dynotune.trace.facts.source_files import has_file, is_users
from dynotune.trace.timeline import UNKNOWN, HostKind, Ints, Timeline, touching

LEAST_TURNS = 8
"""Turns of a loop in one call. Fewer calls may be written out one by one."""
LEAST_SHARE = 0.05
"""Share of all operators or launches, in number, from which on a loop is listed."""
ALIKE = 0.25
"""Relative difference of turns up to which calls belong to one loop: some turns leave a call out, and the
function may make the same call once more outside of the loop."""
MOST = 20


@dataclass(frozen=True, slots=True)
class _Work:
    """Work of one rank: when its forward pass ran on the thread that runs forward passes, and its length, in
    ns."""

    time_ns: Ints
    length_ns: Ints


def loops(timeline: Timeline, window: tuple[int, int], num_steps: int) -> list[Loop]:
    """Return the loops of the program in the window [start, end) of ns, those with most turns in a step
    first.

    Args:
        num_steps: number of steps in the window.

    Returns:
        [] if the trace has no stacks.
    """
    host = timeline.host
    inside = touching(host, window)
    users = np.array([is_users(name) for name in timeline.names], dtype=bool)
    any_file = np.array([has_file(name) for name in timeline.names], dtype=bool)
    functions = np.flatnonzero((host.kind == HostKind.PYTHON) & inside & any_file[host.name])
    if not len(functions) or not num_steps:
        return []
    threads, num = np.unique(host.thread[functions], return_counts=True)
    thread = threads[np.argmax(num)]
    functions = functions[host.thread[functions] == thread]
    operators = np.flatnonzero((host.kind == HostKind.OPERATOR) & (host.thread == thread) & inside)
    is_node = np.array([BACKWARD.match(name) is not None for name in timeline.names], dtype=bool)
    calls = outermost(host, operators)
    calls = calls[~is_node[host.name[calls]]]
    work = _work(timeline, window, calls)
    rows = np.sort(np.concatenate((functions, calls)))
    spans = nest(rows, host.start_ns[rows], host.end_ns[rows])
    is_function = host.kind[rows] == HostKind.PYTHON
    children, parent = _children(spans, is_function, is_function & users[host.name[rows]])
    found = _of_functions(timeline, spans, children, parent, work, num_steps)
    return sorted(found, key=lambda loop: -loop.turns * loop.calls)[:MOST]


def _children(
    spans: Nesting, is_function: NDArray[np.bool_], is_user: NDArray[np.bool_]
) -> tuple[Ints, Ints]:
    """Return the spans (positions) that functions of the user call, and the position of each one's caller.

    A span is called by the nearest function of the user around it. A library's function counts only if the
    user's code calls it directly and none of the user's functions runs inside: a module's `__call__` around
    its `forward` does not.
    """
    caller = np.where(spans.parent == UNKNOWN, UNKNOWN, spans.nearest(is_user)[np.maximum(spans.parent, 0)])
    is_direct = (spans.parent != UNKNOWN) & is_user[np.maximum(spans.parent, 0)]
    # Whether a function of the user begins inside each span.
    begins = np.concatenate(([0], np.cumsum(is_user)))
    until = np.searchsorted(spans.start_ns, spans.end_ns, side="left")
    has_user = begins[until] - begins[np.minimum(np.arange(len(spans)) + 1, until)] > 0
    counts = (is_user | (is_direct & ~(is_function & has_user))) & (caller != UNKNOWN)
    children = np.flatnonzero(counts)
    return children, caller[children]


def _of_functions(
    timeline: Timeline, spans: Nesting, children: Ints, parent: Ints, work: _Work, num_steps: int
) -> list[Loop]:
    host = timeline.host
    name = host.name[spans.rows].astype(np.int64)
    length_ns = spans.end_ns - spans.start_ns
    found = []
    for function in np.unique(name[parent]).tolist():
        own = children[name[parent] == function]
        # A function that runs for longer than a step is called once, but does its work in every step.
        calls = max(len(np.unique(parent[name[parent] == function])), num_steps)
        called, of_child, num = np.unique(name[own], return_inverse=True, return_counts=True)
        turns = np.round(num / calls).astype(np.int64)
        spent_ns = np.bincount(of_child, weights=length_ns[own])
        repeated = turns >= LEAST_TURNS
        if not repeated.any():
            continue
        by_turns = {of: spent_ns[turns == of].sum() for of in np.unique(turns[repeated]).tolist()}
        longest = max(by_turns, key=lambda of: by_turns[of])
        alike = repeated & (np.abs(turns - longest) <= ALIKE * longest)
        # What the turns of most calls agree on; of equally common numbers, the one of most time.
        common = np.bincount(turns[alike])
        most = int(max(np.flatnonzero(common == common.max()).tolist(), key=lambda of: by_turns[of]))
        in_loop = own[alike[of_child]]
        within = intervals.union(spans.start_ns[in_loop], spans.end_ns[in_loop])
        at = np.searchsorted(within[:, 0], work.time_ns, side="right") - 1
        is_in = (at >= 0) & (work.time_ns < within[np.maximum(at, 0), 1])
        if is_in.sum() < LEAST_SHARE * len(work.time_ns):
            continue
        chosen = called[alike][np.argmax(spent_ns[alike])]
        found.append(
            Loop(
                function=timeline.names[function],
                callee=timeline.names[chosen],
                turns=most,
                calls=calls / num_steps,
                launches=float(is_in.sum() / (most * calls)),
                share=float(work.length_ns[is_in].sum() / max(1, work.length_ns.sum())),
                num_share=float(is_in.sum() / len(work.time_ns)),
            )
        )
    return found


def _work(timeline: Timeline, window: tuple[int, int], calls: Ints) -> _Work:
    """Return the work of a rank: what its device did; without a device, its outermost operators.

    Args:
        calls: the outermost operators of the thread that runs forward passes, without backward passes.
    """
    host, device = timeline.host, timeline.device
    nodes = backward_nodes(timeline)
    forward = forwards(timeline, nodes)
    nodes, forward = nodes[forward != UNKNOWN], forward[forward != UNKNOWN]
    if not len(device):
        kept = host.start_ns[nodes] >= window[0]
        rows = np.concatenate((calls, nodes[kept]))
        times = np.concatenate((host.start_ns[calls], host.start_ns[forward[kept]]))
        return _Work(times, host.end_ns[rows] - host.start_ns[rows])
    launched = np.flatnonzero((device.launch != UNKNOWN) & touching(device, window))
    call = device.launch[launched]
    times = host.start_ns[call].copy()
    for thread in np.unique(host.thread[nodes]).tolist():
        of_thread = np.flatnonzero(host.thread[nodes] == thread)
        starts, ends = host.start_ns[nodes[of_thread]], host.end_ns[nodes[of_thread]]
        at = np.searchsorted(starts, times, side="right") - 1
        is_in = (host.thread[call] == thread) & (at >= 0) & (times < ends[np.maximum(at, 0)])
        times[is_in] = host.start_ns[forward[of_thread[at[is_in]]]]
    return _Work(times, device.end_ns[launched] - device.start_ns[launched])
