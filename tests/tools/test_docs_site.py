"""The site of the documents: links, anchors, the index, and nothing from the network. MkDocs is not
needed."""

from __future__ import annotations

import re
from pathlib import Path

import docs_site
import pytest

PAGES = sorted(docs_site.DOCS.rglob("*.md"))
ANCHORED = re.compile(r"\]\(([^)#\s:]*)#([^)\s]+)\)")
FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
TAG = re.compile(r"\W*<a (?:id|name)=\"([^\"]+)\"")


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as Markdown's table of contents makes them."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    found: set[str] = set(TAG.findall(text))
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\s-]", "", plain.encode("ascii", "ignore").decode()).strip().lower()
        anchor = base = re.sub(r"[-\s]+", "-", name)
        count = 0
        while anchor in found:
            count += 1
            anchor = f"{base}_{count}"
        found.add(anchor)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(docs_site.DOCS).as_posix())
def test_an_anchor_that_a_page_links_to_exists(page: Path) -> None:
    links = ANCHORED.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    targets = [((page.parent / name).resolve() if name else page, anchor) for name, anchor in links]
    assert [(str(target), anchor) for target, anchor in targets if anchor not in _anchors(target)] == []


def test_the_index_for_language_models_names_every_page() -> None:
    index = docs_site.index()
    assert [page for page in PAGES if f"({page.relative_to(docs_site.DOCS).as_posix()})" not in index] == []


def test_the_front_page_names_every_symptom() -> None:
    front = (docs_site.DOCS / "index.md").read_text(encoding="utf-8")
    assert [
        page.name for page in docs_site.DOCS.glob("symptoms/*.md") if f"symptoms/{page.name}" not in front
    ] == []


def test_a_symptom_is_one_screen_and_says_what_to_run() -> None:
    for page in docs_site.DOCS.glob("symptoms/*.md"):
        text = page.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 40, page.name
        assert "dynotune " in text, page.name


def test_links_out_of_the_documents_are_led_to_copies_in_the_site() -> None:
    page = docs_site.DOCS / "symptoms" / "which-workers.md"
    assert docs_site.outside(page) == {
        "../../benchmarks/results/demo_cpu.json": "benchmarks/results/demo_cpu.json"
    }
