"""The writer of pages: a report's blocks as one self-contained HTML page. No other file, no network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from dynotune.report.blocks import (
    Answer,
    Bar,
    Bars,
    Cell,
    CommandLine,
    Commands,
    Fields,
    Findings,
    Forest,
    Item,
    Lines,
    Listing,
    Marked,
    Note,
    On,
    Phrase,
    Piece,
    Plot,
    Report,
    Section,
    Span,
    Table,
    Tiles,
)
from dynotune.report.documents import layout_of
from dynotune.report.page import charts
from dynotune.report.page.elements import element, join, text, unbroken
from dynotune.report.page.markdown import markdown as markdown
from dynotune.report.parts import Part
from dynotune.schema import atomic
from dynotune.schema.document import without_secrets
from dynotune.schema.errors import may_fail
from dynotune.text import words

LONGEST_LINE, MOST_LINES = 20_000, 4_000
NOTHING = "–"
LONG_SENTENCE = 160
"""An answer of more characters is set smaller, so that what to type with it stays in sight."""
SELF = "'self'"


def page(document: Any, *, recipe: str = "") -> str:
    """Write the whole report of a document as HTML.

    Text from the program (names, paths, arguments, values, error messages) is escaped, also non-printing
    characters. A content security policy in the page's head forbids all but the page's own script.

    Args:
        recipe: text of a study's `recipe.toml`; "" if there is none.
    """
    return _shell(layout_of(without_secrets(document), recipe=recipe), ["page.js"])


class LiveParts(NamedTuple):
    """What changes on a live page, as HTML: its header, its list of contents, and its sections."""

    header: str
    nav: str
    story: str


def live(report: Report) -> str:
    """Write a page that asks its own server, and nobody else, for its parts and for values to plot."""
    return _shell(report, ["uplot.min.js", "live.js", "page.js"], "live.css")


def waiting() -> str:
    """Write the live page of something that has no state yet."""
    line = "Waiting for the first state."
    return live(Report(kicker="dynotune", answer=Answer(large="Starting", sentence=line, line=line)))


def live_parts(report: Report) -> LiveParts:
    """Write what changes on a live page. Texts are escaped as on any page."""
    return LiveParts(*map(str, (_header(report), _nav(report), _story(report))))


def write(
    path: Path,
    document: Any,
    *,
    recipe: str = "",
    own_name: bool = False,
    form: Callable[..., str] = page,
) -> None:
    """Write the page at `path` completely, or not at all.

    Args:
        own_name: passed to `atomic.write`.
        form: `page` or `markdown`.

    Raises:
        CannotRunHere: the folder cannot be written to, or the disk is full.
    """
    made = form(document, recipe=recipe)
    with may_fail(f"write {path}", "Name another file: dynotune report PATH --html FILE"):
        atomic.write(path, made.encode(), own_name=own_name)


def _shell(report: Report, scripts: Sequence[str], *styles: str) -> str:
    """Fill the frame of a page: its style, its scripts, and the policy that lets them run."""
    environment = Environment(
        loader=PackageLoader("dynotune.report.page", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    texts = list(map(_part, scripts))
    return environment.get_template("page.html").render(
        title=f"dynotune: {words.plain(' '.join(report.command) or report.kicker, longest=80)}",
        style=Markup("").join(Markup(_part(name)) for name in ("style.css", *styles)),
        scripts=map(Markup, texts),
        policy=_policy(texts, asks="live.js" in scripts),
        is_live="live.js" in scripts,
        nav=_nav(report),
        header=_header(report),
        story=_story(report),
        footer=text(report.footer),
    )


def _policy(scripts: Sequence[str], *, asks: bool) -> str:
    """Return a content security policy that runs only these scripts and loads nothing.

    Args:
        asks: whether the page asks its own server.
    """
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        f"base-uri 'none'; form-action 'none'{'; connect-src ' if asks else ''}{SELF if asks else ''}"
    )


@cache
def _part(name: str) -> str:
    return files("dynotune.report.page").joinpath("templates", name).read_text(encoding="utf-8")


def _header(report: Report) -> Markup:
    """Write the answer, what to type with it, and its figures."""
    answer = report.answer
    sentence = answer.sentence or answer.large
    parts = [
        element("p", report.kicker, class_="kicker"),
        element("p", answer.large, class_=f"large {answer.tone}".strip()),
        element("p", _phrase(answer.rest), class_="rest"),
        element("h1", _phrase(sentence), class_="long" if _length(sentence) > LONG_SENTENCE else "short"),
    ]
    if report.settings:
        chips = (element("li", element("code", setting)) for setting in report.settings)
        parts.append(element("ul", *chips, class_="recipe", aria_label="Settings"))
    parts += _lines(line for line in report.use if On.PAGE in line.on)
    if report.recipe is not None:
        parts.append(_listing(report.recipe))
    head = _on_page(report.head)
    parts += [charts.tiles(block) for block in head if isinstance(block, Tiles)]
    rows = [row for block in head if isinstance(block, Fields) for row in block.rows]
    figures = [element("div", element("dt", name), element("dd", _cell(said))) for name, said in rows]
    if figures:
        parts.append(element("dl", *figures, class_="stats"))
    if report.command:
        parts += _lines([CommandLine("The command", report.command)])
    return join(*parts)


def _sections(report: Report) -> list[Section]:
    return [block for block in _on_page(report.sections) if isinstance(block, Section)]


def _nav(report: Report) -> Markup:
    entries = [("answer", "Answer")]
    entries += [(_anchor(one.title), one.title) for one in _sections(report) if one.in_nav]
    links = (element("li", element("a", title, href=f"#{anchor}")) for anchor, title in entries)
    return element("ul", *links)


def _story(report: Report) -> Markup:
    return join(*map(_section, _sections(report)))


def _section(section: Section) -> Markup:
    aside = _phrase(section.aside)
    parts = [element("h2", section.title), *([element("p", aside, class_="aside")] if aside else [])]
    blocks = _on_page(section.blocks)
    return element("section", join(*parts, _blocks(blocks)), id=_anchor(section.title))


def _on_page(blocks: Iterable[Piece]) -> list[Piece]:
    """Return the blocks that a page shows; a table without rows is none, nor is a section without blocks."""
    shown = [block for block in blocks if On.PAGE in block.on]
    return [block for block in shown if not _is_empty(block)]


def _is_empty(block: Piece) -> bool:
    if isinstance(block, Section):
        return not _on_page(block.blocks)
    return isinstance(block, Table) and not block.rows


def _blocks(blocks: Sequence[Piece]) -> Markup:
    """Write blocks in order; notes with one label that follow each other become a list."""
    parts: list[Markup] = []
    notes: list[Piece] = []
    for block in blocks:
        if isinstance(block, Note) and block.label:
            notes.append(block)
            continue
        parts += [_notes(notes)] if notes else []
        notes = []
        parts.append(_block(block))
    return join(*parts, *([_notes(notes)] if notes else []))


def _notes(notes: Sequence[Piece]) -> Markup:
    items = (element("li", _note_text(note)) for note in notes if isinstance(note, Note))
    return element("ul", *items, class_="warnings")


def _note_text(note: Note) -> Markup:
    label = "" if note.label in ("warning", "note") else note.label
    return join(*([element("b", f"{label}: ")] if label else []), _cell(note.text), between="")


def _block(block: Piece) -> Markup:
    match block:
        case Fields():
            rows = (
                element("div", element("dt", name), element("dd", _cell(said))) for name, said in block.rows
            )
            return element("dl", *rows, class_="fields")
        case Note():
            return element("p", _note_text(block), class_=block.tone or None)
        case Listing():
            return _listing(block)
        case Commands():
            lines = _lines(block.lines)
            if not block.summary:
                return join(*lines)
            return element("details", _summary(block.summary, len(block.lines)), *lines)
        case Table():
            return _table(block.without_empty())
        case Bars():
            return charts.bars(block)
        case Tiles():
            return charts.tiles(block)
        case Plot():
            return charts.plot(block)
        case Forest():
            return charts.forest(block)
        case Findings():
            return _findings(block)
        case Section():
            return element("div", element("h3", block.title), _blocks(_on_page(block.blocks)))
    raise TypeError(f"no block of a report: {type(block).__name__}")


def _phrase(phrase: Phrase) -> Markup:
    pieces = phrase if isinstance(phrase, tuple) else (phrase,)
    return Markup("").join(map(_piece, pieces))


def _length(phrase: Phrase) -> int:
    pieces = phrase if isinstance(phrase, tuple) else (phrase,)
    return sum(len(piece if isinstance(piece, str) else piece.text) for piece in pieces)


def _piece(piece: str | Span) -> Markup:
    span = Span(piece) if isinstance(piece, str) else piece
    if span.tone == "code":
        return element("code", span.text)
    said = unbroken(span.text)
    if not span.tone:
        return said
    return element("b" if span.tone == "strong" else "span", said, class_=span.tone)


def _cell(cell: Cell, kind: str = "text") -> Markup:
    match cell:
        case Lines():
            return Markup("<br>").join(map(_phrase, cell.lines))
        case Marked(mark=Part() as part):
            named = element("span", cell.text, class_=cell.tone or None)
            return element("span", charts.swatch(part), named, class_="marked")
        case Marked():
            sign = cell.mark if isinstance(cell.mark, str) else ""
            mark = element("span", sign, class_=f"mark {cell.tone}".strip(), aria_hidden="true")
            return join(mark, text(cell.text), between=" ")
        case Bar():
            return element("svg", *charts.segments(cell), class_="bar", aria_hidden="true")
        case _:
            shown = _phrase(cell)
            return element("code", shown) if kind == "code" and cell not in ("", NOTHING) else shown


def _table(table: Table) -> Markup:
    """Write a table. Its roles are said: a small screen shows rows as blocks, and then they would be lost."""
    names = [(column.name, "number" if column.kind == "number" else column.kind) for column in table.columns]
    heads = (element("th", name, role="columnheader", scope="col", class_=kind) for name, kind in names)
    rows = (element("tr", *_cells(names, row), role="row") for row in table.rows)
    caption = [element("caption", table.caption)] if table.caption and not table.folded else []
    head = (
        [element("thead", element("tr", *heads, role="row"), role="rowgroup")]
        if any(n for n, _ in names)
        else []
    )
    body = element("tbody", join(*rows), role="rowgroup")
    cards = "cards" if table.cards else None
    made = element("table", *caption, *head, body, role="table", class_=cards)
    label = table.caption or "Table"
    scroll = element("div", made, class_="scroll", role="region", tabindex="0", aria_label=label)
    more = [element("p", table.more, class_="dim")] if table.more else []
    if not table.folded:
        return join(scroll, *more)
    return element("details", _summary(label, len(table.rows)), scroll, *more)


def _summary(label: str, num: int) -> Markup:
    """Write what opens a folded block, with the number of things in it."""
    return element("summary", label, Markup(" "), element("span", f"{num}", class_="count"))


def _cells(names: Sequence[tuple[str, str]], row: Sequence[Cell]) -> list[Markup]:
    return [
        element(
            "td",
            _cell(cell, kind),
            role="cell",
            class_=_kind(cell, kind),
            data_label=name,
        )
        for (name, kind), cell in zip(names, row, strict=True)
    ]


def _kind(cell: Cell, kind: str) -> str:
    """Return the classes of a cell: of one that says nothing, and of one that is set in by blanks."""
    if cell in ("", NOTHING):
        return f"{kind} none"
    return f"{kind} within" if isinstance(cell, str) and cell.startswith("  ") else kind


def _lines(lines: Iterable[CommandLine]) -> list[Markup]:
    """Write command lines, with a copy button. A word is not broken if there is room for it on a line."""
    parts = []
    for line in lines:
        quoted = (element("span", escape(words.plain(word, longest=LONGEST_LINE))) for word in line.words)
        made = element(
            "pre", join(*quoted, between=" "), class_="line", tabindex="0", aria_label=line.what or "Command"
        )
        block = element("div", _copies(), made, class_="typed")
        parts.append(join(element("p", line.what, class_="what") if line.what else Markup(""), block))
    return parts


def _copies() -> Markup:
    return element("button", "Copy", type="button", class_="copy")


def _listing(listing: Listing) -> Markup:
    """Write lines as they are; they are opened only when asked, if they have a name to ask for."""
    shown = Markup("\n").join(
        escape(words.plain(line, longest=LONGEST_LINE)) for line in listing.lines[:MOST_LINES]
    )
    made = element("pre", shown, tabindex="0", aria_label=listing.label or "Lines")
    inside = element("div", _copies(), made, class_="typed")
    return element("details", element("summary", listing.label), inside) if listing.label else inside


def _findings(findings: Findings) -> Markup:
    items = [_finding(item, is_first=not at) for at, item in enumerate(findings.items[: findings.most])]
    left = len(findings.items) - len(items)
    more = element("p", f"{left} more: --json has all.", class_="dim") if left else Markup("")
    return join(element("ol", *items, class_="findings"), more)


def _finding(item: Item, *, is_first: bool) -> Markup:
    severity = element("span", item.severity, class_=f"severity {item.severity}")
    cost = [element("span", item.cost, class_="cost")] if item.cost else []
    parts = [element("h3", join(severity, element("code", item.id), *cost, between=" "))]
    parts.append(element("p", _phrase(item.claim)))
    if place := _phrase(item.place):
        parts.append(element("p", place, class_="place"))
    parts += [element("p", item.test, class_="dim")] if item.test else []
    if remedy := _phrase(item.remedy):
        parts.append(element("p", element("b", "Do this:"), Markup(" "), remedy))
    parts += _lines(item.commands)
    if item.predicted:
        parts.append(element("ul", *(element("li", line) for line in item.predicted), class_="evidence"))
    if item.evidence:
        lines = element("ul", *(element("li", _phrase(line)) for line in item.evidence), class_="evidence")
        summary = _summary("Evidence", len(item.evidence))
        parts.append(element("details", summary, lines, open="" if is_first else None))
    parts += [element("p", f"{name}: {said}", class_="dim") for name, said in item.about]
    parts += [element("p", f"Explains {', '.join(item.also)}.", class_="dim")] if item.also else []
    return element("li", join(*parts))


def _anchor(title: str) -> str:
    return "-".join("".join(sign if sign.isalnum() else " " for sign in title.lower()).split())
