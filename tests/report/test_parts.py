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


def _luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("page", ["#ffffff", "#14191b"], ids=["light", "dark"])
def test_parts_of_memory_stand_out_by_three_to_one_when_a_page_is_light_or_dark(page: str) -> None:
    for part in OF_MEMORY.values():
        darker, lighter = sorted(map(_luminance, (page, part.fill)))
        assert (lighter + 0.05) / (darker + 0.05) >= 3, part
