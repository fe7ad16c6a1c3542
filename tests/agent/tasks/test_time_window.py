"""The window: synchronised at its ends, whole or not at all. A device in place of a GPU."""

from types import SimpleNamespace

import pytest

from dynotune.agent.tasks import time_window
from dynotune.agent.tasks.time_window import TimeWindow

from .fake_program import fake_program


class Cuda:
    """As much of torch.cuda as the window asks, on two devices of which one is used."""

    def __init__(self):
        self.initialized, self.capturing = True, False
        self.synchronised = []
        self.fails = 0

    def is_initialized(self):
        return self.initialized

    def is_current_stream_capturing(self):
        return self.capturing

    def current_device(self):
        return 0

    def device_count(self):
        return 3

    def memory_stats(self, index):
        return {"num_device_alloc": 5} if index < 2 else {}

    def max_memory_reserved(self, index):
        return 1 << 20 if index < 2 else 0

    def synchronize(self, index=None):
        assert not self.capturing, "it would end the program's capture"
        if self.fails:
            self.fails -= 1
            raise RuntimeError("device-side assert")
        self.synchronised.append(index)


class Torch:
    def __init__(self):
        self.cuda = Cuda()


@pytest.fixture
def torch():
    return Torch()


@pytest.fixture
def ended(torch):
    """Runs steps 0 to 19 through a window of four after the sixth; `before(index)` comes before each."""

    def run(before=lambda index: None):
        program = fake_program(torch)
        window, counted = TimeWindow(program, {"at_step": 6, "num_steps": 4}), program.steps
        stop = 0
        for index in range(20):
            before(index)
            counted.num_samples += 8
            counted.wait_s += 0.5
            if index + 1 >= stop:
                stop = window.reached(index + 1)
        return program.events

    return run


def test_holds_the_steps_after_warm_up(ended):
    (fields,) = ended()
    assert (fields["first_step"], fields["num_steps"], fields["num_samples"], fields["wait_s"]) == (
        6,
        4,
        32,
        2.0,
    )
    assert (fields["num_compilations"], fields["num_device_allocations"]) == (0, 0)
    assert 0 < fields["begin_s"] < fields["end_s"]


@pytest.mark.parametrize(
    ("wait_s", "world_size", "whole_bursts", "num_steps"),
    [(1.0, 1, True, 8), (1e-9, 1, True, 10), (1.0, 2, True, 10), (1.0, 1, False, 10)],
)
def test_a_window_that_waits_ends_with_a_whole_burst_of_batches(
    torch, monkeypatch, wait_s, world_size, whole_bursts, num_steps
):
    """Four workers: four batches come at once. Windows of ranks keep their length, and those that are not
    told to."""
    program = fake_program(torch, world_size=world_size)
    program.loader_begun("loader", SimpleNamespace(num_workers=4, prefetch_factor=2))
    monkeypatch.setattr(time_window, "perf_counter", lambda: 2.0 * program.steps.num_steps)
    window, stop = TimeWindow(program, {"at_step": 6, "num_steps": 10, "whole_bursts": whole_bursts}), 0
    program.steps.num_steps = 0
    for index in range(1, 30):
        program.steps.num_steps = index
        program.steps.wait_s += wait_s
        if index >= stop:
            stop = window.reached(index)
    (fields,) = program.events
    assert (fields["num_steps"], fields["end_s"] - fields["begin_s"]) == (num_steps, 2.0 * num_steps)


def test_every_device_that_is_used_is_synchronised_at_both_ends(ended, torch):
    ended()
    assert torch.cuda.synchronised == [0, 1, 0, 1]


def test_a_window_that_could_not_begin_begins_a_step_later(ended, torch):
    def fail_once(index):
        torch.cuda.fails = int(index == 5)

    (fields,) = ended(fail_once)
    assert (fields["first_step"], fields["num_steps"]) == (7, 4)
    assert fields["begin_s"] > 0


def test_never_synchronises_while_the_program_captures_a_graph(ended, torch):
    def capture(index):
        torch.cuda.capturing = index == 5

    (fields,) = ended(capture)
    assert (fields["first_step"], fields["num_steps"], fields["num_samples"]) == (7, 4, 32)

    def capture_at_the_end(index):
        torch.cuda.capturing = index == 9

    (fields,) = ended(capture_at_the_end)
    assert (fields["first_step"], fields["num_steps"], fields["num_samples"]) == (6, 5, 40)


def test_a_device_that_comes_to_be_inside_the_window_had_allocated_nothing_before(ended, torch):
    def initialize(index):
        torch.cuda.initialized = index > 7

    (fields,) = ended(initialize)
    assert fields["num_device_allocations"] == 10


def test_without_a_device_allocations_are_unknown(ended, torch):
    torch.cuda.initialized = False
    (fields,) = ended()
    assert fields["num_device_allocations"] is None
    assert torch.cuda.synchronised == []


class State:
    def __init__(self):
        self.num_begun = self.num_levels = 0

    def window_begins(self, step):
        self.num_begun += 1

    def level(self):
        self.num_levels += 1


def test_levels_are_taken_at_steps_spread_over_the_window(torch):
    program = fake_program(torch)
    program.state = State()
    window = TimeWindow(program, {"at_step": 6, "num_steps": 20})
    stop, at = 0, []
    for num_steps in range(1, 40):
        if num_steps >= stop:
            before = program.state.num_levels
            stop = window.reached(num_steps)
            at += [num_steps] * (program.state.num_levels - before)
    assert at == [9, 12, 15, 18, 21, 24]
    assert program.events[0]["num_steps"] == 20
    assert program.state.num_begun == 1


def test_a_short_window_has_a_level_at_each_step(torch):
    program = fake_program(torch)
    program.state = State()
    window = TimeWindow(program, {"at_step": 2, "num_steps": 3})
    assert [window.reached(2), window.reached(3), window.reached(4)] == [3, 4, 5]
    assert program.state.num_levels == 2


def test_a_window_that_cannot_begin_at_all_is_given_up(ended, torch):
    torch.cuda.fails = 1000
    events = ended()
    assert events == []  # there were 14 steps to begin with
    torch.cuda.fails = 0


def test_a_result_comes_after_the_state_that_belongs_to_it(torch):
    program = fake_program(torch)
    program.say_state = lambda: program.event({"event": "state"})
    program.before_result = lambda: program.event({"event": "readback"})
    window = TimeWindow(program, {"id": 7, "num_steps": 1})
    window.reached(1)
    window.reached(2)
    assert [event["event"] for event in program.events] == ["state", "readback", "window"]
    assert program.events[-1]["task"] == 7


@pytest.mark.parametrize("serves", [False, True])
def test_window_times_calls_of_modules_when_no_function_is_the_step(torch, serves):
    program = fake_program(torch)
    window = TimeWindow(program, {"id": 1, "num_steps": 2, "at_step": 1, "times_calls": True})
    call = window.around_calls(None)
    events = []
    program.event = events.append
    for step in range(1, 4):
        window.reached(step)
        assert call(lambda module, x: x + 1, None, (step,), {}) == step + 1
        if serves:
            program.step_function_ended(0.0)
    (event,) = (event for event in events if event["event"] == "window")
    assert len(event["call_s"]) == 2
    # A call of the function contains those of modules, and began long ago here.
    assert all((call_s > 100) is serves for call_s in event["call_s"])
