"""Make a page for each section of long pages, and of the long page a table of them.

In the repository, findings and knobs stand on one page each, which `make findings` and `make knobs` write.
On the site each of them has a page of its own, and links to a section of the long page lead there.
"""

from __future__ import annotations

import posixpath
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

LONG = {"reference/findings.md": "Finding", "reference/knobs.md": "Knob"}
"""Long pages, and what a section of them is."""
SAYS = {"Finding": "what is wrong", "Knob": "what it does"}
SECTION = re.compile(r"^### `([^`]+)`\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
FAMILY = re.compile(r"^## (.+)\n", re.MULTILINE)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(#[^)\s]*)?\)")
LINK_TO_LONG = re.compile(r"\]\(([^)#\s]*(?:findings|knobs)\.md)#([^)\s]+)\)")


class Section(NamedTuple):
    """A finding or a knob: its id, its family, and its text without the heading."""

    id: str
    family: str
    text: str

    @property
    def anchor(self) -> str:
        """The anchor that Markdown gives to its heading on the long page."""
        return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", self.id)).strip("-").lower()

    @property
    def summary(self) -> str:
        return next(line for line in self.text.splitlines() if line.strip())


@cache
def sections(page: Path) -> list[Section]:
    text = page.read_text(encoding="utf-8")
    found = []
    for family in re.split(r"^(?=## )", text, flags=re.MULTILINE)[1:]:
        heading = FAMILY.match(family)
        assert heading is not None
        found += [Section(match[1], heading[1], match[2].strip()) for match in SECTION.finditer(family)]
    return found


def pages(docs: Path) -> dict[str, str]:
    """Return the text of the page of each section, by its path below docs/."""
    return {
        _path(long, section): _page(long, section, {other.anchor: other for other in sections(docs / long)})
        for long in LONG
        for section in sections(docs / long)
    }


def _path(long: str, section: Section) -> str:
    return f"{long.removesuffix('.md')}/{section.id}.md"


def _page(long: str, section: Section, others: dict[str, Section]) -> str:
    def lead(match: re.Match[str]) -> str:
        path, anchor = match[1], match[2] or ""
        if not path and anchor[1:] in others:
            return f"]({others[anchor[1:]].id}.md)"
        return f"](../{path or posixpath.basename(long)}{anchor})"

    kind = f"{LONG[long]}, {section.family} · [all of them](../{posixpath.basename(long)})"
    show = "explain" if LONG[long] == "Finding" else "knobs"
    last = f"In the terminal: `dynotune {show} {section.id}`"
    return f"# `{section.id}`\n\n{kind}\n\n{LINK.sub(lead, section.text)}\n\n{last}\n"


def index(path: str, markdown: str) -> str:
    """Return a long page as a table of its sections' pages; any other page as it is."""
    if path not in LONG:
        return markdown
    head, *families = re.split(r"^(?=## )", markdown, flags=re.MULTILINE)
    parts = [head]
    folder = posixpath.basename(path).removesuffix(".md")
    for family in families:
        heading = FAMILY.match(family)
        assert heading is not None
        parts.append(f"{heading[0]}\n| {LONG[path].lower()} | {SAYS[LONG[path]]} |\n| --- | --- |")
        for match in SECTION.finditer(family):
            section = Section(match[1], heading[1], match[2].strip())
            summary = LINK.sub(lambda link: "](" + (link[1] or "") + (link[2] or "") + ")", section.summary)
            summary = summary.replace("|", "\\|")
            parts.append(
                f'| <a id="{section.anchor}"></a>[`{section.id}`]({folder}/{section.id}.md) | {summary} |'
            )
        parts.append("")
    return "\n".join(parts)


def led(path: str, markdown: str) -> str:
    """Lead links to a section of a long page to the page of that section."""
    docs = Path(__file__).parents[1] / "docs"

    def lead(match: re.Match[str]) -> str:
        long = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[1]))
        if long not in LONG:
            return match[0]
        section = next((one for one in sections(docs / long) if one.anchor == match[2]), None)
        if section is None:
            return match[0]
        return f"]({posixpath.relpath(_path(long, section), posixpath.dirname(path) or '.')})"

    return LINK_TO_LONG.sub(lead, markdown)
