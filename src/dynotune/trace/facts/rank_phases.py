"""Phases of a step, and the phases in which a rank works longer than the others. Defined in
docs/reference/trace.md.

Ranks of one job end their steps together, because early ranks wait. So the length of a phase means little;
the rank's own time in the phase counts: without waits for other ranks, and without communication that nothing
overlaps. A host that runs ahead of its device hides host work behind waits for the device: then the time to
issue a step counts, if longer.
"""

import math
import re

import numpy as np

from dynotune.schema.trace_summary import RANK_PHASES, RankPhase
from dynotune.trace.facts import intervals
from dynotune.trace.facts.host_names import BACKWARD, MODULE, named
from dynotune.trace.facts.idle import loader_spans, working_thread
from dynotune.trace.facts.kernel_names import CLASSES
from dynotune.trace.facts.kernels import classes_of
from dynotune.trace.facts.nesting import outermost
from dynotune.trace.facts.optimizer_updates import updates
from dynotune.trace.timeline import UNKNOWN, HostKind, Ints, Timeline, queued_ns, told_by_name

CHANCE = 0.05
"""Largest accepted probability that a rank or a phase is named by mere chance."""
MOST_PHASES = 2
"""A rank that is late in more phases than this counts as slow in the whole step."""

_WRAPPED = re.compile(r"(DistributedDataParallel|FullyShardedDataParallel)\.forward$")
_BACKWARD_CALL = re.compile(r".*torch/autograd/__init__\.py\(\d+\): backward$")
_ASKED = re.compile(r"c10d::")
_COMMUNICATION = CLASSES.index("communication")
_INPUT, _UPLOAD, _FORWARD, _BACKWARD, _OPTIMIZER, _OTHER = range(len(RANK_PHASES))


def beyond_chance(num: int, of: int, chance: float, tries: int = 1) -> bool:
    """Return whether `num` successes in `of` trials are less likely than `CHANCE`, as the best of `tries`
    attempts."""
    from scipy.special import bdtrc

    return num > 0 and tries * float(bdtrc(num - 1, of, chance)) <= CHANCE


def slow_ranks(own_ns: Ints) -> list[int]:
    """Return the ranks that are late, the slowest first: at most a quarter of all, or one; [] if none is.

    In most steps one of them is last, more often than among equal ranks; also if too few steps are known to
    tell.
    """
    total = own_ns.sum(axis=2)
    num_ranks, num_steps = total.shape
    order, most = np.argsort(-np.median(total, axis=1), kind="stable"), max(1, num_ranks // 4)
    for num in range(most, 0, -1):
        slow, others = total[order[:num]], total[order[num:]]
        middling = np.median(others, axis=1)
        # Steps are not independent: one process may be slower than equal processes in all steps.
        if np.median(slow, axis=1).min() - middling.max() <= np.ptp(middling):
            continue
        num_last, tries = int((slow.max(axis=0) > others.max(axis=0)).sum()), most * math.comb(num_ranks, num)
        if tries * (num / num_ranks) ** num_steps > CHANCE or beyond_chance(
            num_last, num_steps, num / num_ranks, tries
        ):
            return list(map(int, order[:num]))
    return []


def late(own_ns: Ints, rank: int) -> tuple[list[RankPhase], int]:
    """Return the phases in which a rank is later than the other ranks' median ([] if unknown), and the delay
    in ns.

    A phase is named if its delay is, in most steps, larger than the delay of all other phases together. If no
    phase is, the two phases with the longest delay are tested together: longer samples take longer in forward
    and backward.
    `own_ns`: (ranks, steps, phases).
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
    """Return a rank's intervals of work in each of `RANK_PHASES`: by its device, and by its host's issued
    work.

    None if forward and backward passes are not distinguishable. Collectives (start, end, queueing time) in
    which the rank is `free` are left out, but not before a backward pass has queued its last collective. A
    host that issues nothing until its device goes on may be waiting for the device: in a call, or because the
    queue is full.
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
    return [intervals.difference(one, blocked) for one in shown], [
        intervals.difference(one, waited) for one in host
    ]


def on_host(timeline: Timeline, window: tuple[int, int]) -> list[intervals.Set] | None:
    """Return the host's intervals in each of `RANK_PHASES`; None if forward and backward are not
    distinguishable."""
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
    # At equal times, ends are sorted before beginnings.
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
    # A backward pass that accumulates gradients is not followed by an update.
    onward = np.append(label[1:], _OTHER)
    label[(label == _OPTIMIZER) & ((onward == _INPUT) | (onward == _FORWARD))] = _OTHER
    edges = np.concatenate(([min(window[0], int(at_ns[0]))], at_ns, [max(window[1], int(at_ns[-1]))]))
    label = np.append(_OTHER, label)
    every = [
        intervals.union(edges[:-1][label == one], edges[1:][label == one]) for one in range(len(RANK_PHASES))
    ]
    return [intervals.clip(one, *window) for one in every]


def _passes(timeline: Timeline, forward_ns: Ints) -> tuple[Ints, Ints]:
    """Return begin and end of each backward pass: of its `backward` call, else of its first and last
    operator."""
    host = timeline.host
    calls = outermost(host, named(timeline, _BACKWARD_CALL, HostKind.PYTHON))
    if len(calls):
        return host.start_ns[calls], host.end_ns[calls]
    rows = named(timeline, BACKWARD, HostKind.OPERATOR)
    rows = rows[np.argsort(host.start_ns[rows], kind="stable")]
    firsts = np.flatnonzero(
        np.diff(np.searchsorted(forward_ns, host.start_ns[rows], side="right"), prepend=-1)
    )
    ends = np.maximum.reduceat(host.end_ns[rows], firsts) if len(firsts) else host.end_ns[rows]
    return host.start_ns[rows[firsts]], ends


def _on_device(timeline: Timeline, window: tuple[int, int], host: list[intervals.Set]) -> list[intervals.Set]:
    """Return the intervals of each phase: the phase that queued the running work, else the host's phase."""
    rows = np.flatnonzero(classes_of(timeline) != _COMMUNICATION)
    queued = queued_ns(timeline, rows)
    uploads = told_by_name(
        timeline.names, timeline.device.name[rows], lambda name: name.startswith("Memcpy HtoD")
    )
    inside = [(intervals.covered(one, queued, queued + 1) > 0) & ~uploads for one in host]
    # Computation hides concurrent memory copies, and running device work hides the host's delays.
    inside[_UPLOAD] |= uploads
    taken, found = intervals.union_of(timeline.device, rows[:0]), list(host)
    for phase in (_FORWARD, _BACKWARD, _OPTIMIZER, _OTHER, _INPUT, _UPLOAD):
        runs = intervals.union_of(timeline.device, rows[inside[phase]], window)
        found[phase] = intervals.difference(runs, taken)
        taken = intervals.union(*np.concatenate((taken, runs)).T)
    # While only communication runs, the host may be late with the next work: `blocked` decides.
    return [
        intervals.union(*np.concatenate((runs, intervals.difference(late, taken))).T)
        for runs, late in zip(found, host, strict=True)
    ]
