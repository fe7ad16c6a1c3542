"""The command that runs the parts of the attack."""

from __future__ import annotations

import math
from types import SimpleNamespace

from . import __main__ as command
from .counts import Counts


def part(tried):
    def attack(number, seed, *, first=0):
        tried.extend(range(first, first + number))
        counts = Counts()
        counts.tried["x"] += number
        return counts

    return SimpleNamespace(attack=attack)


def test_a_part_is_tried_in_slices_until_its_whole_is_done():
    tried = []
    counts = command.attack(part(tried), 100, 1, math.inf, lambda text: None)
    assert tried == list(range(100))
    assert counts.tried["x"] == 100


def test_no_slice_is_begun_when_the_time_is_over():
    tried = []
    counts = command.attack(part(tried), 1000, 1, 0.0, lambda text: None)
    assert 0 < len(tried) < 1000
    assert counts.tried["x"] == len(tried)


def test_the_parts_that_there_are_can_be_run():
    found = command.parts(list(command.PARTS))
    assert {"readers", "files", "transparency"} <= set(found)
    assert all(one.WHOLE > 0 and callable(one.attack) for one in found.values())


def test_the_page_has_counts_and_what_did_not_hold():
    shown = {
        "tried": {"a": 2, "b": 1},
        "held": {"a": 1},
        "skipped": {"c": "no root"},
        "failures": ["a: so"],
        "seed": 7,
    }
    total = {"hours": 0.5, "tried": 9, "held": 8, "lost": 1, "orphans": 0, "left": 0, "memory": 0}
    result = {"hardware": {"host.cpu": "Fast"}, "python": "3.12", "parts": {"files": shown}}
    page = command.page(result, {"total": total})
    assert "| 0.5 | 9 | 8 | 1 | 0 | 0 | 0 |" in page and "## Known" in page
    assert "| files | 2 | 3 | 1 | 1 | 7 |" in page
    assert "- a: so" in page and "- c: no root" in page and "Fast" in page
