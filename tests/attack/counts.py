"""What came of a part of the attack, and how a part is written.

A part is a module of this folder with

- `WHOLE`: how many cases make the whole of it;
- `attack(number, seed, *, first=0) -> Counts`: tries `number` cases, beginning with the one of number
  `first`. A case depends on its number and the seed alone, so a failure is repeated by them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

T = TypeVar("T")


@dataclass
class Counts:
    """How many cases were tried and held, by what they are named for; the others are skipped or failures.

    Args:
        skipped: what could not be tried here, with the reason.
        failures: what did not hold, with what it takes to repeat it.
    """

    tried: Counter[str] = field(default_factory=Counter)
    held: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        """Add those of the cases that came next."""
        for each in dataclasses.fields(other):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            if isinstance(mine, list):
                mine.extend(theirs)
            else:
                # A Counter's `update` adds, and a dict's replaces.
                mine.update(theirs)


def drawn(cases: list[T], seed: int, number: int) -> T:
    """The case of this number: all of them in an order that the seed decides, and then again."""
    return Random(f"{seed} {number // len(cases)}").sample(cases, len(cases))[number % len(cases)]
