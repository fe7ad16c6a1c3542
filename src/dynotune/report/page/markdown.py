"""The writer of Markdown, for issues, pull requests and job summaries.

It draws nothing: bars are lists of names and figures, and tables have the other numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from dynotune.report.blocks import (
    Bar,
    Bars,
    Cell,
    CommandLine,
    Commands,
    Fields,
    Findings,
    Item,
    Lines,
    Listing,
    Marked,
    Note,
    On,
    Phrase,
    Piece,
    Report,
    Section,
    Span,
    Table,
    Tiles,
)
from dynotune.report.documents import layout_of
from dynotune.schema.document import without_secrets
from dynotune.text import words

LONGEST_LINE, MOST_LINES = 20_000, 4_000
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", "$": "&#36;"})


def markdown(document: Any, *, recipe: str = "") -> str:
    """Write the report of a document as Markdown, in which text from the program can neither format nor link.

    Args:
        recipe: text of a study's `recipe.toml`; "" if there is none.
    """
    report = layout_of(without_secrets(document), recipe=recipe)
    paragraphs = [*_answer(report), *_written(report.sections)]
    return "\n\n".join(filter(None, paragraphs)).strip() + "\n"


def _answer(report: Report) -> list[str]:
    answer = report.answer
    rest = _phrase(answer.rest)
    parts = [f"# {_text(report.kicker)}"]
    parts += [f"**{_phrase(answer.sentence)}**"] if answer.sentence else []
    parts.append(f"**{_text(answer.large)}**{', ' + rest if rest else ''}")
    head = [block for block in report.head if On.PAGE in block.on]
    rows = [row for block in head if isinstance(block, Fields) for row in block.rows]
    parts.append("\n".join(f"- {_text(name)}: {_cell(said)}" for name, said in rows))
    if report.settings:
        parts += ["Settings:", "\n".join(f"- {_code(setting)}" for setting in report.settings)]
    parts += _lines(line for line in report.use if On.PAGE in line.on)
    parts += _block(report.recipe) if report.recipe is not None else []
    return parts + (_lines([CommandLine("The command", report.command)]) if report.command else [])


def _written(blocks: Iterable[Piece]) -> list[str]:
    return [part for block in blocks if On.PAGE in block.on for part in _block(block)]


def _block(block: Piece) -> list[str]:
    match block:
        case Section():
            inside = _written(block.blocks)
            aside = _phrase(block.aside)
            capital = [aside[0].upper() + aside[1:]] if aside else []
            return [f"## {_text(block.title)}", *capital, *inside] if inside else []
        case Fields():
            return ["\n".join(f"- {_text(name)}: {_cell(said)}" for name, said in block.rows)]
        case Note():
            label = f"{_text(block.label)}: " if block.label not in ("", "warning", "note") else ""
            return [f"{'- ' if block.label else ''}{label}{_cell(block.text)}"]
        case Listing():
            return [f"{_text(block.label)}:", _indented(block.lines[:MOST_LINES])]
        case Commands():
            return _lines(block.lines)
        case Table():
            return _table(block.without_empty())
        case Bars():
            return [
                "\n".join(f"- {_text(row.name)}: {_text(row.figure)}" for row in block.rows if row.figure)
            ]
        case Tiles():
            return [
                "\n".join(
                    f"- {_text(tile.name)}: {_text(', '.join(filter(None, [tile.figure, tile.detail])))}"
                    for tile in block.tiles
                )
            ]
        case Findings():
            items = block.items[: block.most]
            left = len(block.items) - len(items)
            parts = [part for at, item in enumerate(items, start=1) for part in _finding(item, at)]
            return [*parts, *([f"{left} more: --json has all."] if left else [])]
    return []


def _table(table: Table) -> list[str]:
    if not table.rows:
        return []
    heads = "".join(f" {_text(column.name)} |" for column in table.columns)
    rules = "".join(" ---: |" if column.kind == "number" else " --- |" for column in table.columns)
    rows = ["|" + "".join(_cells(table, row)) for row in table.rows]
    caption = [f"{_text(table.caption)}:"] if table.caption else []
    return [
        *caption,
        "\n".join([f"|{heads}", f"|{rules}", *rows]),
        *([_text(table.more)] if table.more else []),
    ]


def _cells(table: Table, row: Sequence[Cell]) -> list[str]:
    kinds = (column.kind for column in table.columns)
    return [f" {_cell(cell, kind)} |" for cell, kind in zip(row, kinds, strict=True)]


def _finding(item: Item, number: int) -> list[str]:
    cost = f", {_text(item.cost)}" if item.cost else ""
    parts = [f"### {number}. {_text(item.id)}: {item.severity}{cost}", _phrase(item.claim)]
    parts += [f"Place: {_code(_plain(item.place))}"] if item.place else []
    parts.append(_text(item.test))
    parts += [f"Do this: {_phrase(item.remedy)}"] if item.remedy else []
    parts += _lines(item.commands)
    parts.append("\n".join(f"- {_text(line)}" for line in item.predicted))
    parts.append("\n".join(f"- {_phrase(line)}" for line in item.evidence))
    parts += [f"Explains {_text(', '.join(item.also))}."] if item.also else []
    return parts + [f"{_text(name)}: {_text(said)}" for name, said in item.about]


def _lines(lines: Iterable[CommandLine]) -> list[str]:
    parts = []
    for line in lines:
        parts += [f"{_text(line.what)}:"] if line.what else []
        parts.append(_indented([" ".join(words.plain(word, longest=LONGEST_LINE) for word in line.words)]))
    return parts


def _indented(lines: Iterable[str]) -> str:
    """Write a block of code by indentation, which no text can end."""
    return "\n".join(f"    {words.plain(line, longest=LONGEST_LINE)}" for line in lines)


def _plain(phrase: Phrase) -> str:
    pieces = phrase if isinstance(phrase, tuple) else (phrase,)
    return "".join(piece.text if isinstance(piece, Span) else piece for piece in pieces)


def _phrase(phrase: Phrase) -> str:
    pieces = phrase if isinstance(phrase, tuple) else (phrase,)
    return "".join(
        _code(one.text) if isinstance(one, Span) and one.tone == "code" else _text(_plain(one))
        for one in pieces
    )


def _cell(cell: Cell, kind: str = "text") -> str:
    match cell:
        case Lines():
            return "; ".join(map(_phrase, cell.lines))
        case Marked():
            return _text(cell.text)
        case Bar():
            return ""
        case str() if kind == "code" and cell not in ("", "–"):
            return _code(cell)
        case _:
            return _phrase(cell)


def _text(text: str) -> str:
    """Clean a text so that it adds no structure, no link and no HTML."""
    cleaned = re.sub(r"[\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", words.plain(text, longest=4000))
    cleaned = re.sub(r"^(\d*)([#+=.)-])(?=[#+=-]*(\s|$))", r"\1\\\2", cleaned)
    return cleaned.translate(_ENTITIES).replace("://", "&#58;//").replace("www.", "www&#46;")


def _code(text: str) -> str:
    """Return the text as a code span, if no character in the text can end the span."""
    shown = words.plain(text)
    return f"`{shown}`" if shown.strip() and not set("`|") & set(shown) else _text(text)
