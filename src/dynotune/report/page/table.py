"""A table of a study's page."""

from __future__ import annotations

from dataclasses import dataclass

NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text.

    Args:
        header: of the columns, as "Setting:code | Why:text". A kind is text, code, number, fate or part; a `fate` or
            `part` is "mark text", the mark being for the eye alone.
        cards: a small screen shows each row as a block.
        more: what was left out; "" for nothing.
    """

    caption: str
    header: str
    rows: list[list[str]]
    more: str = ""
    cards: bool = True

    @property
    def columns(self) -> list[tuple[str, str]]:
        """Name and kind of each column."""
        return [(name, kind) for name, _, kind in (column.rpartition(":") for column in self.header.split(" | "))]
