from __future__ import annotations

from pathlib import Path

from findings_page import page

from dynotune.doctor import all_rules

PAGE = Path(__file__).parents[2] / "docs/reference/findings.md"


def test_the_page_of_findings_is_the_one_that_the_rules_make():
    assert PAGE.read_text(encoding="utf-8") == page(), "make findings writes it anew"


def test_every_finding_stands_on_the_page():
    text = page()
    assert all(f"### `{id_}`\n" in text for id_ in all_rules())
