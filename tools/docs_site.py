"""Hooks of MkDocs: what pages link to outside docs/ goes into the site, each page also as Markdown, and
llms.txt."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
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
    for page in sorted(DOCS.rglob("*.md")):
        if (title := TITLE.search(page.read_text(encoding="utf-8"))) is None:
            raise ValueError(f"{page} has no title")
        lines.append(f"- [{title[1]}]({page.relative_to(DOCS).as_posix()})")
    return "\n".join(lines) + "\n"


def on_files(files: Any, config: Any) -> Any:
    """Add the files that pages link to outside docs/."""
    from mkdocs.structure.files import File

    pages = [*DOCS.rglob("*.md"), *DOCS.rglob("*.html")]
    for path in sorted({path for page in pages for path in outside(page).values()}):
        files.append(File.generated(config, _copy_of(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to files outside docs/ to their copies in the site."""
    here = posixpath.dirname(page.file.src_uri)
    for link, path in outside(DOCS / page.file.src_uri).items():
        target = posixpath.relpath(_copy_of(path), here or ".")
        markdown = re.sub(rf"\]\({re.escape(link)}(?:#[^)]*)?\)", f"]({target})", markdown)
    return markdown


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
