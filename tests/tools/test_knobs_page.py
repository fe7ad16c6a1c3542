from __future__ import annotations

from pathlib import Path

from knobs_page import page

from dynotune import knobs

PAGE = Path(__file__).parents[2] / "docs/reference/knobs.md"


def test_the_page_of_knobs_is_the_one_that_the_catalogue_makes():
    assert PAGE.read_text(encoding="utf-8") == page(), "make knobs writes it anew"


def test_every_knob_stands_on_the_page():
    text = page()
    assert all(f"### `{knob.id}`\n" in text for knob in knobs.all_knobs())
