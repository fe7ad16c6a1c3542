"""Threads that take jobs: in order, and no longer than whoever gave them needs it."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from dynotune.runtime.workers import Workers


def test_jobs_run_in_order_and_give_what_they_return_or_raise():
    worker, seen = Workers("w"), []
    done = [worker.submit(lambda number=number: seen.append(number) or 1 / (number - 3)) for number in range(6)]
    assert [one.result() for one in done[:3]] == [-1 / 3, -1 / 2, -1]
    with pytest.raises(ZeroDivisionError):
        done[3].result()
    worker.stop()
    assert seen == list(range(6))
    worker.stop()


def test_a_worker_that_is_stopped_finishes_what_it_was_given_and_takes_no_more():
    worker, go = Workers("w"), threading.Event()
    done = [worker.submit(go.wait), worker.submit(lambda: 7)]
    threading.Thread(target=go.set).start()
    worker.stop()
    assert done[1].result(0) == 7
    with pytest.raises(RuntimeError, match="were stopped"):
        worker.submit(go.wait)
    Workers("w").stop()


def test_a_worker_ends_with_its_last_reference_and_holds_no_job_that_is_done():
    class Job:
        def __init__(self, worker):
            self.worker = worker

        def __call__(self):
            return threading.current_thread()

    class Fails(Job):
        def __call__(self):
            raise ValueError

    worker = Workers("w")
    jobs = [Job(worker), Fails(worker)]
    thread = worker.submit(jobs[0]).result()
    assert isinstance(worker.submit(jobs[1]).exception(), ValueError)
    worker.submit(int).result()
    seen = [weakref.ref(job) for job in jobs]
    del jobs
    gc.collect()
    assert [one() for one in seen] == [None, None]
    del worker
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_several_workers_run_jobs_side_by_side_and_no_more_threads_than_jobs_are_started():
    workers, met = Workers("w", 3), threading.Barrier(2)
    names = [one.result(60) for one in [workers.submit(met.wait) for _ in range(2)]]
    assert sorted(names) == [0, 1]
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


def test_where_no_further_thread_can_be_started_those_there_are_do_the_work(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    workers = Workers("w", 3)
    assert workers.submit(int).result(60) == 0
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert [workers.submit(int).result(60) for _ in range(3)] == [0, 0, 0]
        with pytest.raises(RuntimeError, match="can't start"):
            Workers("none").submit(int)
    workers.stop()
