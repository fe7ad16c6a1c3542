"""A table of a study's page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Column = Literal["text", "code", "number", "fate", "part"]
NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text.

    Args:
        columns: header and kind. A `fate` or `part` is "mark text", the mark being for the eye alone.
        cards: a small screen shows each row as a block.
        more: what was left out; "" for nothing.
    """

    caption: str
    columns: list[tuple[str, Column]]
    rows: list[list[str]]
    more: str = ""
    cards: bool = True
