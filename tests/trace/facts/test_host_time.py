from __future__ import annotations

import pytest

from dynotune.trace.facts.idle import launching_thread, working_thread
from dynotune.trace.summary import summarise
from dynotune.trace.timeline import UNKNOWN

from ..made import Made


def host(made: Made):
    (found,) = summarise([made.timeline()]).hosts
    return found


def test_operators_inside_the_loader_are_the_loaders_and_nested_ones_count_once():
    made = Made().annotation("enumerate(DataLoader)#_Iter.__next__", 0, 30).operator("aten::stack", 0, 20)
    made.operator("aten::linear", 40, 80).operator("aten::addmm", 50, 70).operator("aten::add", 90, 100)
    found = host(made)
    assert (found.loader_s, found.operator_s, found.communication_s) == (30e-9, 50e-9, 0)
    assert not found.loader_in_background


def test_collectives_of_the_cpu_count_while_no_operator_runs():
    made = Made().operator("aten::linear", 0, 50).operator("gloo:all_reduce", 30, 90, thread="gloo")
    found = host(made.operator("aten::add", 95, 100))
    assert found.communication_s == 40e-9
    assert found.operator_s == 55e-9


def test_code_that_was_generated_counts_as_operators():
    made = Made().operator("aten::add", 0, 10).operator("aten::add", 10, 20).operator("aten::add", 95, 100)
    assert host(made.annotation("## Call CompiledFxGraph abc ##", 30, 90)).operator_s == 85e-9


def test_batches_drawn_on_another_thread_are_said_to_be():
    made = Made().operator("aten::linear", 0, 10).operator("aten::linear", 60, 70)
    found = host(made.annotation("enumerate(DataLoader)#_Iter.__next__", 5, 65, thread="feeder"))
    assert found.loader_in_background
    assert found.loader_s == 50e-9


def test_the_first_gap_is_told_beside_what_gaps_before_later_steps_are():
    made = Made()
    for number, start in enumerate((0, 100, 200)):
        made.annotation(f"ProfilerStep#{number}", start, start + 100)
        made.launch("cudaLaunchKernel", start + 20, start + 30, correlation=number)
        made.kernel("gemm", start + 30, start + 80, correlation=number)
        made.call("cudaStreamSynchronize", start + 40, start + 81)
    (device,) = summarise([made.timeline()]).devices
    assert (device.first_gap.host_s, device.first_gap.sync_s) == (30e-9, 0)
    assert device.usual_gap.sync_s == 41e-9
    assert device.usual_gap.host_s == 9e-9


def trained(*, marked: bool) -> Made:
    """Three steps of a training, of which autograd's thread queues most; batches are drawn on the main
    thread."""
    made = Made()
    for number, at in enumerate((0, 100, 200)):
        if marked:
            made.annotation(f"ProfilerStep#{number}", at, at + 100)
        made.annotation("enumerate(DataLoader)#_Iter.__next__", at, at + 40)
        made.operator("aten::linear", at + 40, at + 50)
        made.operator("autograd::engine::evaluate_function: MmBackward0", at + 50, at + 90, thread="backward")
        for kernel in range(4):
            start, thread = at + 45 + 10 * kernel, "backward" if kernel else "main"
            made.launch("cudaLaunchKernel", start, start + 2, correlation=10 * number + kernel, thread=thread)
            made.kernel("gemm", start + 3, start + 8, correlation=10 * number + kernel)
    return made


@pytest.mark.parametrize("marked", [True, False])
def test_a_training_whose_backward_pass_queues_most_draws_its_batches_itself(marked):
    timeline = trained(marked=marked).timeline()
    assert timeline.threads[working_thread(timeline)] == "main"
    assert timeline.threads[launching_thread(timeline)] == "backward"
    found = host(trained(marked=marked))
    assert not found.loader_in_background
    assert found.loader_s == pytest.approx(120e-9)


def test_host_thread_is_autograds_when_only_autograd_works():
    made = Made().operator("autograd::engine::evaluate_function: MmBackward0", 0, 10, thread="backward")
    timeline = made.timeline()
    assert timeline.threads[working_thread(timeline)] == "backward"
    assert working_thread(Made().timeline()) == UNKNOWN
