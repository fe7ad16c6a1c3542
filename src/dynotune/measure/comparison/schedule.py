"""Decide after how many pairs a comparison is judged, and in which order the two runs of each pair go."""

import random

from dynotune.schema.comparison import (
    LOOKS,
    MIN_PAIRS,
    MOST_PAIRS,
    ArmName,
)  # fmt: skip
from dynotune.schema.errors import UsageError


def looks(max_pairs: int) -> tuple[int, ...]:
    """Return the numbers of valid pairs at which the comparison is judged ("looks", as in sequential
    testing); the last number is `max_pairs`.

    Raises UsageError: `max_pairs` is not between 2 and 48.
    """
    if not MIN_PAIRS <= max_pairs <= MOST_PAIRS:
        raise UsageError(
            f"A comparison takes {MIN_PAIRS} to {MOST_PAIRS} pairs, not {max_pairs}.",
            hint=(
                f"If {MOST_PAIRS} pairs leave the interval too wide, time more steps in each run with "
                "--steps."
            ),
        )
    return (*(look for look in LOOKS if look < max_pairs), max_pairs)


def orders(num_pairs: int, seed: int) -> list[ArmName]:
    """Draw from `seed`, in ABBA or BAAB blocks of two pairs, whether baseline or candidate runs first in each
    pair.

    A longer list begins with every shorter list of the same seed, so a resumed comparison continues the same
    order. The next pair to run is number `len(valid pairs)` of this list: a void pair is repeated in its own
    order. Baseline and candidate are therefore first equally often after every even number of valid pairs.
    """
    draw = random.Random(seed)
    drawn: list[ArmName] = []
    while len(drawn) < num_pairs:
        drawn += ("candidate", "baseline") if draw.getrandbits(1) else ("baseline", "candidate")
    return drawn[:num_pairs]
