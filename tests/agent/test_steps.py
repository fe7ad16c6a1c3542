"""From events to steps, without torch."""

import sys
import threading

from dynotune.agent.steps import Steps


class Net:
    """A thing with a class and an identity."""


class Loader:
    pass


KEY = (Loader, 1, 8, object)


class Batch:
    shape = (8, 3)


class Counted:
    """Steps, with what it told."""

    def __init__(self, **kwargs):
        self.ended, self.fixed = [], []
        self.steps = Steps(
            lambda: False, lambda *step: self.ended.append(step), lambda *f: self.fixed.append(f), **kwargs
        )

    @property
    def indices(self):
        return [index for index, *_ in self.ended]

    @property
    def samples(self):
        return [num_samples for _, _, _, num_samples, _, _ in self.ended]

    def draw_and_call(self, net):
        self.steps.drawn(KEY, 8, 0.0, 0.5, Batch())
        self.steps.called(net, (Batch(),), {})


def test_counts_what_happened_before_the_cycle_was_found():
    counted, net = Counted(), Net()
    for _ in range(10):
        counted.draw_and_call(net)
    assert counted.indices == list(range(10))
    assert counted.samples == [8] * 10
    assert [live for *_, live in counted.ended] == [False] * 3 + [True] * 7
    assert [words for words, *_ in counted.fixed] == ["draw Loader, call Net"]


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
    assert sorted(counted.indices) == list(range(num_threads * num_calls))
    assert set(counted.samples) == {8}
    assert len(counted.fixed) == 1


def test_where_steps_will_be_marked_no_cycle_is_searched_for():
    """Five batches a marked step: the draws and calls repeat long before the first mark comes."""
    counted, net = Counted(marked_by_hand=True), Net()
    for _ in range(4):
        for _ in range(5):
            counted.draw_and_call(net)
        counted.steps.marked()
    assert counted.indices == [0, 1, 2, 3]
    assert counted.samples == [40] * 4
    assert [words for words, *_ in counted.fixed] == ["marked by the program"]


def test_a_search_that_finds_nothing_does_not_remember_for_ever(monkeypatch):
    monkeypatch.setattr("dynotune.agent.steps._MAX_EVENTS", 200)
    counted = Counted()
    nets = [type(f"Net{number}", (), {})() for number in range(300)]
    for net in nets:
        counted.steps.called(net, (), {})
    assert counted.steps.num_events == 200
    assert not counted.steps.searching


def test_a_lock_held_by_another_thread_while_forking_is_not_waited_for():
    counted, net = Counted(), Net()
    with counted.steps._lock:
        counted.steps.reset_after_fork()
        thread = threading.Thread(target=counted.steps.called, args=(net, (), {}))
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
