"""Who calls each operator."""

from __future__ import annotations

import numpy as np

from dynotune.trace.facts import callers, operators
from dynotune.trace.timeline import HostKind

from ..made import Made

USERS, LIBRARY = "/home/me/train.py(7): step", "torch/nn/functional.py(3): scale"


def of(made: Made) -> list[str]:
    """The caller of each operator, in order of time."""
    timeline = made.timeline()
    rows = np.flatnonzero(timeline.host.kind == HostKind.OPERATOR)
    return [callers.CALLERS[index] for index in callers.callers(timeline, rows).tolist()]


def test_operators_are_the_programs_when_a_users_function_calls_a_library() -> None:
    made = Made().python(USERS, 0, 100).python(LIBRARY, 20, 40)
    made.operator("aten::mul", 5, 10).operator("aten::softmax", 25, 30).operator("aten::_softmax", 26, 29)
    assert of(made) == ["program"] * 3


def test_operators_are_the_librarys_when_it_calls_them_many_times_in_one_call() -> None:
    made = (
        Made().python(USERS, 0, 10_000).python(LIBRARY, 100, 9_000).python("torch/x.py(1): inner", 200, 8_000)
    )
    for at in range(callers.FEW_PER_CALL + 1):
        made.operator("aten::add", 300 + 100 * at, 350 + 100 * at)
    made.operator("aten::mul", 9_500, 9_600)
    assert of(made) == ["library"] * (callers.FEW_PER_CALL + 1) + ["program"]


def test_operators_are_the_librarys_when_another_operator_calls_them_many_times() -> None:
    made = Made().python(USERS, 0, 10_000).operator("aten::bmm", 100, 9_000)
    for at in range(callers.FEW_PER_CALL + 1):
        made.operator("aten::select", 300 + 100 * at, 350 + 100 * at)
    made.operator("aten::mul", 9_500, 9_600)
    assert of(made) == ["program"] + ["library"] * (callers.FEW_PER_CALL + 1) + ["program"]


def test_a_library_that_nobody_of_the_users_calls_is_a_library() -> None:
    assert of(Made().python(LIBRARY, 0, 10).operator("aten::add", 1, 2)) == ["library"]


def test_optimizers_loaders_backward_passes_and_generated_code_have_their_own() -> None:
    made = Made().python(USERS, 0, 1_000)
    made.annotation("Optimizer.step#SGD.step", 0, 100).operator("aten::add_", 10, 20)
    made.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 100, 200)
    made.operator("aten::stack", 110, 120)
    made.operator("autograd::engine::evaluate_function: MulBackward0", 200, 300).operator(
        "aten::mul", 210, 220
    )
    made.operator("CompiledFunction", 300, 400).operator("aten::addmm", 310, 320)
    assert of(made) == ["optimizer", "loader", "backward", "backward", "compiled", "compiled"]


def test_a_closures_operators_are_not_the_optimizers() -> None:
    made = Made().python(USERS, 0, 1_000).annotation("Optimizer.step#SGD.step", 0, 100)
    made.operator("aten::mm", 10, 20).operator("autograd::engine::evaluate_function: MmBackward0", 30, 60)
    made.operator("aten::mul", 40, 50).operator("aten::add_", 70, 80)
    assert of(made) == ["program", "backward", "backward", "optimizer"]


def test_without_stacks_the_caller_is_unknown() -> None:
    assert of(Made().operator("aten::add", 1, 2)) == ["unknown"]
    made = Made().python(USERS, 0, 10).operator("aten::add", 1, 2).operator("aten::mul", 1, 2, thread="other")
    assert of(made) == ["program", "unknown"]


def test_operators_are_counted_by_their_caller() -> None:
    made = Made().python(USERS, 0, 100).operator("aten::add", 0, 10)
    made.annotation("Optimizer.step#SGD.step", 50, 100).operator("aten::add", 60, 90)
    (row,) = operators.facts(made.timeline(), (0, 100))
    assert {caller: (called.num, called.self_s) for caller, called in row.callers.items()} == {
        "program": (1, 10e-9),
        "optimizer": (1, 30e-9),
    }


def optimizer(num: int, name: str = "aten::add_", length: int = 5_000) -> Made:
    """Three steps of an optimizer that calls so many operators."""
    made = Made()
    for step in range(3):
        begin = step * 100_000_000
        made.annotation(f"ProfilerStep#{step}", begin, begin + 100_000_000)
        made.operator("aten::mm", begin + 10, begin + 50_000_000)
        made.annotation("Optimizer.step#SGD.step", begin + 60_000_000, begin + 90_000_000)
        made.operator("aten::_fused_sgd_", begin + 60_000_000, begin + 70_000_000)
        for at in range(num):
            start = begin + 70_000_000 + at * 100_000
            made.operator(name, start, start + length)
    return made
