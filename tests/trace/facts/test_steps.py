from __future__ import annotations

from collections.abc import Callable

import pytest

from dynotune.trace.facts import steps
from dynotune.trace.facts.steps import Steps

from ..made import Made

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
ADAM = "Optimizer.step#Adam.step"


class Program:
    """Writes what a program does, one thing after the other."""

    def __init__(self, *, launches: bool = True, operators: bool = True) -> None:
        self.made, self.now, self.num = Made(), 0, 0
        self.launches, self.operators = launches, operators

    def run(self, *names: str, thread: str = "main") -> Program:
        """Operators, each of which launches one kernel named after it."""
        for name in names:
            start, self.now, self.num = self.now, self.now + 10, self.num + 1
            if self.operators:
                self.made.operator(name, start, start + 10, thread=thread)
            if self.launches:
                self.made.launch(
                    "cudaLaunchKernel", start + 2, start + 5, correlation=self.num, thread=thread
                )
            correlation = self.num if self.launches else -1
            self.made.kernel(f"kernel of {name}", start + 6, start + 9, correlation=correlation)
        return self

    def annotate(self, name: str, *names: str) -> Program:
        start = self.now
        self.run(*names)
        self.now += 2
        self.made.annotation(name, start, self.now - 1)
        return self

    def graph(self, num_kernels: int = 5) -> Program:
        start, self.num = self.now, self.num + 1
        self.made.launch("cudaGraphLaunch", start, start + 5, correlation=self.num)
        for index in range(num_kernels):
            self.made.kernel(f"kernel {index}", start + 6 + index, start + 7 + index, correlation=self.num)
        self.now += 20
        return self

    def find(self) -> Steps:
        return steps.find(self.made.timeline())


BLOCK = ("layer_norm", "linear", "softmax", "bmm", "dropout", "add")
MODEL = ("embedding", *BLOCK * 12, "head", "loss")


def starts(found: Steps) -> list[int]:
    return found.start_ns.tolist()


def lengths(found: Steps) -> list[int]:
    return (found.end_ns - found.start_ns).tolist()


def test_steps_are_those_the_profiler_marked():
    made = (
        Made()
        .annotation("ProfilerStep#7", 100, 200)
        .annotation("ProfilerStep#8", 201, 290)
        .operator("a", 0, 400)
    )
    found = steps.find(made.timeline())
    assert (found.source, starts(found), found.end_ns.tolist()) == ("profiler", [100, 201], [200, 290])


def test_steps_marked_on_several_threads_count_once():
    made = Made()
    for number, start in enumerate((0, 100, 200)):
        made.annotation(f"ProfilerStep#{number}", start, start + 90)
        made.annotation(f"ProfilerStep#{number}", start + 1, start + 89)
        if number:
            made.annotation(f"ProfilerStep#{number}", start + 3, start + 95, thread="autograd")
    assert starts(steps.find(made.timeline())) == [0, 100, 200]


def test_steps_of_old_profilers_are_all_named_alike():
    made = Made().operator("ProfilerStep*", 0, 90).operator("ProfilerStep*", 100, 190)
    assert starts(steps.find(made.timeline())) == [0, 100]


def test_one_marked_step_is_a_step():
    assert len(steps.find(Made().annotation("ProfilerStep#3", 0, 90).timeline())) == 1


def test_steps_go_from_batch_to_batch_where_an_optimizer_steps_once_a_batch():
    program = Program()
    for _ in range(4):
        program.annotate(LOADER).run("forward", "backward").annotate(ADAM, "foreach_add")
    found = program.find()
    assert (found.source, starts(found)) == ("repetition", [0, 34, 68, 102])
    assert lengths(found) == [34, 34, 34, 33]


def test_batches_that_gather_for_one_optimizer_step_are_one_step():
    program = Program()
    for _ in range(3):
        for _ in range(4):
            program.annotate(LOADER).run("forward", "backward")
        program.annotate(ADAM, "foreach_add")
    assert lengths(program.find()) == [100, 100, 99]


def test_two_optimizers_that_step_in_turn_are_one_step():
    program = Program()
    for _ in range(4):
        program.run("forward", "backward").annotate(ADAM, "foreach_add").annotate(
            "Optimizer.step#EMA.step", "lerp"
        )
    found = program.find()
    assert len(found) == 4
    assert set(lengths(found)) <= {43, 44}


def test_an_epochs_last_look_at_its_loader_is_no_step():
    program = Program()
    for _ in range(2):
        for _ in range(3):
            program.annotate(LOADER).run("forward", "argmax")
        program.annotate(LOADER)
    assert len(program.find()) == 6


def test_fewer_than_three_optimizer_steps_are_no_steps_and_nor_are_the_layers_inside():
    program = Program()
    for _ in range(2):
        program.run(*MODEL).annotate(ADAM, "foreach_add")
    assert program.find().source is None


def test_one_call_of_a_model_is_no_step_and_nor_are_its_layers():
    program = Program().run(*BLOCK * 12)
    program.made.python("nn.Module: Net_0", 0, program.now)
    assert program.find().source is None


def test_calls_of_a_model_are_steps_where_nothing_else_marks_them():
    program = Program()
    for _ in range(4):
        start = program.now
        program.run(*BLOCK * 3)
        program.made.python("nn.Module: Net_0", start, program.now).python(
            "nn.Module: Linear_0", start, start + 10
        )
    found = program.find()
    assert (found.source, lengths(found)) == ("repetition", [180] * 4)


SOURCES: dict[str, Callable[[], Program]] = {
    "operators": Program,
    "launches": lambda: Program(operators=False),
    "kernels": lambda: Program(operators=False, launches=False),
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_loop_without_marks_is_found_by_its_work(source: str):
    program = SOURCES[source]()
    for _ in range(5):
        program.run(*MODEL)
    found = program.find()
    assert (found.source, len(found)) == ("repetition", 5)
    assert set(lengths(found)) <= {750, 749, 743}


@pytest.mark.parametrize("source", SOURCES)
def test_a_loop_over_layers_inside_few_steps_is_none(source: str):
    for num_steps in (1, 2):
        program = SOURCES[source]()
        for _ in range(num_steps):
            program.run(*MODEL)
        assert program.find().source is None


def test_large_layers_between_a_small_beginning_and_end_are_no_steps_either():
    layer = [f"operator {name}" for name in "abcdefghijklmnopqrstuvwxyz"]
    program = Program()
    for _ in range(2):
        program.run("embedding", *layer * 8, "head")
    assert program.find().source is None


@pytest.mark.parametrize("source", SOURCES)
def test_a_recording_that_begins_and_ends_inside_a_step_has_the_whole_steps_between(source: str):
    program = SOURCES[source]().run(*MODEL[50:])
    for _ in range(4):
        program.run(*MODEL)
    program.run(*MODEL[:20])
    found = program.find()
    assert found.source == "repetition"
    assert set(lengths(found)) == {750}
    assert len(found) in (3, 4)


def test_a_line_logged_now_and_then_does_not_hide_the_steps():
    program = Program()
    for number in range(12):
        program.run(*MODEL)
        if number % 5 == 4:
            program.run("aten::item")
    found = program.find()
    assert len(found) == 12
    assert sorted(set(lengths(found))) == [750, 760]


def test_work_that_follows_no_cycle_has_no_steps():
    program = Program().run(*"abcdefghabdhcgfeahbgcfdehgfedcba")
    assert program.find().source is None


def test_a_graph_that_is_launched_again_and_again_is_a_step():
    program = Program(operators=False)
    for _ in range(4):
        program.graph()
    found = program.find()
    assert (found.source, len(found)) == ("repetition", 4)


def test_equal_layers_alone_are_no_steps():
    assert Program().run(*("linear", "relu") * 12).find().source is None


def test_names_that_the_user_numbers_do_not_hide_the_steps():
    program = Program()
    for number in range(4):
        program.annotate(f"batch {number}", *BLOCK, "loss")
    assert program.find().source == "repetition"


def test_backward_on_a_thread_of_its_own_belongs_to_the_step():
    program = Program()
    for _ in range(4):
        program.run(*BLOCK, "loss").run("MmBackward", "AddBackward", "MeanBackward", thread="autograd")
    assert lengths(program.find()) == [100] * 4


def test_an_empty_trace_has_no_steps():
    assert steps.find(Made().timeline()).source is None


def test_the_window_ends_when_the_work_queued_inside_the_steps_has_ended():
    made = Made().annotation("ProfilerStep#1", 100, 200)
    made.launch("cudaLaunchKernel", 150, 155, correlation=1).kernel("k", 260, 300, correlation=1)
    made.launch("cudaLaunchKernel", 205, 210, correlation=2).kernel("later", 310, 400, correlation=2)
    timeline = made.timeline()
    assert steps.window(timeline, steps.find(timeline)) == (100, 300)


def test_work_without_a_recorded_launch_counts_as_queued_when_it_starts():
    timeline = (
        Made().annotation("ProfilerStep#1", 100, 200).kernel("k", 190, 250).kernel("l", 260, 300).timeline()
    )
    assert steps.window(timeline, steps.find(timeline)) == (100, 250)


def test_without_steps_the_window_spans_the_work_and_not_the_recording():
    made = Made().python("train.py(1): main", 0, 1000).annotation("training", 10, 900)
    made.operator("aten::mm", 100, 120).launch("cudaLaunchKernel", 110, 115, correlation=1)
    timeline = made.kernel("k", 130, 150, correlation=1).timeline()
    assert steps.window(timeline, steps.find(timeline)) == (100, 150)


def test_a_trace_without_work_has_no_window():
    timeline = Made().annotation("nothing", 10, 900).timeline()
    assert steps.window(timeline, steps.find(timeline)) == (0, 0)
