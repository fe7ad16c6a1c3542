"""The parts of bars: told apart without colour, and without Unicode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import pytest
from rich.cells import cell_len

from dynotune.report.parts import OF_A_STEP, OF_A_WINDOW, OF_MEMORY, START, Part
from dynotune.schema.memory import TermName


@pytest.mark.parametrize(
    "parts",
    [OF_A_STEP, OF_A_WINDOW, tuple(OF_MEMORY.values()), tuple(START.values())],
    ids=["step", "window", "memory", "start"],
)
def test_parts_of_a_bar_are_distinct_when_there_is_no_colour(parts: Sequence[Part]) -> None:
    for signs in ([part.glyph for part in parts], [part.ascii_glyph.lower() for part in parts]):
        assert len(set(signs)) == len(parts) and set(map(cell_len, signs)) == {1}
    assert all(part.ascii_glyph.isascii() for part in parts)


def test_every_term_of_memory_has_a_part() -> None:
    assert set(OF_MEMORY) == set(get_args(TermName))
