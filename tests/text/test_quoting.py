"""Text that anyone may have chosen, quoted for terminals, agents and pages."""

from __future__ import annotations

import pytest

from dynotune.text import quoting


@pytest.mark.parametrize("text", ["a" * 999, "\x1b" * 999, "\U0001f9ff\x1b" * 999, "\u202e" * 20])
def test_plain_text_is_within_its_bound_when_escapes_lengthen_it(text):
    quoted = quoting.plain(text, longest=50)
    assert len(quoted) <= 50 and quoted.isprintable()
    assert quoted.endswith("…")


def test_a_passage_marks_each_line_when_lines_are_left_out():
    lines = [f"{at}: {'error: ' * 90}" for at in range(900)]
    passage = quoting.passage(lines, most=3000, mark=quoting.OF_PROGRAM).splitlines()
    (left,) = [line for line in passage if not line.startswith(quoting.OF_PROGRAM)]
    assert left == f"… {900 - len(passage) + 1:,} lines are left out here"
    assert passage[0].startswith("  │ 0: ") and passage[-1].startswith("  │ 899: ")
    assert sum(map(len, passage)) < 3100


def test_a_passage_is_whole_when_it_fits():
    assert quoting.passage(["a", "", "b\x1b"], most=20) == "a\n\nb\\x1b"
    assert quoting.passage([], most=20) == ""
