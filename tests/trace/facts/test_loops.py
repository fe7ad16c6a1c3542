"""Loops of the program, with the work of their turns."""

from __future__ import annotations

from typing import Any

import pytest

from dynotune.schema.trace_summary import Loop
from dynotune.trace.facts import loops

from ..made import Made

MAIN, NET, CELL = "train.py(5): main", "net.py(31): forward", "net.py(9): forward"
CALL = "torch/nn/modules/module.py(1782): _call_impl"
NODE = "autograd::engine::evaluate_function: "


def found(made: Made, *, until: int = 10_000, num_steps: int = 1) -> list[Loop]:
    return loops.loops(made.timeline(), (0, until), num_steps)


def unrolled(turns: int) -> Made:
    """Return a step whose `forward` calls a cell in each turn, of three operators in 60 ns, then one of 100
    ns."""
    made = Made().python(MAIN, 0, 10_000).python(NET, 0, 3_000)
    for at in range(0, 100 * turns, 100):
        made.python(CALL, at, at + 80).python(CELL, at + 5, at + 75)
        for number in range(3):
            made.operator("aten::linear", at + 10 + 20 * number, at + 30 + 20 * number, sequence=at + number)
            made.operator("aten::addmm", at + 12 + 20 * number, at + 20 + 20 * number, sequence=at + number)
    return made.operator("aten::cross_entropy", 2_800, 2_900)


def test_loop_is_found_with_its_turns_and_their_operators_when_a_function_repeats_a_call() -> None:
    (loop,) = found(unrolled(10))
    assert (loop.function, loop.callee, loop.turns, loop.calls, loop.launches) == (NET, CELL, 10, 1, 3)
    assert loop.share == pytest.approx(600 / 700) and loop.num_share == pytest.approx(30 / 31)


def test_few_calls_are_no_loop() -> None:
    assert found(unrolled(loops.LEAST_TURNS - 1)) == []


def test_backward_pass_of_a_turn_counts_for_the_turn() -> None:
    made = unrolled(10)
    for at in range(0, 1_000, 100):
        node = {"sequence": at, "is_backward": True}
        made.operator(f"{NODE}AddmmBackward0", 4_000 + at, 4_050 + at, **node)
    (loop,) = found(made)
    assert loop.launches == 4 and loop.share == pytest.approx(1_100 / 1_200)


def test_loop_of_operators_is_found_when_they_stand_in_the_function_itself() -> None:
    made = Made().python(MAIN, 0, 2_000)
    for at in range(0, 2_000, 100):
        made.operator("aten::sub_", at, at + 50)
    (loop,) = found(made, until=2_000, num_steps=2)
    assert (loop.function, loop.callee, loop.turns, loop.calls) == ("train.py(5): main", "aten::sub_", 10, 1)


def test_calls_of_modules_without_code_of_the_user_are_turns() -> None:
    made = Made().python(NET, 0, 2_000)
    for at in range(0, 1_000, 100):
        made.python(CALL, at, at + 80).python("torch/nn/modules/linear.py(9): forward", at + 5, at + 75)
        made.operator("aten::linear", at + 10, at + 30)
    assert [(loop.callee, loop.turns) for loop in found(made)] == [(CALL, 10)]


def test_turns_have_the_launches_and_time_of_the_device_when_there_is_one() -> None:
    made = Made().python(NET, 0, 2_000)
    for at in range(0, 1_000, 100):
        made.python(CELL, at, at + 80)
        for number in range(2):
            tied: dict[str, Any] = {"correlation": 1 + at + number}
            made.launch("cudaLaunchKernel", at + 10 + 20 * number, at + 20 + 20 * number, **tied)
            made.kernel("gemm", 2_000 + at + 20 * number, 2_010 + at + 20 * number, **tied)
    (loop,) = found(made)
    assert (loop.turns, loop.launches, loop.share) == (10, 2, 1)


def test_launches_of_a_backward_pass_on_its_own_thread_count_for_the_turn() -> None:
    made = Made().python(NET, 0, 2_000)
    for at in range(0, 1_000, 100):
        made.python(CELL, at, at + 80).operator("aten::mm", at + 10, at + 70, sequence=at)
        made.launch("cudaLaunchKernel", at + 20, at + 30, correlation=1 + at).kernel(
            "gemm", at + 30, at + 40, correlation=1 + at
        )
        node = {"sequence": at, "is_backward": True, "thread": "autograd"}
        made.operator(f"{NODE}MmBackward0", 5_000 + at, 5_080 + at, **node)
        made.launch("cudaLaunchKernel", 5_020 + at, 5_030 + at, correlation=5_001 + at, thread="autograd")
        made.kernel("gemm", 5_030 + at, 5_060 + at, correlation=5_001 + at)
    (loop,) = found(made)
    assert (loop.turns, loop.launches, loop.share) == (10, 2, 1)


def test_calls_beside_the_loop_do_not_change_its_turns() -> None:
    made = unrolled(16).python(CALL, 2_000, 2_500).operator("aten::linear", 2_010, 2_490)
    for at in range(0, 1_600, 100):
        made.operator("aten::index_add", at + 85, at + 95).operator("aten::eq", at + 96, at + 99)
    (loop,) = found(made)
    assert (loop.turns, loop.callee, loop.launches) == (16, CELL, 5)


def test_trace_without_stacks_has_no_loops() -> None:
    assert found(Made().operator("aten::mm", 0, 10)) == []
