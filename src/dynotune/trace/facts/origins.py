"""Find the forward operator whose backward pass an operator belongs to: both have the same number of
autograd's node.

The profiler gives every operator that runs while gradients are enabled the number of the next node. The
operator that makes the node is the last one with its number.
"""

from __future__ import annotations

import numpy as np

from dynotune.trace.facts.host_names import BACKWARD, named
from dynotune.trace.facts.nesting import outermost
from dynotune.trace.timeline import UNKNOWN, HostKind, Ints, Timeline


def backward_nodes(timeline: Timeline) -> Ints:
    """Return the spans (rows) in which autograd runs a node's backward pass, without spans inside them."""
    nodes = named(timeline, BACKWARD, HostKind.OPERATOR)
    return outermost(timeline.host, nodes[timeline.host.sequence[nodes] != UNKNOWN])


def forwards(timeline: Timeline, nodes: Ints) -> Ints:
    """Return the row of the forward operator that made each of the given nodes; UNKNOWN if it was not
    recorded.

    UNKNOWN for all nodes if several threads run forward passes, because each of them numbers its nodes from
    0.
    """
    host = timeline.host
    rows = np.flatnonzero((host.kind == HostKind.OPERATOR) & (host.sequence != UNKNOWN) & ~host.is_backward)
    found = np.full(len(nodes), UNKNOWN, dtype=np.int64)
    if not len(rows) or len(np.unique(host.thread[rows])) > 1:
        return found
    # Rows are in order of time, so the last of the rows with one number is the one that made the node.
    rows = rows[np.argsort(host.sequence[rows], kind="stable")]
    at = np.searchsorted(host.sequence[rows], host.sequence[nodes], side="right") - 1
    known = (at >= 0) & (host.sequence[rows[np.maximum(at, 0)]] == host.sequence[nodes])
    found[known] = rows[at[known]]
    return found
