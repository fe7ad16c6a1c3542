from __future__ import annotations

from dynotune.schema.cycle import CyclePart
from dynotune.text import steps

PARTS = [
    CyclePart(kind="draw", name="DataLoader"),
    CyclePart(kind="call", name="Net", num=3),
    CyclePart(kind="step", name="SGD"),
]


def test_description_of_a_step_counts_repeats_when_a_part_repeats():
    assert steps.description(PARTS, 3) == "draw DataLoader, 3 × call Net, step SGD"


def test_description_of_a_step_ends_with_dots_when_there_are_more_parts():
    assert steps.description(PARTS[:2], 14) == "draw DataLoader, 3 × call Net, …"


def test_description_of_a_step_says_that_it_is_marked_when_it_has_no_parts():
    assert steps.description([], 0) == "marked by the program"
