"""A page for each finding and knob, made of the long pages."""

from __future__ import annotations

import re

import docs_site
import split_pages

PAGES = split_pages.pages(docs_site.DOCS)


def test_page_of_a_finding_has_its_text_and_leads_to_its_neighbours():
    text = PAGES["reference/findings/cudnn-deterministic-on.md"]
    assert text.startswith("# `cudnn-deterministic-on`\n\nFinding, Algorithms")
    assert "](cudnn-benchmark-off.md)" in text and "](../claims.md#deterministic-for-speed)" in text
    assert "dynotune explain cudnn-deterministic-on" in text


def test_links_of_all_pages_lead_to_pages_that_exist():
    known = {*PAGES, *(page.relative_to(docs_site.DOCS).as_posix() for page in docs_site.DOCS.rglob("*.md"))}
    for path, text in PAGES.items():
        for target in re.findall(r"\]\((?!\w+:)([^)#]+)", text):
            folder = path.rpartition("/")[0]
            names: list[str] = []
            for part in f"{folder}/{target}".split("/"):
                names = names[:-1] if part == ".." else [*names, part]
            assert "/".join(names) in known, (path, target)


def test_long_page_keeps_each_anchor_when_it_becomes_a_table():
    for long in split_pages.LONG:
        text = (docs_site.DOCS / long).read_text(encoding="utf-8")
        table = split_pages.index(long, text)
        sections = split_pages.sections(docs_site.DOCS / long)
        assert len(sections) == text.count("\n### `")
        assert all(f'<a id="{section.anchor}"></a>' in table for section in sections)
    assert split_pages.index("guides/ci.md", "## a\n") == "## a\n"


def test_link_to_a_section_leads_to_its_page():
    led = split_pages.led("guides/trace.md", "[a](../reference/findings.md#cupti-left-attached) [b](x.md#y)")
    assert led == "[a](../reference/findings/cupti-left-attached.md) [b](x.md#y)"
    assert (
        split_pages.led("index.md", "[a](reference/findings.md#nothing)")
        == "[a](reference/findings.md#nothing)"
    )
