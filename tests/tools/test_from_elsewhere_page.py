from __future__ import annotations

from pathlib import Path

from from_elsewhere_page import page

from dynotune import knobs

PAGE = Path(__file__).parents[2] / "docs/reference/from-elsewhere.md"


def test_page_of_settings_from_elsewhere_is_the_one_that_the_allow_list_makes():
    assert PAGE.read_text(encoding="utf-8") == page(), "make knobs writes it anew"


def test_page_names_each_knob_once_when_it_is_allowed_and_when_it_is_not():
    text = page()
    for id_ in {*knobs.allow_list(), *(knob.id for knob in knobs.all_knobs())}:
        assert text.count(f"`{id_}`") == 1, id_
