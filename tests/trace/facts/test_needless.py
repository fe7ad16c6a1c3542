"""Forward passes that run again in the backward pass, and values that no gradient flows through."""

from __future__ import annotations

import pytest

from dynotune.schema.trace_summary import Ungraded
from dynotune.trace.facts import needless

from ..made import Made

MAIN, FORWARD, NORMALIZE = "train.py(5): main", "net.py(9): forward", "net.py(30): normalize"
MODULE, LINEAR, CALL = "nn.Module: Net_0", "nn.Module: Linear_0", "torch/nn/modules/linear.py(9): forward"
NODE = "autograd::engine::evaluate_function: "
WINDOW = (0, 1_000)


def step() -> Made:
    """Return a step of 1,000 ns in which `normalize` takes 300 ns without a gradient, and a product 100 ns
    with one."""
    made = Made().python(MAIN, 0, 1_000).python(MODULE, 0, 500).python(FORWARD, 5, 495)
    made.python(NORMALIZE, 10, 350).operator("aten::matmul", 20, 320, sequence=4)
    made.operator("aten::mm", 30, 310, sequence=4)
    made.operator("aten::mm", 360, 460, sequence=4)
    return made.operator(f"{NODE}MmBackward0", 600, 800, sequence=4, is_backward=True)


def test_values_without_a_gradient_are_found_at_the_function_that_computes_them() -> None:
    assert needless.ungraded(step().timeline(), WINDOW) == [Ungraded(function=NORMALIZE, share=0.3)]


def test_time_of_the_device_counts_when_there_is_one() -> None:
    made = step().launch("cudaLaunchKernel", 40, 50, correlation=1).kernel("gemm", 60, 160, correlation=1)
    made.launch("cudaLaunchKernel", 370, 380, correlation=2).kernel("gemm", 400, 500, correlation=2)
    (row,) = needless.ungraded(made.timeline(), WINDOW)
    assert row.share == pytest.approx(0.5)


@pytest.mark.parametrize(
    "made",
    [
        step().operator("aten::rand", 470, 490, sequence=5),
        step().operator("aten::eye", 470, 490),
        step().operator("aten::argmax", 900, 990, sequence=5),
        step().python(LINEAR, 462, 494).python(CALL, 463, 493).operator("aten::linear", 470, 490, sequence=5),
    ],
    ids=["random numbers", "without gradients", "outside of modules", "in a module of torch"],
)
def test_other_values_do_not_count(made: Made) -> None:
    assert needless.ungraded(made.timeline(), WINDOW) == [Ungraded(function=NORMALIZE, share=0.3)]


def test_nothing_is_found_without_a_backward_pass() -> None:
    made = Made().python(MODULE, 0, 500).python(FORWARD, 5, 495).operator("aten::mm", 30, 310, sequence=4)
    assert needless.ungraded(made.timeline(), WINDOW) == []


def test_modules_inside_the_backward_pass_run_again() -> None:
    made = step().python(MODULE, 610, 710).python(LINEAR, 620, 660)
    assert needless.recomputed(made.timeline(), WINDOW) == pytest.approx(0.1)
    assert needless.recomputed(step().timeline(), WINDOW) == 0


def test_recomputation_is_not_known_without_stacks() -> None:
    assert needless.recomputed(Made().operator("aten::mm", 0, 10).timeline(), WINDOW) is None
