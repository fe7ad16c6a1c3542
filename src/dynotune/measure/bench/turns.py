"""Have arms take turns in fresh processes, in lanes, and store each turn before the next one is judged."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar, cast

import msgspec

from dynotune.measure.bench.journal import Journal
from dynotune.measure.comparison.stats import SequentialResult
from dynotune.measure.live import lane_order, lanes
from dynotune.schema.comparison import Pair, Voided

O_contra = TypeVar("O_contra", contravariant=True)
T = TypeVar("T", bound=msgspec.Struct)


class TurnBench(Protocol[O_contra, T]):
    """A command whose arms take turns in fresh processes. A turn is a pair, or a block of starts; or a void
    one."""

    side: lane_order.SideBySide

    def all_lanes(self) -> list[lanes.Lane]:
        """Return the lanes in which turns are made."""

    def most_turns(self) -> float:
        """Return how many further turns a lane can make in the time left; the very first is always made."""

    def turn(self, order: O_contra, lane: lanes.Lane) -> T | None:
        """Run each arm once in the lane, in this order; return None if there was no time for that.

        Raises NoPair: no turn will come any more.
        """

    def tell(self, turn: T) -> None:
        """Tell the user of a turn, which is in the journal."""


class PairBench(TurnBench[Any, Pair | Voided], Protocol):
    """A bench whose turns are pairs; the order says which arm comes first."""

    def see(self, judgement: SequentialResult) -> None:
        """Take note of what the pairs show so far."""


class NoPair(Exception):
    """Error: no pair comes from this bench any more, for the reason that the message gives.

    `void`: what stands for the pair if the comparison has `enough` pairs without it, and goes on.
    """

    def __init__(self, reason: str, *, void: Voided | None = None, enough: int = 0) -> None:
        super().__init__(reason)
        self.void, self.enough = void, enough


def take_turns(
    bench: TurnBench[O_contra, T],
    journal: Journal[Any],
    order: Sequence[O_contra],
    kind: type,
    most: Callable[[], int] | None = None,
) -> Generator[T, None, None]:
    """Make turns as long as there is time; each is in the journal when it comes. Closing the generator ends
    all runs.

    Args:
        order: what is drawn for each turn that counts. A void turn is repeated in its own order.
        kind: class of turns that count.
        most: returns how many turns of `order` are planned by now; None: all.
    """

    def make(lane: lanes.Lane, number: int) -> T | None:
        return bench.turn(order[number], lane)

    in_order = lane_order.InOrder(bench.side, bench.all_lanes(), make)
    with bench.side:
        while True:
            num = journal.num(kind)
            try:
                turn = in_order.take(num, most() if most else len(order), bench.most_turns())
            except NoPair as error:
                if error.void is None or num < error.enough:
                    raise
                turn = cast("T", error.void)
            if turn is None:
                return
            journal.add(turn)
            bench.tell(turn)
            yield turn
