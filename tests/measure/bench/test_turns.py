"""Turns of fresh processes: each is stored before the next one, and a void one is repeated in its own
order."""

from __future__ import annotations

import pytest

from dynotune.measure.bench import Journal, NoPair, take_turns
from dynotune.measure.live import lane_order, lanes
from dynotune.schema.comparison import Comparison, Pair, Voided

from ...fakes import of_run


class Bench:
    """Makes the turns that are given, without a process. None stands for the end of the time."""

    def __init__(self, *turns):
        self.side, self.turns, self.orders, self.told = lane_order.SideBySide(), list(turns), [], []

    def all_lanes(self):
        return [lanes.WHOLE]

    def most_turns(self):
        return float("inf")

    def turn(self, order, lane):
        self.orders.append(order)
        turn = self.turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        return turn

    def tell(self, turn):
        self.told.append(turn)


PAIRS = [Pair("baseline", 1.0, number) for number in (1.0, 2.0, 3.0)]
VOID = Voided(2, "another program")


@pytest.fixture
def journal():
    return Journal(of_run(Comparison, id="c", candidate_settings=[]))


def test_turn_is_stored_and_told_when_it_comes(journal):
    bench = Bench(*PAIRS)
    turns = take_turns(bench, journal, ["a", "b", "c"], Pair)
    for number, turn in enumerate(turns, 1):
        assert journal.document.pairs == bench.told == PAIRS[:number]
        assert turn == PAIRS[number - 1]
    assert bench.orders == ["a", "b", "c"]


def test_turn_is_repeated_in_its_own_order_when_it_is_void(journal):
    bench = Bench(PAIRS[0], VOID, PAIRS[1])
    assert list(take_turns(bench, journal, ["a", "b"], Pair)) == [PAIRS[0], VOID, PAIRS[1]]
    assert bench.orders == ["a", "b", "b"]
    assert (journal.document.pairs, journal.document.voided) == (PAIRS[:2], [VOID])


def test_turns_end_when_there_is_no_time_for_another(journal):
    assert list(take_turns(Bench(PAIRS[0], None), journal, ["a", "b", "c"], Pair)) == PAIRS[:1]


@pytest.mark.parametrize("enough", [1, 2])
def test_turn_that_did_not_come_is_void_only_when_there_are_enough_pairs(journal, enough):
    late = NoPair("a run did not end", void=VOID, enough=enough)
    turns = take_turns(Bench(PAIRS[0], late, PAIRS[1]), journal, ["a", "b"], Pair)
    assert next(turns) == PAIRS[0]
    if enough == 1:
        assert list(turns) == [VOID, PAIRS[1]]
    else:
        with pytest.raises(NoPair, match="did not end"):
            next(turns)
        assert journal.document.voided == []
