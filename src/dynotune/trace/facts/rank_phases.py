"""What each rank itself worked in each phase of a step, and the rank and phase that hold the others up.

Ranks of one job end their steps together: whoever is early waits in the exchange, inside `backward()`. So the time
that a phase takes on the clock says little. A rank's own work ends when it joins the last collective of a backward
pass, that is when its last gradient is ready; what follows until `backward()` returns is the exchange.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynotune.schema.trace_summary import RANK_PHASES, RankPhase
from dynotune.trace.facts import host_time, intervals
from dynotune.trace.facts.idle import working_thread
from dynotune.trace.facts.kernel_names import CLASSES
from dynotune.trace.facts.kernels import classes_of
from dynotune.trace.facts.nesting import outermost
from dynotune.trace.facts.steps import BACKWARD, MODULE, Steps, named, updates
from dynotune.trace.timeline import UNKNOWN, HostKind, Ints, Timeline

_WRAPPED = re.compile(r"DistributedDataParallel\.forward$")
_BACKWARD_CALL = re.compile(r".*torch/autograd/__init__\.py\(\d+\): backward$")
_COMMUNICATION = CLASSES.index("communication")

BY_CHANCE = 0.05
"""The most often that ranks which are alike may look as if one were the last to finish its own work."""


@dataclass(frozen=True, slots=True)
class Late:
    """The rank, by position, that finishes its own work after the others, in steps enough that it is no chance.

    Args:
        phase: in which it works longest beyond the others' median; `late_ns`: by how much, in a middling step.
    """

    rank: int
    phase: RankPhase
    late_ns: int


@dataclass(frozen=True, slots=True)
class RankPhases:
    """One rank's phases within its window.

    Args:
        own_ns: of each step (row) and phase (column, of `RANK_PHASES`), the rank's own work.
        exchange_ns: of each step, collectives beside which it could do nothing of its own.
    """

    own_ns: Ints
    exchange_ns: Ints


def phases(timeline: Timeline, steps: Steps) -> RankPhases | None:
    """Return one rank's phases; None where the trace does not show its steps, forward and backward passes."""
    segments = _segments(timeline) if len(steps.start_ns) else None
    if segments is None:
        return None
    window = int(steps.start_ns.min()), int(steps.end_ns.max())
    edges, label = segments
    stretches = [intervals.union(edges[:-1][label == at], edges[1:][label == at]) for at in range(len(RANK_PHASES))]
    exchange = _exchange(timeline, stretches[RANK_PHASES.index("backward")], window)
    spans = [intervals.difference(intervals.clip(one, *window), exchange) for one in stretches]
    own = np.stack([intervals.covered(one, steps.start_ns, steps.end_ns) for one in spans], axis=1)
    if len(timeline.device):
        own = np.maximum(own, _on_device(timeline, steps, edges, label))
    return RankPhases(own, intervals.covered(exchange, steps.start_ns, steps.end_ns))


def late(of_ranks: Sequence[RankPhases]) -> Late | None:
    """Return the rank that is late, and its phase; None where the ranks are alike, or take turns."""
    num_steps = min(len(one.own_ns) for one in of_ranks)
    own = np.stack([one.own_ns[:num_steps] for one in of_ranks])
    num_last = np.bincount(own.sum(axis=2).argmax(axis=0), minlength=len(own))
    rank = int(num_last.argmax())
    if len(own) * _at_least(int(num_last[rank]), num_steps, 1 / len(own)) > BY_CHANCE:
        return None
    beyond = np.median(own[rank] - np.median(np.delete(own, rank, axis=0), axis=0), axis=0)
    at = int(beyond.argmax())
    return Late(rank, RANK_PHASES[at], round(float(beyond[at]))) if beyond[at] > 0 else None


def _at_least(num: int, of: int, chance: float) -> float:
    """Return how likely at least `num` of `of` trials succeed, each with this chance."""
    return sum(math.comb(of, one) * chance**one * (1 - chance) ** (of - one) for one in range(num, of + 1))


def _segments(timeline: Timeline) -> tuple[Ints, Ints] | None:
    """Return the edges of stretches of one phase, shape (n + 1,), and which of `RANK_PHASES` each is, shape (n,)."""
    host = timeline.host
    forward = named(timeline, _WRAPPED, HostKind.ANNOTATION, HostKind.OPERATOR)
    if not len(forward):
        forward = outermost(host, named(timeline, MODULE, HostKind.PYTHON))
    begins_ns, ends_ns = _backward_passes(timeline, host.start_ns[forward])
    if not len(begins_ns) or not len(forward):
        return None
    # Recomputation calls modules inside the backward pass.
    forward_ns = host.start_ns[forward]
    at = np.searchsorted(begins_ns, forward_ns, side="right") - 1
    forward_ns = forward_ns[(at < 0) | (ends_ns[at] <= forward_ns)]
    calls, update_ns = updates(timeline)
    marks = {"forward": forward_ns, "backward": begins_ns, "optimizer": np.append(ends_ns, update_ns)}
    marks["input"] = host.end_ns[calls]
    at_ns = np.concatenate([marks[name] for name in RANK_PHASES])
    label = np.repeat(np.arange(len(RANK_PHASES)), [len(marks[name]) for name in RANK_PHASES])
    order = np.argsort(at_ns, kind="stable")
    at_ns, label = at_ns[order], label[order]
    # Behind a backward pass that no update follows, the next batch is drawn.
    before_forward = np.append(label[1:] == RANK_PHASES.index("forward"), False)
    label = np.where((label == RANK_PHASES.index("optimizer")) & before_forward, RANK_PHASES.index("input"), label)
    # What the recording begins and ends with belongs to the phases that follow and precede it.
    edges = np.append(at_ns, max(int(host.end_ns.max()), int(at_ns[-1])))
    first = np.append(min(int(host.start_ns.min()), int(edges[0])), edges)
    return first, np.append(RANK_PHASES.index("input"), label)


def _backward_passes(timeline: Timeline, forward_ns: Ints) -> tuple[Ints, Ints]:
    """Return when each backward pass begins and ends: the call of it, else its first and last operator."""
    host = timeline.host
    calls = outermost(host, named(timeline, _BACKWARD_CALL, HostKind.PYTHON))
    if len(calls):
        return host.start_ns[calls], host.end_ns[calls]
    rows = named(timeline, BACKWARD, HostKind.OPERATOR)
    rows = rows[np.argsort(host.start_ns[rows], kind="stable")]
    of_pass = np.searchsorted(forward_ns, host.start_ns[rows], side="right")
    firsts = np.flatnonzero(np.diff(of_pass, prepend=-1)) if len(rows) else rows
    ends = np.maximum.reduceat(host.end_ns[rows], firsts) if len(firsts) else host.end_ns[rows]
    joins = host_time.collectives(timeline)
    begins = host.start_ns[rows[firsts]]
    for at in range(len(begins)):
        inside = (host.start_ns[joins] >= begins[at]) & (host.start_ns[joins] <= ends[at])
        ends[at] = host.end_ns[joins[inside]].max(initial=ends[at])
    return begins, ends


def _exchange(timeline: Timeline, backward: intervals.Set, window: tuple[int, int]) -> intervals.Set:
    """Return when the working thread could do nothing but wait for collectives, or for its device.

    In a backward pass that is from the last collective's start. Elsewhere it is all of a collective beside which no
    operator runs.
    """
    host = timeline.host
    if len(timeline.device):
        calls = (host.kind == HostKind.CALL) & (host.thread == working_thread(timeline))
        return intervals.union_of(host, calls, window)
    joins = host_time.collectives(timeline)
    starts = np.sort(host.start_ns[joins])
    last = np.searchsorted(starts, backward[:, 1], side="left") - 1
    has = (last >= 0) & (starts[np.maximum(last, 0)] >= backward[:, 0]) if len(starts) else np.zeros(len(last), bool)
    tails = np.column_stack((starts[last[has]], backward[has, 1])) if has.any() else backward[:0]
    elsewhere = intervals.difference(intervals.union_of(host, joins, window), backward)
    elsewhere = intervals.intersection(elsewhere, host_time.without_operators(timeline, window))
    both = np.concatenate((tails, elsewhere))
    return intervals.union(both[:, 0], both[:, 1])


def _on_device(timeline: Timeline, steps: Steps, edges: Ints, label: Ints) -> NDArray[np.int64]:
    """Return what the devices worked on for each step and phase, collectives aside, by when it was queued."""
    device, host = timeline.device, timeline.host
    rows = np.flatnonzero((classes_of(timeline) != _COMMUNICATION) & (device.launch != UNKNOWN))
    queued_ns = host.start_ns[device.launch[rows]]
    phase = label[np.clip(np.searchsorted(edges, queued_ns, side="right") - 1, 0, len(label) - 1)]
    step = np.searchsorted(steps.start_ns, queued_ns, side="right") - 1
    found = np.zeros((len(steps.start_ns), len(RANK_PHASES)), dtype=np.int64)
    inside = step >= 0
    inside[inside] &= queued_ns[inside] < steps.end_ns[step[inside]]
    for at in np.unique(step[inside]).tolist():
        for one in range(len(RANK_PHASES)):
            own = rows[inside & (step == at) & (phase == one)]
            found[at, one] = intervals.length(intervals.union_of(device, own))
    return found
