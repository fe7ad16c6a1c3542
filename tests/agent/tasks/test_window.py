"""The window: synchronised at its ends, whole or not at all. A device in place of a GPU."""

import pytest

from dynotune.agent.tasks.window import Window


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


class Counted:
    num_samples = num_uncounted = 0
    wait_s = 0.0


@pytest.fixture
def torch():
    return Torch()


@pytest.fixture
def ended(torch):
    """Runs steps 0 to 19 through a window of four after the sixth; `before(index)` comes before each."""

    def run(before=lambda index: None):
        complete, counted = [], Counted()
        window = Window(6, 4, prepare=lambda: None, complete=complete.append)
        window.torch_is_here(torch)
        window.steps = counted
        stop = 0
        for index in range(20):
            before(index)
            counted.num_samples += 8
            counted.wait_s += 0.5
            if index + 1 >= stop:
                try:
                    stop = window.reached(index + 1)
                except RuntimeError:
                    continue  # what the agent does with its own mistakes
        return complete

    return run


def test_holds_the_steps_after_warm_up(ended):
    (fields,) = ended()
    assert (fields["first_step"], fields["num_steps"], fields["num_samples"], fields["wait_s"]) == (6, 4, 32, 2.0)
    assert (fields["num_compilations"], fields["num_device_allocations"]) == (0, 0)
    assert 0 < fields["begin_s"] < fields["end_s"]


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


def test_levels_are_taken_at_steps_spread_over_the_window(torch):
    levels, complete = [], []
    window = Window(6, 20, prepare=lambda: None, complete=complete.append, level=lambda: levels.append(None))
    window.torch_is_here(torch)
    window.steps = Counted()
    stop, at = 0, []
    for num_steps in range(1, 40):
        if num_steps >= stop:
            before = len(levels)
            stop = window.reached(num_steps)
            at += [num_steps] * (len(levels) - before)
    assert at == [9, 12, 15, 18, 21, 24]
    assert complete[0]["num_steps"] == 20


def test_a_short_window_has_a_level_at_each_step(torch):
    at = []
    window = Window(2, 3, prepare=lambda: None, complete=lambda fields: None, level=lambda: at.append(None))
    window.torch_is_here(torch)
    window.steps = Counted()
    assert [window.reached(2), window.reached(3), window.reached(4)] == [3, 4, 5]
    assert len(at) == 2


def test_a_step_that_is_timed_by_itself_waits_for_the_devices_unless_a_graph_is_captured(torch):
    window = Window(1, None, prepare=lambda: None, complete=lambda fields: None)
    window.wait()
    window.torch_is_here(torch)
    window.wait()
    assert torch.cuda.synchronised == [0, 1]
    torch.cuda.capturing = True
    window.wait()
    assert torch.cuda.synchronised == [0, 1]
