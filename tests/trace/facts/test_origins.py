"""Work of a backward pass is tied to the forward operator that made it, and has that operator's place."""

from __future__ import annotations

import numpy as np
import pytest

from dynotune.schema.trace_summary import Place
from dynotune.trace.facts.origins import backward_nodes, forwards
from dynotune.trace.facts.source_locations import Places
from dynotune.trace.timeline import UNKNOWN

from ..made import Made

MAIN, EXPERTS, HEAD = "train.py: main", "net.py(9): experts", "net.py(30): head"
NODE = "autograd::engine::evaluate_function: "


def stepped(*, thread: str = "main") -> Made:
    """Return a step whose backward pass runs on a thread; `head` makes node 8, and `experts` makes node 7."""
    made = Made().python(MAIN, 0, 1_000)
    made.python(EXPERTS, 10, 100).operator("aten::linear", 20, 60, sequence=7).operator(
        "aten::mm", 30, 50, sequence=7
    )
    made.python(HEAD, 100, 200).operator("aten::mm", 110, 150, sequence=8)
    for at, number in ((500, 8), (600, 7)):
        made.operator(f"{NODE}MmBackward0", at, at + 90, sequence=number, is_backward=True, thread=thread)
        made.operator("MmBackward0", at + 10, at + 80, sequence=number, is_backward=True, thread=thread)
        made.operator("aten::mm", at + 20, at + 70, thread=thread)
    return made


def test_node_is_tied_to_the_last_operator_with_its_number_when_operators_nest() -> None:
    timeline = stepped().timeline()
    nodes = backward_nodes(timeline)
    assert timeline.host.start_ns[nodes].tolist() == [500, 600]
    assert timeline.host.start_ns[forwards(timeline, nodes)].tolist() == [110, 30]


def test_node_has_no_forward_operator_when_that_was_not_recorded() -> None:
    timeline = stepped().operator(f"{NODE}AddBackward0", 700, 710, sequence=3, is_backward=True).timeline()
    assert forwards(timeline, backward_nodes(timeline))[-1] == UNKNOWN


def test_node_has_no_forward_operator_when_two_threads_number_their_nodes() -> None:
    timeline = stepped().operator("aten::mm", 20, 30, sequence=7, thread="other").timeline()
    assert (forwards(timeline, backward_nodes(timeline)) == UNKNOWN).all()


@pytest.mark.parametrize("thread", ["main", "autograd"])
def test_work_of_a_backward_pass_is_placed_at_the_function_that_made_it(thread: str) -> None:
    timeline = stepped(thread=thread).timeline()
    places, number = Places(timeline, (0, 1_000)), timeline.threads.index(thread)
    threads, times = np.full(3, number), np.array([530, 605, 630])
    at = [Place(HEAD, f"{NODE}MmBackward0"), *[Place(EXPERTS, f"{NODE}MmBackward0")] * 2]
    assert places.texts(places.at(threads, times)) == at
    mostly = places.mostly(threads[:1], np.array([560]), np.array([690]))
    assert places.texts(mostly) == [Place(EXPERTS, f"{NODE}MmBackward0")]


def test_work_between_nodes_stays_at_the_function_that_began_the_backward_pass() -> None:
    timeline = stepped().timeline()
    places = Places(timeline, (0, 1_000))
    assert places.texts(places.at(np.zeros(1, dtype=np.int64), np.array([595]))) == [Place(MAIN)]
