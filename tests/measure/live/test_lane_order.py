"""In which lane and in which order pairs are taken, and that lanes cause no wrong verdict."""

from __future__ import annotations

import itertools
import math
import os
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynotune.measure.comparison import judge, orders
from dynotune.measure.live import lane_order
from dynotune.measure.live.lane_order import InOrder, SideBySide, lane_of, most_in_a_lane
from dynotune.measure.live.lanes import WHOLE, Lane
from dynotune.schema.comparison import Pair


class Gates:
    """Jobs that end when they are told to, in any order."""

    def __init__(self):
        self.gates = [threading.Event() for _ in range(64)]
        self.began = []

    def __call__(self, lane, pair):
        self.began.append((pair, lane))
        self.gates[pair].wait()
        return pair, lane


AMONG = [Lane(number, "", frozenset(os.sched_getaffinity(0))) for number in (1, 2, 3)]


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(12)), st.integers(2, 3))
def test_pairs_are_taken_in_the_order_in_which_they_were_drawn_whatever_order_they_end_in(ends, num):
    jobs = Gates()

    def end_them():
        for pair in ends:
            jobs.gates[pair].set()

    ender = threading.Thread(target=end_them)
    with SideBySide() as side:
        in_order = InOrder(side, AMONG[:num], jobs)
        ender.start()
        taken = [in_order.take(pair, 12) for pair in range(12)]
    ender.join()
    assert [pair for pair, _ in taken] == list(range(12))
    assert [lane for _, lane in taken] == [AMONG[lane_of(pair, num)] for pair in range(12)]


@given(st.integers(0, 24), st.integers(1, 8))
def test_no_pair_straddles_lanes_nor_does_a_block_and_the_first_lane_has_most(block, num):
    assert lane_of(2 * block, num) == lane_of(2 * block + 1, num)
    counts = [sum(lane_of(pair, num) == lane for pair in range(block)) for lane in range(num)]
    assert most_in_a_lane(block, num) == max(counts)
    assert most_in_a_lane(block, 1) == block


def test_one_lane_alone_begins_no_pair_before_it_is_asked_for():
    began = []
    with SideBySide() as side:
        in_order = InOrder(side, [WHOLE], lambda lane, pair: began.append(pair))
        for pair in range(3):
            in_order.take(pair, 12)
            assert began == list(range(pair + 1))


def test_a_pair_for_which_a_lane_has_no_time_is_not_begun_but_for_the_first_of_all():
    with SideBySide() as side:
        in_order = InOrder(side, [WHOLE], lambda lane, pair: pair)
        assert in_order.take(0, 12, most=0) == 0
        assert in_order.take(1, 12, most=0) is None


def test_a_pair_that_is_asked_for_again_is_made_again_in_its_lane():
    tries = itertools.count()
    with SideBySide() as side:
        in_order = InOrder(side, AMONG, lambda lane, pair: (next(tries), pair, lane.number))
        _, pair, number = in_order.take(0, 12)
        again, same_pair, same_number = in_order.take(0, 12)
    assert (pair, number) == (same_pair, same_number) == (0, 1)
    assert again > 0


def test_lane_runs_work_on_its_cores_and_says_when_it_fails():
    cpu = min(os.sched_getaffinity(0))
    with SideBySide() as side:
        assert side.begin(Lane(1, "", frozenset({cpu})), lambda: os.sched_getaffinity(0)).result() == {cpu}
        failed = side.begin(AMONG[0], lambda: 1 / 0)
        assert isinstance(failed.exception(), ZeroDivisionError)


def test_leaving_ends_what_runs_and_begins_nothing_that_waited():
    began, ended = threading.Event(), []
    side = SideBySide()

    def run_on():
        began.set()
        while True:
            side.go_on()

    with side:
        first = side.begin(AMONG[0], run_on)
        second = side.begin(AMONG[0], lambda: ended.append("second"))
        began.wait()
    assert isinstance(first.exception(), lane_order.Stopped)
    assert second.cancelled()
    side.go_on()  # it can be used again


def test_numbers_go_on_past_those_that_were_taken_out_of_turn():
    assert next(lane_order.numbers(2, ["c/001-baseline", "c/005-candidate", "diagnosis"])) == 6
    assert next(lane_order.numbers(3, [])) == 4


# What a verdict may err in


def a_over_a(seed, num, most=12):
    """A comparison of a command with itself, in lanes of unlike speed, drift, noise and cost of coming
    second."""
    draw = random.Random(seed)
    speed = [draw.uniform(-1, 1) for _ in range(num)]
    second = [draw.gauss(0, 0.02) for _ in range(num)]
    noise = [0.01 * draw.choice((1, 1, 3)) for _ in range(num)]
    pairs = []
    for pair, first in enumerate(orders(most, seed)):
        lane = lane_of(pair, num)
        one, other = (speed[lane] + draw.gauss(0, noise[lane]) for _ in range(2))
        times = {first: one, "candidate" if first == "baseline" else "baseline": other + second[lane]}
        pairs.append(Pair(first, math.exp(times["baseline"]), math.exp(times["candidate"]), lane=lane + 1))
    # At each look, as a session does it.
    return next(one for num in range(2, most + 1) if (one := judge(pairs[:num], max_pairs=most)).finished)


@pytest.mark.parametrize("num", [1, 2, 4])
def test_a_command_against_itself_in_unlike_lanes_is_called_different_no_more_often_than_promised(num):
    called = sum(a_over_a(seed, num).verdict in ("faster", "slower") for seed in range(400))
    # 5% of 400 is 20; so many more come by chance once in a thousand times.
    assert called <= 35
