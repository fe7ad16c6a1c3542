"""Lay out tables, fields, and command lines that a shell can read, with rich."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dynotune.text import signs, words

KINDS: dict[str, dict[str, Any]] = {
    "": {},
    "text": {"overflow": "fold"},
    "wide": {"overflow": "fold", "ratio": 1},
    "dim": {"overflow": "fold", "style": "dim"},
    "whole": {"no_wrap": True},
    "line": {"overflow": "ellipsis"},
    "right": {"justify": "right"},
    "number": {"justify": "right", "no_wrap": True},
    "figure": {"justify": "right", "no_wrap": True, "overflow": "fold"},
    "name": {"style": "dim", "no_wrap": True},
}


@dataclass(frozen=True, slots=True)
class Written:
    """A text in signs that the terminal has, so that columns stand where they were set."""

    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._within(options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._within(options))

    def _within(self, options: ConsoleOptions) -> Text:
        known = signs.within("…", options.encoding)
        if not options.ascii_only or (self.text.plain.isascii() and not self._is_cut(options)):
            return self.text
        text = self.text.blank_copy()
        for at, sign in enumerate(self.text.plain):
            # What stands for a sign has the sign's style.
            text.append_text(_restyled(self.text[at], signs.within(sign, options.encoding)))
        if self._is_cut(options) and text.cell_len > options.max_width:
            text.truncate(max(0, options.max_width - len(known)), overflow="crop")
            text.append(known)
        return text

    def _is_cut(self, options: ConsoleOptions) -> bool:
        return "ellipsis" in (self.text.overflow, options.overflow)


def _restyled(sign: Text, instead: str) -> Text:
    styles = [span.style for span in sign.spans]
    text = Text(instead, style=sign.style)
    for style in styles:
        text.stylize(style)
    return text


class Grid(Table):
    """A table of rich whose texts are written in signs that the terminal has."""

    def add_row(self, *cells: RenderableType | None, **more: Any) -> None:
        super().add_row(*map(_written, cells), **more)


def _written(cell: RenderableType | None) -> RenderableType | None:
    if isinstance(cell, str):
        return Written(Text(cell))
    return Written(cell) if isinstance(cell, Text) else cell


def table(*columns: str, style: str = "dim", gap: int = 2) -> Grid:
    """Build an empty table without ruled lines.

    Args:
        columns: each column as "Header:kind", with a kind of `KINDS`. If no column has a header, no header is
            shown.
        style: style of the headers.
        gap: number of blanks between columns.
    """
    parts = [column.rpartition(":") for column in columns]
    shows = any(header for header, _, _ in parts)
    made = Grid(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style=style, show_header=shows)
    for header, _, kind in parts:
        made.add_column(header, **KINDS[kind])
    return made


def grid() -> Grid:
    """Build an empty table without headers, whose columns are added later."""
    return Grid(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False)


def one_line(text: str) -> Text:
    """Return a text for a column of kind `line`: what has no room is cut, and the other columns are whole."""
    return Text(words.plain(text), no_wrap=True, overflow="ellipsis")


def fields(rows: Iterable[tuple[str, str | Text]]) -> Grid:
    """Lay out names and texts side by side."""
    made = table(":name", ":text")
    for name, text in rows:
        made.add_row(name, text if isinstance(text, Text) else Text(text))
    return made


def spaced(parts: Iterable[RenderableType]) -> Group:
    """Stack the parts with an empty line between them."""
    return Group(*(Padding(part, (1, 0, 0, 0)) if at else part for at, part in enumerate(parts)))


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A command, wrapped over several lines, which a shell reads as one command.

    A word that is longer than a line is left for the terminal to wrap: a line's end inside it would break it.

    Args:
        quoted: the command's words, quoted for a shell.
        indent: blanks before the first line.
    """

    quoted: Sequence[str]
    indent: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first, *rest = [words.plain(word, longest=4000) for word in self.quoted]
        line = " " * self.indent + first
        for word in rest:
            if cell_len(f"{line} {word} \\") > options.max_width:
                yield _unbroken(f"{line} \\")
                line = " " * (self.indent + 1)
            line = f"{line} {word}"
        yield _unbroken(line)


def _unbroken(line: str) -> Text:
    return Text(line, style="cyan", no_wrap=True, overflow="ignore")
