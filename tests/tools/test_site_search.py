"""The search of the built site, by its own worker, with what people type."""

from __future__ import annotations

import shutil
from pathlib import Path

import docs_site
import pytest

from tools import site_search


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    pytest.importorskip("material", reason="MkDocs is not installed: make docs")
    if shutil.which("node") is None:
        pytest.skip("node is not installed: the search is a script of the page")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(docs_site.ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


def test_search_finds_a_right_page_first_for_what_people_type(site: Path) -> None:
    assert site_search.misses(site) == {}


def test_search_lists_no_decision(site: Path) -> None:
    found = site_search.results(site, ["one bench", "why two looks", "decision"])
    assert [page for pages in found.values() for page in pages if page.startswith("decisions/")] == []


def test_site_has_a_page_for_each_finding_and_knob(site: Path) -> None:
    for kind in ("findings", "knobs"):
        text = (docs_site.DOCS / "reference" / f"{kind}.md").read_text(encoding="utf-8")
        names = {path.stem for path in (site / "reference" / kind).glob("*.html")}
        assert len(names) == text.count("\n### `") > 50


def test_site_asks_nothing_of_the_network(site: Path) -> None:
    for page in ("index.html", "reference/findings.html", "symptoms/ddp-slow.html"):
        text = (site / page).read_text(encoding="utf-8")
        assert (
            "fonts.googleapis" not in text
            and 'src="https:' not in text
            and '<link rel="stylesheet" href="http' not in text
        )


def test_words_of_the_search_are_of_pages_that_exist() -> None:
    assert [page for page in docs_site.WORDS if not (docs_site.DOCS / page).is_file()] == []
