"""From events to steps, without torch."""

import random
import sys
import threading

import pytest

from dynotune.agent.steps.steps import Steps


class Net:
    """A thing with a class and an identity."""


class Loader:
    pass


KEY = (Loader, 1, 8, object)


def named(parts):
    """The kind and the name of each part of a cycle."""
    return [part["kind"] + " " + part["name"] for part in parts]


class Batch:
    shape = (8, 3)


class Counted:
    """Steps, with what it told."""

    def __init__(self, **kwargs):
        self.recorded, self.fixed, self.stops = [], [], []
        self.steps = Steps(
            grad_enabled=lambda: False,
            record=lambda *step: self.recorded.append(step),
            flags_now=lambda: 0,
            reached=self.reached,
            fixed=lambda *fixed: self.fixed.append(fixed),
            **kwargs,
        )

    def reached(self, num_steps):
        self.stops.append(num_steps)
        return num_steps + 1

    @property
    def samples(self):
        return [num_samples for _, _, num_samples, _ in self.recorded]

    def draw_and_call(self, net):
        self.steps.drawn(KEY, 8, 0.0, 0.5, Batch())
        self.steps.called(net, (Batch(),), {})


def test_models_of_a_class_make_one_step_when_threads_call_their_own_in_no_order():
    counted, nets = Counted(), [Net() for _ in range(4)]
    order = random.Random(0).choices(range(4), k=200)
    other = threading.Thread(target=counted.steps.called, args=(nets[1], (Batch(),), {}))
    other.start()
    other.join()
    for number in order:
        counted.steps.called(nets[number], (Batch(),), {})
    (parts, *_), *more = counted.fixed
    assert (named(parts), more) == (["call Net"], [])
    assert len(counted.recorded) == len(order) + 1


def test_models_of_a_class_stay_apart_when_one_thread_calls_them():
    counted, nets = Counted(), [Net() for _ in range(4)]
    for number in random.Random(0).choices(range(4), k=200):
        counted.steps.called(nets[number], (Batch(),), {})
    assert not counted.fixed


def test_a_mark_counts_nothing_when_events_are_to_be_ignored():
    counted = Counted()
    counted.steps.marked()
    counted.steps.ignore()
    counted.steps.marked()
    assert len(counted.recorded) == 1


def test_counts_what_happened_before_the_cycle_was_found():
    counted, net = Counted(), Net()
    for _ in range(10):
        counted.draw_and_call(net)
    assert counted.samples == [8] * 10
    # The window is told of live steps alone.
    assert counted.stops == [4, 5, 6, 7, 8, 9, 10]
    assert (counted.steps.num_steps, counted.steps.num_samples, counted.steps.num_uncounted) == (10, 80, 0)
    assert [named(parts) for parts, *_ in counted.fixed] == [["draw Loader", "call Net"]]


def test_calls_from_several_threads_are_all_counted_once():
    """A pool that serves requests: an index that is skipped would leave the window open for ever."""
    counted, net = Counted(), Net()
    num_threads, num_calls = 4, 3000
    begin = threading.Barrier(num_threads)

    def serve():
        begin.wait()
        for _ in range(num_calls):
            counted.steps.called(net, (Batch(),), {})

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=serve) for _ in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert counted.samples == [8] * (num_threads * num_calls)
    assert counted.stops == list(range(counted.stops[0], num_threads * num_calls + 1))
    assert len(counted.fixed) == 1


def test_cycle_is_not_searched_for_when_steps_will_be_marked():
    """Five batches a marked step: the draws and calls repeat long before the first mark comes."""
    counted, net = Counted(marked_by_hand=True), Net()
    for _ in range(4):
        for _ in range(5):
            counted.draw_and_call(net)
        counted.steps.marked()
    assert counted.samples == [40] * 4
    assert [parts for parts, *_ in counted.fixed] == [[]]


def test_a_search_that_finds_nothing_does_not_remember_for_ever(monkeypatch):
    monkeypatch.setattr("dynotune.agent.steps.event_history.MAX_EVENTS", 200)
    counted = Counted()
    nets = [type(f"Net{number}", (), {})() for number in range(300)]
    for net in nets:
        counted.steps.called(net, (), {})
    assert counted.steps.num_events == 200


def test_a_lock_held_by_another_thread_while_forking_is_not_waited_for():
    counted, net = Counted(), Net()
    with counted.steps._lock:
        counted.steps.reset_after_fork()
        thread = threading.Thread(target=counted.steps.called, args=(net, (), {}))
        thread.start()
        thread.join(60)
        assert not thread.is_alive()


def test_graphs_that_take_over_from_the_calls_before_their_capture_are_counted():
    counted, net, graph = Counted(), Net(), Net()
    for _ in range(11):
        counted.steps.called(net, (Batch(),), {})
    for _ in range(100):
        counted.steps.replayed(graph)
    assert counted.steps.num_steps == 111
    assert [named(parts) for parts, *_ in counted.fixed] == [["call Net"], ["replay Net"]]


def test_a_training_that_evaluates_by_graph_counts_its_updates():
    counted, net, graph, optimizer = Counted(), Net(), Net(), Net()
    counted.steps.optimizer_built(optimizer)
    for _ in range(4):
        for _ in range(6):
            counted.steps.drawn(KEY, 8, 0.0, 0.5, Batch())
            counted.steps.called(net, (Batch(),), {})
            counted.steps.stepped(optimizer)
        for _ in range(200):
            counted.steps.replayed(graph)
    assert counted.steps.num_steps == 24
    assert counted.samples == [8] * 24


def test_another_optimizer_than_the_one_that_ends_the_step_ends_none():
    counted, first, second = Counted(), Net(), type("Other", (), {})()
    for _ in range(10):
        counted.steps.stepped(first)
        counted.steps.stepped(second)
    counted.steps.stepped(first)
    assert counted.steps.num_steps == 10


class Tensor:
    """Like a tensor: `size(0)` says how many samples."""

    def __init__(self, num_samples):
        self.shape = (num_samples, 3)

    def size(self, dimension):
        return self.shape[dimension]


def train(counted, optimizer, batches, key=(Loader, 1, 8, object, True)):
    key = counted.steps.iterator_made(key, [])
    for batch in batches:
        counted.steps.drawn(key, 8, 0.0, 0.5, batch)
        counted.steps.stepped(optimizer)


def test_batches_of_all_kinds_are_counted_once_the_step_is_known():
    counted, optimizer = Counted(), Net()
    usual = [[Tensor(8), Tensor(8)]] * 10
    odd = [[Tensor(3), Tensor(3)], {"x": Tensor(5)}, [Tensor(2), Tensor(2), Tensor(2)], Tensor(7), object()]
    train(counted, optimizer, [*usual, *odd, *usual])
    assert counted.samples == [8] * 10 + [3, 5, 2, 7, -1] + [8] * 10
    assert counted.steps.wait_s == 0.5 * 25


def test_each_epoch_is_marked_once_the_step_is_known():
    counted, optimizer = Counted(), Net()
    for _ in range(3):
        train(counted, optimizer, [[Tensor(8), Tensor(8)]] * 6)
    assert [index for index, (*_, flags) in enumerate(counted.recorded) if flags & 4] == [0, 6, 12]


def test_first_step_of_an_epoch_counts_the_wait_before_its_first_batch():
    counted, optimizer, key = Counted(), Net(), (Loader, 1, 8, object, True)
    for _ in range(3):
        counted.steps.waited_before(key, 2.0)
        counted.steps.waited_before(key, 1.0)
        train(counted, optimizer, [[Tensor(8), Tensor(8)]] * 6, key)
    assert [wait_s for _, wait_s, *_ in counted.recorded] == [3.5, *[0.5] * 5] * 3
    assert counted.steps.wait_s == 3 * (3.0 + 6 * 0.5)


class Pending(Counted):
    """As in a measured run: nobody asks what happened in a step, so steps may be worked off together."""

    def __init__(self, stops):
        super().__init__()
        self.steps._flags_now, self._planned = None, iter(stops)

    def reached(self, num_steps):
        self.stops.append((num_steps, len(self.recorded)))
        return next(self._planned)


def test_steps_worked_off_together_stop_exactly_where_they_should():
    counted, optimizer = Pending([100, 237, 10**9]), Net()
    train(counted, optimizer, [[Tensor(8), Tensor(8)]] * 400)
    assert counted.stops == [(4, 4), (100, 100), (237, 237)]
    counted.steps.work_off()
    assert counted.samples == [8] * 400


def test_steps_are_recorded_in_order_when_other_events_come_between():
    counted, optimizer, other = Pending([10**9]), Net(), Net()
    key = (Loader, 1, 8, object, True)
    for number in range(200):
        train(counted, optimizer, [[Tensor(8), Tensor(8)] if number % 7 else Tensor(3)], key)
        if number > 20 and number % 5 == 0:
            counted.steps.stepped(other)
    counted.steps.work_off()
    assert counted.samples == [8 if number % 7 else 3 for number in range(200)]
    assert [end for end, *_ in counted.recorded] == sorted(end for end, *_ in counted.recorded)


def test_a_forked_child_does_not_count_its_parents_steps():
    counted, optimizer = Pending([10**9]), Net()
    train(counted, optimizer, [[Tensor(8), Tensor(8)]] * 199)
    num_recorded = len(counted.recorded)
    assert counted.steps.pending
    counted.steps.reset_after_fork()
    counted.steps.work_off()
    assert len(counted.recorded) == num_recorded


def test_a_process_that_is_killed_has_few_steps_that_are_not_recorded():
    counted, optimizer = Pending([10**9]), Net()
    train(counted, optimizer, [[Tensor(8), Tensor(8)]] * 4)  # the step is found
    for num_steps in range(5, 1000):
        train(counted, optimizer, [[Tensor(8), Tensor(8)]])
        assert num_steps - len(counted.recorded) <= num_steps / 16


def test_a_process_that_ends_does_not_wait_for_a_thread_that_hangs():
    counted, optimizer = Pending([10**9]), Net()
    train(counted, optimizer, [[Tensor(8), Tensor(8)]] * 199)
    num_recorded, held, done = len(counted.recorded), threading.Event(), threading.Event()

    def hang():
        with counted.steps._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hang)
    thread.start()
    held.wait()
    counted.steps.work_off_at_exit()
    assert len(counted.recorded) == num_recorded
    done.set()
    thread.join()
    counted.steps.work_off_at_exit()
    assert counted.samples == [8] * 199


def test_each_end_of_a_step_waits_for_the_device_and_no_fast_path_is_taken_when_single_steps_are_timed():
    waits = []
    counted, net = Counted(wait=lambda: waits.append(None)), Net()
    for _ in range(4):
        counted.draw_and_call(net)
    waits.clear()
    for _ in range(5):
        counted.draw_and_call(net)
    # Once a step, at the call that ends it; the batch before it does not wait.
    assert len(waits) == 5
    assert len(counted.recorded) == 9
    # The general receiver is a method; a fast path is a function.
    assert counted.steps.drawn.__self__ is counted.steps
    for _ in range(3):
        counted.steps.called(Net(), (), {})
    assert len(waits) == 5


@pytest.mark.parametrize("first", range(4))
def test_step_begins_with_its_batch_when_the_program_is_joined_in_the_middle_of_one(first):
    counted, net, optimizer = Counted(), Net(), Net()
    counted.steps.grad_enabled = lambda: True
    counted.steps.is_joined = True
    counted.steps.optimizers.add(optimizer)
    events = [
        lambda: counted.steps.drawn(KEY, 8, 0.0, 0.5, Batch()),
        lambda: counted.steps.called(net, (Batch(),), {}),
        lambda: counted.steps.called(net, (Batch(),), {}),
        lambda: counted.steps.stepped(optimizer),
    ]
    for at in range(first, 40):
        events[at % 4]()
    (parts, *_), *others = counted.fixed
    assert others == []
    assert named(parts) == ["draw Loader", "call Net", "step Net"]


class Optimizer:
    pass


@pytest.mark.parametrize(("sizes", "samples"), [([8, 8, 8], 8), ([8, 5, 8], None)])
def test_samples_of_a_step_without_a_loader_are_told_when_all_calls_have_equally_many(sizes, samples):
    counted, net, optimizer = Counted(), Net(), Optimizer()
    counted.steps.grad_enabled = lambda: True
    for size in sizes:
        batch = Batch()
        batch.shape = (size, 3)
        counted.steps.called(net, (batch,), {})
        counted.steps.stepped(optimizer)
    assert counted.fixed[0][-1] == samples


def test_agent_leaves_after_a_task_has_begun_when_it_begins_at_that_moment():
    order, begins, goes_on = [], threading.Event(), threading.Event()

    class Beginning(Counted):
        def reached(self, num_steps):
            begins.set()
            goes_on.wait(60)
            order.append("begun")
            return 1 << 62

    counted, net = Beginning(), Net()

    def make_steps():
        for _ in range(20):
            counted.draw_and_call(net)

    program = threading.Thread(target=make_steps)
    program.start()
    assert begins.wait(60)
    leaves = threading.Thread(
        target=counted.steps.between_events, args=(lambda: order.append("left") is None, 60)
    )
    leaves.start()
    goes_on.set()
    program.join()
    leaves.join()
    assert order == ["begun", "left"]
