from __future__ import annotations

import numpy as np

from dynotune.schema.trace_summary import Place
from dynotune.trace.facts.source_locations import Places

from ..made import Made

WINDOW = (0, 1000)


def at(made: Made, time: int, *, thread: str = "main", window: tuple[int, int] = WINDOW) -> Place:
    timeline = made.timeline()
    places = Places(timeline, window)
    return places.texts(places.at(np.array([timeline.threads.index(thread)]), np.array([time])))[0]


def mostly(made: Made, start: int, end: int, *, thread: str = "main") -> Place:
    timeline = made.timeline()
    places = Places(timeline, WINDOW)
    found = places.mostly(*(np.array([value]) for value in (timeline.threads.index(thread), start, end)))
    return places.texts(found)[0]


def test_the_place_is_the_users_innermost_function_with_the_outermost_operator_in_it():
    made = (
        Made()
        .python("train.py(1): main", 0, 900)
        .annotation("epoch", 5, 800)
        .python("train.py(31): step", 10, 500)
    )
    made.python("torch/nn/modules/module.py(1739): _call_impl", 20, 400).operator("aten::linear", 30, 300)
    made.operator("aten::addmm", 40, 200).launch("cudaLaunchKernel", 50, 60, correlation=1)
    assert at(made, 55) == Place("train.py(31): step", "aten::linear", "cudaLaunchKernel")
    assert at(made, 70) == Place("train.py(31): step", "aten::linear", "")
    assert at(made, 450) == Place("train.py(31): step", "", "")
    assert at(made, 600) == Place("train.py(1): main", "epoch", "")
    assert at(made, 950) == Place()


def test_without_a_function_of_the_users_it_is_the_innermost_of_a_library():
    made = (
        Made()
        .python("torch/optim/adam.py(100): step", 0, 500)
        .python("torch/optim/adam.py(300): _adam", 10, 400)
    )
    made.python("<built-in method add of Tensor object at 0x1>", 20, 300).python("nn.Module: Net_0", 30, 200)
    assert at(made.operator("aten::add", 40, 100), 50) == Place(
        "torch/optim/adam.py(300): _adam", "aten::add"
    )


def test_without_stacks_the_operator_is_the_outermost():
    made = (
        Made()
        .annotation("## forward ##", 0, 500)
        .operator("aten::linear", 10, 100)
        .operator("aten::mm", 20, 90)
    )
    assert at(made, 50) == Place(operator="## forward ##")


def test_steps_of_the_profiler_and_what_is_around_everything_are_no_places():
    made = (
        Made()
        .annotation("ProfilerStep#3", 0, 300)
        .annotation("training", 0, 950)
        .operator("aten::mm", 100, 200)
    )
    assert at(made, 150) == Place(operator="aten::mm")
    assert at(made, 250) == Place()


def test_backward_is_placed_by_its_operator_and_by_the_function_that_called_it():
    made = (
        Made()
        .python("train.py(31): step", 0, 500)
        .python("torch/autograd/graph.py(800): _engine_run", 100, 400)
    )
    made.operator("autograd::engine::evaluate_function: MmBackward0", 200, 300, thread="autograd")
    made.operator("aten::mm", 210, 290, thread="autograd")
    place = Place("train.py(31): step", "autograd::engine::evaluate_function: MmBackward0")
    assert at(made, 250, thread="autograd") == place


def test_a_call_without_duration_has_a_place():
    timeline = Made().operator("aten::mm", 0, 100).call("cudaLaunchKernel", 50, 50, correlation=1).timeline()
    places = Places(timeline, WINDOW)
    assert places.texts(places.of_calls(np.array([1]))) == [
        Place(operator="aten::mm", call="cudaLaunchKernel")
    ]


def test_a_driver_call_inside_a_runtime_call_goes_by_the_latters_name():
    made = (
        Made().call("cudaLaunchKernel", 0, 100, correlation=1).call("cuLaunchKernel", 10, 90, correlation=1)
    )
    assert at(made, 50).call == "cudaLaunchKernel"


def test_a_stretch_is_placed_where_most_of_it_was_spent():
    made = (
        Made()
        .python("train.py(31): step", 0, 1000)
        .operator("aten::a", 100, 130)
        .operator("aten::b", 150, 200)
    )
    assert mostly(made, 100, 200) == Place("train.py(31): step", "aten::b")
    assert mostly(made, 100, 180) == Place("train.py(31): step", "aten::a")
    assert mostly(made, 100, 131) == Place("train.py(31): step", "aten::a")
    assert mostly(made, 110, 300) == Place("train.py(31): step")


def test_pieces_of_one_place_count_together():
    made = Made()
    for start in (0, 40, 80):
        made.operator("aten::a", start, start + 15)
    made.operator("aten::b", 20, 38)
    assert mostly(made, 0, 100) == Place(operator="aten::a")


def test_a_stretchs_call_is_the_one_that_took_more_than_half_of_it():
    made = Made().operator("aten::a", 0, 100).call("cudaMalloc", 10, 40).call("cudaMalloc", 50, 80)
    assert mostly(made, 0, 100) == Place(operator="aten::a", call="cudaMalloc")
    assert mostly(made, 30, 60) == Place(operator="aten::a", call="cudaMalloc")
    assert mostly(made, 40, 60) == Place(operator="aten::a")


def test_many_stretches_on_several_threads_are_placed_at_once():
    made = (
        Made()
        .operator("aten::a", 0, 100)
        .operator("aten::b", 100, 200)
        .operator("aten::c", 0, 200, thread="t")
    )
    timeline = made.timeline()
    places = Places(timeline, WINDOW)
    threads = [timeline.threads.index(name) for name in ("main", "t", "main")]
    found = places.mostly(np.array([*threads, -1]), np.array([0, 0, 120, 0]), np.array([110, 50, 130, 10]))
    assert [place.operator for place in places.texts(found)] == ["aten::a", "aten::c", "aten::b", ""]


def test_the_deepest_function_of_a_stretch_holds_more_than_half_of_it():
    made = Made().python("train.py(31): step", 0, 1000).python("PIL/Image.py(5): open", 100, 500)
    made.python("PIL/Image.py(9): resize", 100, 200).python("PIL/Image.py(9): resize", 300, 490)
    timeline = made.timeline()
    places = Places(timeline, WINDOW)
    assert places.deepest(0, 100, 500) == "PIL/Image.py(9): resize"
    assert places.deepest(0, 100, 700) == "PIL/Image.py(5): open"
    assert places.deepest(0, 0, 1000) == "train.py(31): step"
    assert Places(Made().operator("a", 0, 10).timeline(), WINDOW).deepest(0, 0, 10) == ""
