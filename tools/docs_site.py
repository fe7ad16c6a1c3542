"""Hooks of MkDocs: what pages link to outside docs/ goes into the site, each page also as Markdown, and
llms.txt.

Findings and knobs get a page each (`split_pages`). The search knows what people type (`search_words.toml`),
puts symptoms first and leaves decisions out. Charts stand in the page itself, and follow its colours.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

import split_pages

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
WORDS: dict[str, list[str]] = tomllib.loads(
    Path(__file__).with_name("search_words.toml").read_text(encoding="utf-8")
)
BOOSTS = {
    "symptoms/": 4.0,
    "getting-started": 3.0,
    "guides/": 2.0,
    "reference/findings/": 0.8,
    "reference/knobs/": 0.8,
}
"""How much more a page below that path counts in the search."""
UNSEARCHED = ("decisions/",)
ALONE = ("index.md",)
"""Pages without the lists of pages and of headings beside them."""
CHART = re.compile(r"!\[[^\]]*\]\((?:\.\./)*images/(chart-[\w-]+\.svg)\)(?:\{[^}]*\})?")
SOURCES = "sources"
"""The folder of the site that holds files from elsewhere in the repository."""
LINK = re.compile(r"(?:\]\(|\bhref=\")(?!\w+:|#)([^)#\s\"]+)")
TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


def outside(page: Path) -> dict[str, str]:
    """Return the links of `page` to files outside docs/, each with the file's path in the repository."""
    found = {}
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / link).resolve()
        if path.is_file() and path.is_relative_to(ROOT) and not path.is_relative_to(DOCS):
            found[link] = path.relative_to(ROOT).as_posix()
    return found


def _copy_of(path: str) -> str:
    """Name the copy of a file in the site; Markdown as text, so that it becomes no page."""
    return f"{SOURCES}/{path}.txt" if path.endswith(".md") else f"{SOURCES}/{path}"


def index() -> str:
    """Return the text of llms.txt: every page with its title."""
    lines = [
        "# dynotune",
        "",
        "> Finds out why a PyTorch command is slow, and proves on it which settings help.",
        "",
    ]
    order = ("index", "getting-started", "symptoms", "guides", "reference", "decisions")
    pages = {page.relative_to(DOCS).as_posix(): page for page in DOCS.rglob("*.md")}
    for _, page in sorted(
        pages.items(), key=lambda item: (order.index(re.split(r"[/.]", item[0])[0]), item[0])
    ):
        if (title := TITLE.search(page.read_text(encoding="utf-8"))) is None:
            raise ValueError(f"{page} has no title")
        lines.append(f"- [{title[1]}]({page.relative_to(DOCS).as_posix()})")
    return "\n".join(lines) + "\n"


def on_config(config: Any) -> Any:
    """List every decision, so that a new one needs no line in mkdocs.yml."""
    decisions = [page.relative_to(DOCS).as_posix() for page in sorted(DOCS.glob("decisions/*.md"))]
    config["nav"] = [*config["nav"], {"Decisions": decisions}]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the files that pages link to outside docs/, and the page of each finding and knob."""
    from mkdocs.structure.files import File, InclusionLevel

    pages = [*DOCS.rglob("*.md"), *DOCS.rglob("*.html")]
    for path in sorted({path for page in pages for path in outside(page).values()}):
        files.append(File.generated(config, _copy_of(path), abs_src_path=str(ROOT / path)))
    for path, text in split_pages.pages(DOCS).items():
        files.append(File.generated(config, path, content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to their places in the site, draw charts, and tell the search of the page."""
    path = page.file.src_uri
    page.meta |= searched(path) | ({"hide": ["navigation", "toc"]} if path in ALONE else {})
    markdown = split_pages.index(path, markdown)
    here = posixpath.dirname(path)
    for link, target in (outside(DOCS / path) if (DOCS / path).exists() else {}).items():
        copy = posixpath.relpath(_copy_of(target), here or ".")
        markdown = re.sub(rf"\]\({re.escape(link)}(?:#[^)]*)?\)", f"]({copy})", markdown)
    return CHART.sub(lambda match: _chart(match[1]), split_pages.led(path, markdown))


def searched(path: str) -> dict[str, Any]:
    """Return what the search is told of a page: what people type, its weight, or that it is left out."""
    if path.startswith(UNSEARCHED):
        return {"search": {"exclude": True}}
    boost = next((boost for below, boost in BOOSTS.items() if path.startswith(below)), 1.0)
    return {"search": {"boost": boost}, "tags": WORDS.get(path, [])}


def _chart(name: str) -> str:
    """Return a chart as a block of HTML, so that it takes the colours of the page."""
    return f'<figure class="chart">{(DOCS / "images" / name).read_text(encoding="utf-8").strip()}</figure>'


def led(page: Path) -> str:
    """Return the text of a page that is HTML already, its links led to pages and copies in the site."""
    text, copies = page.read_text(encoding="utf-8"), outside(page)
    here = page.relative_to(DOCS).parent.as_posix()

    def href(match: re.Match[str]) -> str:
        link, anchor = match[1], match[2] or ""
        copy = posixpath.relpath(_copy_of(copies[link]), here) if link in copies else None
        return f'href="{copy or re.sub(r"[.]md$", ".html", link)}{anchor}"'

    return re.sub(r'\bhref="(?!\w+:|#)([^"#]+)(#[^"]*)?"', href, text)


def on_post_build(config: Any) -> None:
    """Put each page's Markdown beside it, and llms.txt at the top; lead the links of pages that are HTML
    already."""
    site = Path(config["site_dir"])
    for page in DOCS.rglob("*.html"):
        (site / page.relative_to(DOCS)).write_text(led(page), encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        (site / page.relative_to(DOCS)).write_bytes(page.read_bytes())
    (site / "llms.txt").write_text(index(), encoding="utf-8")
