"""Fewer of torch's threads for one thread, and as many as before for all others."""

from __future__ import annotations

import threading

import pytest
import torch

from dynotune.runtime.transfer import host_threads


def threads_of(work):
    """What `work` returns in a new thread."""
    results = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def inside_and_after():
    with host_threads.fewer():
        inside = torch.get_num_threads()
    return inside, torch.get_num_threads()


@pytest.fixture
def many(monkeypatch):
    """A machine of 16 cores, as far as is asked."""
    before = torch.get_num_threads()
    torch.set_num_threads(16)
    monkeypatch.setattr(host_threads.os, "sched_getaffinity", lambda pid: set(range(16)))
    yield
    torch.set_num_threads(before)


def test_some_cores_are_left_to_others_only_by_the_thread_that_asks_and_only_meanwhile(many):
    assert threads_of(inside_and_after) == (10, 16)
    with host_threads.fewer():
        assert threads_of(torch.get_num_threads) == 16
        assert threads_of(inside_and_after) == (10, 16)
    assert torch.get_num_threads() == 16


def test_threads_are_kept_when_there_are_fewer_anyway(many):
    def work():
        torch.set_num_threads(3)
        return inside_and_after()

    assert threads_of(work) == (3, 3)


def test_an_error_inside_gives_the_threads_back(many):
    with pytest.raises(ZeroDivisionError), host_threads.fewer():
        raise ZeroDivisionError
    assert torch.get_num_threads() == 16


def test_without_openmp_nothing_changes(many, monkeypatch):
    monkeypatch.setattr(host_threads, "_openmp", lambda: None)
    assert threads_of(inside_and_after) == (16, 16)


def test_a_thread_that_works_alone_leaves_all_others_their_number(many):
    def work():
        host_threads.use_one_thread()
        return torch.get_num_threads()

    assert threads_of(work) == 1
    assert threads_of(torch.get_num_threads) == torch.get_num_threads() == 16


def test_copies_take_some_of_the_cores_and_no_more_threads_than_torch_may(many):
    assert host_threads.num_copying() == 10
    torch.set_num_threads(3)
    assert host_threads.num_copying() == 3


def test_one_thread_copies_with_all_of_torchs_when_openmp_is_not_found(many, monkeypatch):
    monkeypatch.setattr(host_threads, "_openmp", lambda: None)
    assert host_threads.num_copying() == 1
