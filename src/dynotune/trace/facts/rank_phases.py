"""Phases of a step, and in which of them a rank works longer than the others. Defined in docs/reference/trace.md.

Ranks of one job end their steps together: whoever is early waits. So the length of a phase says little, and a rank's
own time in it counts: less its waits for others, and less the exchange beside which it does nothing. A host that runs
ahead of its device hides its work behind such waits: there, what it took to issue a step counts if that is longer.
"""

import re

import numpy as np

from dynotune.schema.trace_summary import RANK_PHASES, RankPhase
from dynotune.trace.facts import intervals
from dynotune.trace.facts.idle import loader_spans, working_thread
from dynotune.trace.facts.kernel_names import CLASSES
from dynotune.trace.facts.kernels import classes_of
from dynotune.trace.facts.nesting import outermost
from dynotune.trace.facts.steps import BACKWARD, MODULE, named, updates
from dynotune.trace.timeline import UNKNOWN, HostKind, Ints, Timeline, queued_ns, told_by_name

CHANCE = 0.05
"""The most often that mere chance may name a rank, or a phase."""
MOST_PHASES = 2
"""A rank that is late in more of them is slow altogether."""

_WRAPPED = re.compile(r"(DistributedDataParallel|FullyShardedDataParallel)\.forward$")
_BACKWARD_CALL = re.compile(r".*torch/autograd/__init__\.py\(\d+\): backward$")
_ASKED = re.compile(r"c10d::")
_COMMUNICATION = CLASSES.index("communication")
_INPUT, _UPLOAD, _FORWARD, _BACKWARD, _OPTIMIZER, _OTHER = range(len(RANK_PHASES))


def beyond_chance(num: int, of: int, chance: float, tries: int = 1) -> bool:
    """Whether `num` successes of so many trials are rarer than `CHANCE`, in the best of so many tries."""
    from scipy.special import bdtrc

    return num > 0 and tries * float(bdtrc(num - 1, of, chance)) <= CHANCE


def may_be_last(own_ns: Ints, rank: int) -> bool:
    """Whether the rank is the last more often than any of ranks that are alike, or the steps are too few to tell."""
    total = own_ns.sum(axis=2)
    num_ranks, num_steps = total.shape
    others = np.delete(total, rank, axis=0)
    middling = np.median(others, axis=1)
    # Steps are not independent: one process may be slower than its like in all of them.
    if np.median(total[rank]) - middling.max() <= np.ptp(middling):
        return False
    num_last = int((total[rank] > others.max(axis=0)).sum())
    return float(num_ranks) ** (1 - num_steps) > CHANCE or beyond_chance(num_last, num_steps, 1 / num_ranks, num_ranks)


def late(own_ns: Ints, rank: int) -> tuple[list[RankPhase], int]:
    """Return in which phases a rank is later than the others' median, [] where it is not known, and by how many ns.

    A phase is named if, step by step, more of the lateness lies in it than in all others together. If no phase is, the
    longest two are asked alike: longer samples take longer in forward and backward. `own_ns`: (ranks, steps, phases).
    """
    others = np.delete(own_ns, rank, axis=0)
    excess = own_ns[rank] - np.median(others, axis=0)
    total = own_ns[rank].sum(axis=1) - np.median(others.sum(axis=2), axis=0)
    longest = np.argsort(-np.median(excess, axis=0), kind="stable")[:MOST_PHASES]
    for num in range(1, MOST_PHASES + 1):
        most = 2 * excess[:, longest[:num]].sum(axis=1) > np.maximum(total, 0)
        if beyond_chance(int(most.sum()), len(most), 1 / 2):
            return [RANK_PHASES[phase] for phase in longest[:num]], round(float(np.median(total)))
    return [], round(float(np.median(total)))


def own_sets(
    timeline: Timeline, window: tuple[int, int], collectives: tuple[Ints, Ints, Ints], free: intervals.Set
) -> tuple[list[intervals.Set], list[intervals.Set]] | None:
    """Return when a rank works in each of `RANK_PHASES`, as its device shows, and as its host issues work.

    None where forward and backward passes cannot be told. Time in collectives, when they start, end and were queued, in
    which the rank is `free` is left out, but for that until the backward pass that queued one asks for its last. A host
    that issues nothing more before its device goes on may wait for it: in a call, or as the queue is full.
    """
    host = on_host(timeline, window)
    if host is None:
        return None
    passes, (start_ns, end_ns, queued) = host[_BACKWARD], collectives
    asked_ns = np.sort(timeline.host.start_ns[named(timeline, _ASKED, HostKind.OPERATOR)])
    if len(passes) and len(asked_ns):
        at = np.maximum(np.searchsorted(passes[:, 0], queued, side="right") - 1, 0)
        inside = (passes[at, 0] <= queued) & (queued < passes[at, 1])
        last_ns = asked_ns[np.maximum(np.searchsorted(asked_ns, passes[at, 1]) - 1, 0)]
        start_ns = np.where(inside, np.maximum(start_ns, last_ns), start_ns)
    blocked = waited = intervals.intersection(intervals.union(start_ns, end_ns), free)
    launches = timeline.device.launch[timeline.device.launch != UNKNOWN]
    if len(launches):
        issued_ns = np.sort(timeline.host.start_ns[launches])
        last_ns = issued_ns[np.maximum(np.searchsorted(issued_ns, blocked[:, 1]) - 1, 0)]
        waited = intervals.union(np.maximum(blocked[:, 0], last_ns), blocked[:, 1])
    shown = _on_device(timeline, window, host) if len(timeline.device) else host
    return [intervals.difference(one, blocked) for one in shown], [intervals.difference(one, waited) for one in host]


def on_host(timeline: Timeline, window: tuple[int, int]) -> list[intervals.Set] | None:
    """Return when the host is in each of `RANK_PHASES`; None where forward and backward passes cannot be told."""
    host = timeline.host
    forward = named(timeline, _WRAPPED, HostKind.ANNOTATION, HostKind.OPERATOR)
    if not len(forward):
        forward = outermost(host, named(timeline, MODULE, HostKind.PYTHON))
    begins, ends = _passes(timeline, host.start_ns[forward])
    if not len(begins):
        return None
    # Recomputation calls modules inside the backward pass.
    forward_ns = host.start_ns[forward]
    forward_ns = forward_ns[intervals.covered(intervals.union(begins, ends), forward_ns, forward_ns + 1) == 0]
    drawn = loader_spans(timeline)
    drawn = drawn[host.thread[drawn] == working_thread(timeline)]
    calls, update_ns = updates(timeline)
    # An end comes before a beginning at the same moment.
    pairs = [
        (_OTHER, host.end_ns[calls]),
        (_OPTIMIZER, ends),
        (_UPLOAD if len(timeline.device) else _INPUT, host.end_ns[drawn]),
        (_INPUT, host.start_ns[drawn]),
        (_FORWARD, forward_ns),
        (_BACKWARD, begins),
        (_OPTIMIZER, update_ns),
    ]
    at_ns = np.concatenate([times for _, times in pairs])
    label = np.repeat([phase for phase, _ in pairs], [len(times) for _, times in pairs])
    order = np.argsort(at_ns, kind="stable")
    at_ns, label = at_ns[order], label[order]
    # No update follows a backward pass whose gradients accumulate.
    onward = np.append(label[1:], _OTHER)
    label[(label == _OPTIMIZER) & ((onward == _INPUT) | (onward == _FORWARD))] = _OTHER
    edges = np.concatenate(([min(window[0], int(at_ns[0]))], at_ns, [max(window[1], int(at_ns[-1]))]))
    label = np.append(_OTHER, label)
    every = [intervals.union(edges[:-1][label == one], edges[1:][label == one]) for one in range(len(RANK_PHASES))]
    return [intervals.clip(one, *window) for one in every]


def _passes(timeline: Timeline, forward_ns: Ints) -> tuple[Ints, Ints]:
    """Return when each backward pass begins and ends: its call, else its first and last operator."""
    host = timeline.host
    calls = outermost(host, named(timeline, _BACKWARD_CALL, HostKind.PYTHON))
    if len(calls):
        return host.start_ns[calls], host.end_ns[calls]
    rows = named(timeline, BACKWARD, HostKind.OPERATOR)
    rows = rows[np.argsort(host.start_ns[rows], kind="stable")]
    firsts = np.flatnonzero(np.diff(np.searchsorted(forward_ns, host.start_ns[rows], side="right"), prepend=-1))
    ends = np.maximum.reduceat(host.end_ns[rows], firsts) if len(firsts) else host.end_ns[rows]
    return host.start_ns[rows[firsts]], ends


def _on_device(timeline: Timeline, window: tuple[int, int], host: list[intervals.Set]) -> list[intervals.Set]:
    """Return whose work runs on the device, by the phase that queued it, and the host's phase where nothing runs."""
    rows = np.flatnonzero(classes_of(timeline) != _COMMUNICATION)
    queued = queued_ns(timeline, rows)
    uploads = told_by_name(timeline.names, timeline.device.name[rows], lambda name: name.startswith("Memcpy HtoD"))
    inside = [(intervals.covered(one, queued, queued + 1) > 0) & ~uploads for one in host]
    # Computing hides the copies beside it, and running work hides the host's delays.
    inside[_UPLOAD] |= uploads
    taken, found = intervals.union_of(timeline.device, rows[:0]), list(host)
    for phase in (_FORWARD, _BACKWARD, _OPTIMIZER, _OTHER, _INPUT, _UPLOAD):
        runs = intervals.union_of(timeline.device, rows[inside[phase]], window)
        found[phase] = intervals.difference(runs, taken)
        taken = intervals.union(*np.concatenate((taken, runs)).T)
    # While only communication runs, the host may be late with what comes next: `blocked` tells.
    return [
        intervals.union(*np.concatenate((runs, intervals.difference(late, taken))).T)
        for runs, late in zip(found, host, strict=True)
    ]
