"""How the pieces of a report lie beside and below each other."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text


def fields(rows: Iterable[tuple[str, str | Text]]) -> Table:
    """Lay out names and texts side by side."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(name, text if isinstance(text, Text) else Text(text))
    return table


def spaced(parts: Iterable[RenderableType]) -> Group:
    """Stack the parts with an empty line between them."""
    return Group(*(Padding(part, (1, 0, 0, 0)) if at else part for at, part in enumerate(parts)))
