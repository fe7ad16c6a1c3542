"""Threads that take jobs: in order, and no longer than whoever gave them needs it."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import Future

import pytest

from dynotune.runtime.transfer.host_threads import Workers


def done_by(workers, job):
    """What `job` returns there."""
    future = Future()
    workers.start(lambda: future.set_result(job()))
    return future


def test_one_worker_runs_jobs_in_order():
    workers, seen = Workers("w"), []
    for number in range(6):
        workers.start(lambda number=number: seen.append(number))
    workers.stop()
    assert seen == list(range(6))
    workers.stop()


def test_workers_that_are_stopped_finish_what_they_were_given_and_take_no_more():
    workers, go = Workers("w"), threading.Event()
    done = [done_by(workers, go.wait), done_by(workers, lambda: 7)]
    threading.Thread(target=go.set).start()
    workers.stop()
    assert done[1].result(0) == 7
    with pytest.raises(RuntimeError, match="were stopped"):
        workers.start(go.wait)
    Workers("w").stop()


@pytest.mark.long
def test_workers_end_with_their_last_reference_and_hold_no_job_that_is_done():
    class Job:
        def __init__(self, workers):
            self.workers = workers

        def __call__(self):
            return threading.current_thread()

    workers = Workers("w")
    job = Job(workers)
    thread = done_by(workers, job).result(60)
    done_by(workers, int).result(60)
    seen = weakref.ref(job)
    del job
    gc.collect()
    assert seen() is None
    del workers
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_several_workers_run_jobs_side_by_side_and_no_more_threads_than_jobs_are_started():
    workers, met = Workers("w", 3), threading.Barrier(2)
    places = [one.result(60) for one in [done_by(workers, lambda: met.wait(60)) for _ in range(2)]]
    assert sorted(places) == [0, 1]
    assert workers._num_started == 2
    go, ended = threading.Event(), []
    for number in range(7):
        workers.start(lambda number=number: go.wait(60) and ended.append(number))
    threading.Thread(target=go.set).start()
    workers.stop()
    assert sorted(ended) == list(range(7))
    assert not any(thread.is_alive() for thread in workers._threads)
    with pytest.raises(RuntimeError, match="were stopped"):
        workers.start(int)


def test_present_threads_do_the_work_when_no_further_one_can_be_started(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    workers = Workers("w", 3)
    assert done_by(workers, int).result(60) == 0
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert [done_by(workers, int).result(60) for _ in range(3)] == [0, 0, 0]
        with pytest.raises(RuntimeError, match="can't start"):
            Workers("none").start(int)
    workers.stop()
