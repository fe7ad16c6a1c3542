"""Run in several lanes at once, and take pairs in the order in which they were drawn.

A pair of runs stays in one lane, and so does a block of two pairs, ABBA or BAAB.
"""

import functools
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from dynotune.measure.live.lanes import WHOLE, Lane

T = TypeVar("T")


def lane_of(pair: int, num_lanes: int) -> int:
    """Return the index (from 0) of the lane that runs the pair; both pairs of a block run in the same
    lane."""
    return pair // 2 % num_lanes


def most_in_a_lane(num_pairs: int, num_lanes: int) -> int:
    """Return the first lane's number of pairs, which is the largest number and so determines the total
    time."""
    return sum(lane_of(pair, num_lanes) == 0 for pair in range(num_pairs))


class Stopped(Exception):
    """Error: a run stops because nobody needs its result any more."""


class SideBySide(AbstractContextManager["SideBySide"]):
    """Threads, one per lane. Leaving the `with` block ends all runs; the object can then be used again.

    The kernel keeps each thread's CPU affinity, and the command and the sampler that the thread starts
    inherit it. So the sampler of a lane does not count the work of other lanes as interference.
    """

    def __init__(self) -> None:
        self._threads: dict[Lane, ThreadPoolExecutor] = {}
        self._is_over = threading.Event()

    def begin(self, lane: Lane, job: Callable[[], T]) -> Future[T]:
        """Start the job after the lane's previous job; run it at once if the lane is the whole machine."""
        if lane == WHOLE:
            done = Future[T]()
            done.set_result(job())
            return done
        if lane not in self._threads:
            self._threads[lane] = ThreadPoolExecutor(
                1, initializer=os.sched_setaffinity, initargs=(0, lane.cpus)
            )
        return self._threads[lane].submit(job)

    def go_on(self) -> None:
        """Raise Stopped if nobody waits for the run's result any more."""
        if self._is_over.is_set():
            raise Stopped

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        while self._threads:
            # A thread is forgotten once it has ended: a second interruption may come while it is awaited.
            lane, thread = next(iter(self._threads.items()))
            thread.shutdown(cancel_futures=True)
            del self._threads[lane]
        self._is_over.clear()


class InOrder(Generic[T]):
    """Start pairs ahead, each in the lane of its block, and return them in the order in which they were
    drawn.

    The duration of a pair depends on the value that the pair measures. If pairs were taken in the order of
    their ends, an interim look would judge only quick pairs, which are a biased selection.

    `job`: function that makes pair `number` (from 0) in a lane.
    """

    def __init__(self, side: SideBySide, among: Sequence[Lane], job: Callable[[Lane, int], T]) -> None:
        self._side, self._lanes, self._job = side, among, job
        self._begun: dict[int, Future[T]] = {}

    def take(self, pair: int, num_pairs: int, most: float = math.inf) -> T | None:
        """Wait for a pair; make the pair again if it was taken before. Return None if no time is left for the
        pair.

        Args:
            num_pairs: start no pair from this number on.
            most: number of pairs that a lane can make in the time left. One pair is always made, however long
                it takes.
        """
        num = len(self._lanes)
        # With several lanes, each gets its next pair early, so that no lane waits.
        for ahead in range(pair, min(pair + 2 * num - 1, num_pairs)):
            at = lane_of(ahead, num)
            has_time = sum(lane_of(other, num) == at for other in self._begun) < most
            if ahead not in self._begun and (has_time or ahead == pair == 0):
                job = functools.partial(self._job, self._lanes[at], ahead)
                self._begun[ahead] = self._side.begin(self._lanes[at], job)
        begun = self._begun.pop(pair, None)
        return None if begun is None else begun.result()


def numbers(num: int, runs: Iterable[str]) -> Iterator[int]:
    """Continue counting from `num` and the highest number of a run folder, since lanes end in another
    order."""
    known = (run.rpartition("/")[2].partition("-")[0] for run in runs)
    return itertools.count(1 + max([num, *(int(number) for number in known if number.isdecimal())]))
