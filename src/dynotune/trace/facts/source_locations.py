"""Find where in the program an event happened: the user's function, the operator in the function, the CUDA
call.

Work of a backward pass happened at the function whose forward pass made it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynotune.schema.trace_summary import Place
from dynotune.trace.facts.host_names import STEP
from dynotune.trace.facts.nesting import Nesting, depths, nest, outermost
from dynotune.trace.facts.origins import backward_nodes, forwards
from dynotune.trace.facts.source_files import has_file, is_users
from dynotune.trace.timeline import UNKNOWN, HostKind, Ints, Timeline

AROUND_SHARE = 0.9
"""Largest share of the time window for an annotation to be a place: one that covers more is the whole
program."""


@dataclass(frozen=True, slots=True)
class PlaceRows:
    """Code places, one per row, as int64 indices into `Timeline.names`; UNKNOWN for a name that the trace
    lacks."""

    function: Ints
    operator: Ints
    call: Ints

    @staticmethod
    def none(num: int) -> PlaceRows:
        return PlaceRows(*(np.full(num, UNKNOWN, dtype=np.int64) for _ in range(3)))

    def of(self, rows: Ints) -> PlaceRows:
        return PlaceRows(self.function[rows], self.operator[rows], self.call[rows])

    def put(self, rows: Ints | NDArray[np.bool_], other: PlaceRows) -> None:
        self.function[rows] = other.function
        self.operator[rows] = other.operator
        self.call[rows] = other.call


class Places:
    """Code places in a time window. The nesting of a thread's spans is computed when it is first needed."""

    def __init__(self, timeline: Timeline, window: tuple[int, int]) -> None:
        self.timeline, self.window = timeline, window
        self._users = np.array([is_users(name) for name in timeline.names], dtype=bool)
        self._any = np.array([has_file(name) for name in timeline.names], dtype=bool)
        self._threads: dict[tuple[int, bool], _Thread] = {}
        self._made: Ints | None = None
        host = timeline.host
        threads, num = np.unique(host.thread[host.kind == HostKind.PYTHON], return_counts=True)
        self._num_functions = dict(zip(threads.tolist(), num.tolist(), strict=True))

    def at(self, thread: Ints, time_ns: Ints) -> PlaceRows:
        """Return for each pair of a thread and a time the code place of the thread at the time."""
        return self._each(thread, lambda spans, of_thread: spans.at(time_ns[of_thread]))

    def of_spans(self, rows: Ints) -> PlaceRows:
        """Return the code place in which each of the given host spans begins."""
        host = self.timeline.host
        return self.at(host.thread[rows].astype(np.int64), host.start_ns[rows])

    def of_calls(self, rows: Ints) -> PlaceRows:
        """Return the code place of each of the given host spans, all of which are CUDA calls (CALL)."""
        found = self.of_spans(rows)
        return PlaceRows(found.function, found.operator, self.timeline.host.name[rows].astype(np.int64))

    def mostly(self, thread: Ints, start_ns: Ints, end_ns: Ints) -> PlaceRows:
        """Return for each interval the code place at which the interval's thread spent most of the time.

        The place's CUDA call is the call that took most of the interval, if that is more than half.
        """
        return self._each(
            thread, lambda spans, of_thread: spans.mostly(start_ns[of_thread], end_ns[of_thread])
        )

    def deepest(self, thread: int, start_ns: int, end_ns: int) -> str:
        """Return for each interval the Python function (of user or library) deepest in the stack for over
        half of it.

        "" if no stacks were recorded.
        """
        spans = self._thread(thread, users=False)
        rows = spans.spans.rows[spans.is_function]
        host = self.timeline.host
        rows = rows[(host.start_ns[rows] < end_ns) & (host.end_ns[rows] > start_ns)]
        if not len(rows):
            return ""
        nesting = _nested(self.timeline, rows)
        names, of_row = np.unique(host.name[rows], return_inverse=True)
        overlap = np.minimum(nesting.end_ns, end_ns) - np.maximum(nesting.start_ns, start_ns)
        held = np.bincount(of_row, weights=overlap)
        least_depth = np.full(len(names), len(rows))
        np.minimum.at(least_depth, of_row, depths(nesting))
        deepest = np.argmax(np.where(2 * held > end_ns - start_ns, least_depth, UNKNOWN))
        return self.timeline.names[names[deepest]] if 2 * held[deepest] > end_ns - start_ns else ""

    def texts(self, found: PlaceRows) -> list[Place]:
        """Return the code places as `Place` texts. Equal rows share one object."""
        rows = np.column_stack((found.function, found.operator, found.call))
        distinct, of_row = np.unique(rows, axis=0, return_inverse=True)
        names = [*self.timeline.names, ""]
        places = [Place(*(names[index] for index in row)) for row in distinct.tolist()]
        return [places[index] for index in of_row.ravel().tolist()]

    def _each(self, thread: Ints, ask: Callable[[_Thread, Ints], PlaceRows]) -> PlaceRows:
        """Compute each thread's rows: among the user's functions, then among all functions for rows without
        one."""
        found = PlaceRows.none(len(thread))
        for one in np.unique(thread[thread != UNKNOWN]).tolist():
            of_thread = np.flatnonzero(thread == one)
            found.put(of_thread, ask(self._thread(one, users=True), of_thread))
            without = of_thread[found.function[of_thread] == UNKNOWN]
            if len(without) and one in self._num_functions:
                found.put(without, ask(self._thread(one, users=False), without))
            elif len(without) and self._num_functions:
                # Autograd's threads have no stack: the function that called `backward` waits on its own
                # thread.
                waiting = max(self._num_functions, key=lambda thread: self._num_functions[thread])
                found.function[without] = ask(self._thread(waiting, users=True), without).function
        return found

    def _thread(self, thread: int, *, users: bool) -> _Thread:
        if (thread, users) not in self._threads:
            chosen = self._users if users else self._any
            made = self._made_in() if users else np.full(len(self.timeline.host), UNKNOWN, dtype=np.int64)
            self._threads[thread, users] = _Thread(self.timeline, thread, self.window, chosen, made)
        return self._threads[thread, users]

    def _made_in(self) -> Ints:
        """Return for each host span of a node's backward pass the user's function that made the node; else
        UNKNOWN."""
        if self._made is None:
            host = self.timeline.host
            self._made = np.full(len(host), UNKNOWN, dtype=np.int64)
            nodes = backward_nodes(self.timeline)
            forward = forwards(self.timeline, nodes)
            nodes, forward = nodes[forward != UNKNOWN], forward[forward != UNKNOWN]
            if len(nodes):
                functions = np.flatnonzero((host.kind == HostKind.PYTHON) & self._users[host.name])
                functions = functions[host.thread[functions] == host.thread[forward[0]]]
                around = _nested(self.timeline, functions)
                inside = _through(around.rows, around.innermost(host.start_ns[forward]))
                self._made[nodes] = _through(host.name.astype(np.int64), inside)
        return self._made


class _Thread:
    """One thread's functions of one kind, with the operators and annotations inside and around these
    functions."""

    def __init__(
        self,
        timeline: Timeline,
        thread: int,
        window: tuple[int, int],
        chosen: NDArray[np.bool_],
        made: Ints,
    ) -> None:
        host = timeline.host
        until = int(np.searchsorted(host.start_ns, window[1]))
        own = np.flatnonzero((host.thread[:until] == thread) & (host.end_ns[:until] >= window[0]))
        is_step = np.array([STEP.match(name) is not None for name in timeline.names], dtype=bool)
        kind, name = host.kind[own], host.name[own]
        # A profiler step starts in one call of `step` and ends in the next call, so its span encloses no span
        # properly. A span around the whole time window is not a place either.
        inside = np.minimum(host.end_ns[own], window[1]) - np.maximum(host.start_ns[own], window[0])
        around = is_step[name] | (inside >= AROUND_SHARE * (window[1] - window[0]))
        operators = (kind == HostKind.OPERATOR) | ((kind == HostKind.ANNOTATION) & ~around)
        functions = (kind == HostKind.PYTHON) & chosen[name]
        self.name = host.name.astype(np.int64)
        self.calls = _nested(timeline, outermost(host, own[kind == HostKind.CALL]))
        self.spans = _nested(timeline, own[operators | functions])
        self.is_function = host.kind[self.spans.rows] == HostKind.PYTHON
        parent = self.spans.parent
        outer = ~self.is_function & ((parent == UNKNOWN) | _through(self.is_function, parent, missing=False))
        operator = self.spans.nearest(outer | self.is_function)
        self.operator = np.where(_through(self.is_function, operator, missing=True), UNKNOWN, operator)
        own = self._names(self.spans, self.spans.nearest(self.is_function))
        of_forward = _through(made, _through(self.spans.rows, self.operator))
        self.function = np.where(of_forward == UNKNOWN, own, of_forward)
        heads = np.flatnonzero(self.is_function | outer)
        self.edges = np.sort(np.concatenate((self.spans.start_ns[heads], self.spans.end_ns[heads])))

    def at(self, time_ns: Ints) -> PlaceRows:
        inside = self.spans.innermost(time_ns)
        call = self.calls.innermost(time_ns)
        return PlaceRows(
            _through(self.function, inside),
            self._names(self.spans, _through(self.operator, inside)),
            self._names(self.calls, call),
        )

    def mostly(self, start_ns: Ints, end_ns: Ints) -> PlaceRows:
        # Cut the intervals wherever the place may change: the place at a piece's start holds for the whole
        # piece.
        first = np.searchsorted(self.edges, start_ns, side="right")
        owner, edge = _ranges(first, np.searchsorted(self.edges, end_ns, side="left"))
        piece_of = np.concatenate((np.arange(len(start_ns)), owner))
        begins = np.concatenate((start_ns, self.edges[edge]))
        order = np.lexsort((begins, piece_of))
        piece_of, begins = piece_of[order], begins[order]
        last = np.append(piece_of[1:] != piece_of[:-1], True)
        ends = np.where(last, end_ns[piece_of], np.append(begins[1:], 0))
        inside = self.spans.innermost(begins)
        function, operator = _through(self.function, inside), _through(self.operator, inside)
        operator = self._names(self.spans, operator)
        base = len(self.name) + 2
        key, _ = _largest(piece_of, (function + 1) * base + operator + 1, ends - begins, len(start_ns))
        called, overlap = self._called(start_ns, end_ns)
        call = np.where(2 * overlap > end_ns - start_ns, called, UNKNOWN)
        return PlaceRows(key // base - 1, key % base - 1, call)

    def _called(self, start_ns: Ints, end_ns: Ints) -> tuple[Ints, Ints]:
        """Return the CUDA call that took most of each interval, and the nanoseconds that the call took
        there."""
        first = np.searchsorted(self.calls.end_ns, start_ns, side="right")
        owner, row = _ranges(first, np.searchsorted(self.calls.start_ns, end_ns))
        begins = np.maximum(self.calls.start_ns[row], start_ns[owner])
        overlap = np.minimum(self.calls.end_ns[row], end_ns[owner]) - begins
        return _largest(owner, self._names(self.calls, row), overlap, len(start_ns))

    def _names(self, nesting: Nesting, position: Ints) -> Ints:
        return _through(self.name, _through(nesting.rows, position))


def _nested(timeline: Timeline, rows: Ints) -> Nesting:
    return nest(rows, timeline.host.start_ns[rows], timeline.host.end_ns[rows])


def _through(values: NDArray[Any], index: Ints, missing: int | bool = UNKNOWN) -> NDArray[Any]:
    """Return `values[index]`, with `missing` wherever the index is UNKNOWN."""
    found = np.full(len(index), missing, dtype=values.dtype)
    known = index != UNKNOWN
    found[known] = values[index[known]]
    return found


def _ranges(first: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return all integers of the ranges [first, end), and for each integer the index of its range."""
    num = np.maximum(end - first, 0)
    owner = np.repeat(np.arange(len(num)), num)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(num) - num, num) + first[owner]


def _largest(owner: Ints, key: Ints, weight: Ints, num_owners: int) -> tuple[Ints, Ints]:
    """Return each owner's key with the largest summed weight, and this sum; UNKNOWN and 0 for owners without
    a key."""
    best, total = np.full(num_owners, UNKNOWN, dtype=np.int64), np.zeros(num_owners, dtype=np.int64)
    if not len(owner):
        return best, total
    order = np.lexsort((key, owner))
    owner, key, weight = owner[order], key[order], weight[order]
    first = np.flatnonzero(np.concatenate(([True], (owner[1:] != owner[:-1]) | (key[1:] != key[:-1]))))
    owner, key, summed = owner[first], key[first], np.add.reduceat(weight, first)
    order = np.lexsort((-key, summed, owner))
    best[owner[order]], total[owner[order]] = key[order], summed[order]
    return best, total
