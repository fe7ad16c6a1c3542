"""Lay out tables, fields, and command lines that a shell can read, with rich."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dynotune.text import words

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


def table(*columns: str, style: str = "dim", gap: int = 2) -> Table:
    """Build an empty table without ruled lines.

    Args:
        columns: each column as "Header:kind", with a kind of `KINDS`. If no column has a header, no header is
            shown.
        style: style of the headers.
        gap: number of blanks between columns.
    """
    parts = [column.rpartition(":") for column in columns]
    shows = any(header for header, _, _ in parts)
    made = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style=style, show_header=shows)
    for header, _, kind in parts:
        made.add_column(header, **KINDS[kind])
    return made


def one_line(text: str) -> Text:
    """Return a text for a column of kind `line`: what has no room is cut, and the other columns are whole."""
    return Text(words.plain(text), no_wrap=True, overflow="ellipsis")


def fields(rows: Iterable[tuple[str, str | Text]]) -> Table:
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
