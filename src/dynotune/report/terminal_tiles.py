"""Tiles in the terminal: a row each, of a figure, its last minute or its share as a picture, and a detail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from dynotune.report import layout
from dynotune.report.blocks import Tile, Tone
from dynotune.text import words

LEVELS, ASCII_LEVELS = "▁▂▃▄▅▆▇█", "_.-~=+*#"
DONE, LEFT, ASCII_DONE, ASCII_LEFT = "━", "─", "#", "-"
WIDEST_PICTURE, USUAL_PICTURE, NARROWEST_PICTURE = 24, 16, 8
GAP = 2
HEADROOM = 1.2
"""The top of a sparkline over its largest value, so that a steady figure is no solid bar."""


@dataclass(frozen=True, slots=True)
class DrawnTiles:
    """A row for each tile. Where there is little room, details are left out before pictures shrink."""

    tiles: Sequence[Tile]
    styles: Mapping[Tone, str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        name = max((cell_len(tile.name) for tile in self.tiles), default=0)
        figure = max((cell_len(tile.figure) for tile in self.tiles), default=0)
        detail = max((cell_len(tile.detail) for tile in self.tiles), default=0)
        room = options.max_width - name - figure - 2 * GAP
        width = min(room, max(USUAL_PICTURE, min(WIDEST_PICTURE, room - GAP - detail)))
        pictured, detailed = room >= NARROWEST_PICTURE, room - width - GAP >= min(detail, USUAL_PICTURE)
        grid = layout.table(":name", ":whole", *[":whole"] * pictured, *[":line"] * detailed, gap=GAP)
        for tile in self.tiles:
            cells = [Text(words.plain(tile.name)), Text(words.plain(tile.figure), style=self._bold(tile))]
            cells += [drawn(tile, width, self.styles, options.ascii_only)] if pictured else []
            cells += [Text(words.plain(tile.detail), style="dim")] if detailed else []
            grid.add_row(*cells)
        yield grid

    def _bold(self, tile: Tile) -> str:
        return self.styles[tile.tone] or "bold"


def drawn(tile: Tile, width: int, styles: Mapping[Tone, str], ascii_only: bool) -> Text:
    """Draw a tile's curve as a sparkline, or its share as a bar; nothing if it has neither."""
    style = styles[tile.tone] or styles["note"]
    if tile.share is not None:
        return bar(tile.share, width, style=style, ascii_only=ascii_only)
    return Text(sparkline(tile.curve, width, ascii_only=ascii_only), style=style)


def bar(share: float, width: int, *, style: str, ascii_only: bool) -> Text:
    """Draw how much of a whole is done, in `width` columns."""
    num = round(min(1.0, max(0.0, share)) * width)
    done, left = (ASCII_DONE, ASCII_LEFT) if ascii_only else (DONE, LEFT)
    return Text.assemble((done * num, style), (left * (width - num), "dim"))


def pulse(turns: float, width: int, *, ascii_only: bool) -> Text:
    """Draw a bar whose end is not known: a quarter of it goes to and fro once a turn."""
    length = max(1, width // 4)
    place = round((width - length) * (1 - abs(1 - 2 * (turns % 1))))
    done, left = (ASCII_DONE, ASCII_LEFT) if ascii_only else (DONE, LEFT)
    before, after = left * place, left * (width - length - place)
    return Text.assemble((before, "dim"), (done * length, "cyan"), (after, "dim"))


def sparkline(values: Sequence[float | None], width: int, *, ascii_only: bool = False) -> str:
    """Draw values as one character for each column, from 0 up; a blank where nothing is known.

    A single value is no curve.
    """
    if sum(value is not None for value in values) < 2:
        return ""
    levels = ASCII_LEVELS if ascii_only else LEVELS
    means = [_mean(part) for part in _parts(values, width)]
    top = HEADROOM * max((mean for mean in means if mean is not None), default=0.0)
    return "".join(
        " " if mean is None else levels[min(len(levels) - 1, int(len(levels) * mean / top)) if top > 0 else 0]
        for mean in means
    )


def _parts(values: Sequence[float | None], width: int) -> list[Sequence[float | None]]:
    """Divide the values into neighbouring parts, one a column, or one a value if those are fewer."""
    num = min(width, len(values))
    return [values[at * len(values) // num : (at + 1) * len(values) // num] for at in range(num)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [max(0.0, value) for value in values if value is not None]
    return sum(known) / len(known) if known else None
