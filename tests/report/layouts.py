"""Find blocks in the layout of a document, for the tests of layouts and writers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from dynotune.report.blocks import Forest, Piece, Section
from dynotune.report.documents import layout_of

B = TypeVar("B", bound=Piece)


def blocks_of(document: Any, kind: type[B]) -> list[B]:
    """Return all blocks of a kind, in their order."""
    return [block for block in _walk(layout_of(document).sections) if isinstance(block, kind)]


def section_of(document: Any, title: str) -> Section:
    (found,) = [one for one in blocks_of(document, Section) if one.title == title]
    return found


def forest_of(document: Any, label: str) -> Forest:
    """Return the picture of ratios whose label begins so."""
    (found,) = [one for one in blocks_of(document, Forest) if one.label.startswith(label)]
    return found


def _walk(blocks: Sequence[Piece]) -> Iterator[Piece]:
    for block in blocks:
        yield block
        if isinstance(block, Section):
            yield from _walk(block.blocks)
