"""Tables of kept results, written anew."""

from __future__ import annotations

import pytest

from tools import result_tables


@pytest.mark.parametrize("page", result_tables.pages(), ids=lambda page: page.stem)
def test_page_says_what_the_kept_results_say(page):
    text = page.read_text(encoding="utf-8")
    assert text == result_tables.filled(text), "make pictures writes it anew"


def test_each_table_stands_in_a_page():
    text = "".join(page.read_text(encoding="utf-8") for page in result_tables.pages())
    assert {place["name"] for place in result_tables.PLACE.finditer(text)} == set(result_tables.TABLES)
