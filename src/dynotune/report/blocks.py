"""Blocks: what a report consists of, wherever it is shown.

Each document is laid out once, as a `Report` of blocks. Three writers show blocks and know no documents:
`terminal`, `page.html` and `page.markdown`. A writer makes every text harmless for its medium, so that a
layout hands texts of the user's program over as they are.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dynotune.report.parts import Part
from dynotune.schema.diagnosis import Severity

Tone = Literal["", "strong", "dim", "good", "bad", "wary", "note", "code"]
"""What a text means: its colour in the terminal and on the page; a mark of its own in Markdown."""
Kind = Literal["text", "whole", "number", "code", "name"]
"""How a column is set. `whole`: never broken; `number`: right-aligned; `name`: dim, never broken."""


class On(enum.Flag):
    """Where a block is shown.

    SCREEN: a terminal, which has room for about 24 lines. LONG: pipes, files and `--verbose`. PAGE: HTML and
    Markdown.
    """

    SCREEN = enum.auto()
    LONG = enum.auto()
    PAGE = enum.auto()
    TERMINAL = SCREEN | LONG
    ALL_OF_IT = LONG | PAGE
    EVERYWHERE = SCREEN | LONG | PAGE


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of text with one meaning."""

    text: str
    tone: Tone = ""


Phrase = str | Span | tuple[str | Span, ...]
"""Text on one line, made of pieces."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Phrases below each other, within one cell or note."""

    lines: tuple[Phrase, ...]


@dataclass(frozen=True, slots=True)
class Marked:
    """A text with a mark before it, which is decoration: a sign, or the part of a bar that a row is about."""

    mark: str | Part
    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar and its size; sizes are relative to each other."""

    part: Part
    size: float


@dataclass(frozen=True, slots=True)
class Bar:
    """Segments beside each other.

    Args:
        length: fraction of the width that the bar takes.
        offset: fraction of the width before the bar.
    """

    segments: tuple[Segment, ...]
    length: float = 1.0
    offset: float = 0.0


Cell = Phrase | Lines | Marked | Bar


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: Kind = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A block of a report. In measuring, a block is something else, so the class has another name."""

    on: On = On.EVERYWHERE


@dataclass(frozen=True, slots=True)
class Fields(Piece):
    """Names with texts."""

    rows: Sequence[tuple[str, Phrase | Lines]]


@dataclass(frozen=True, slots=True)
class Note(Piece):
    """A paragraph.

    Args:
        label: the word before it, such as "warning".
    """

    text: Phrase | Lines
    tone: Tone = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class Listing(Piece):
    """Lines that stand as they are: a file, or what the command printed last."""

    label: str
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command: a short description, and its words as a shell takes them."""

    what: str
    words: Sequence[str]
    on: On = On.EVERYWHERE


@dataclass(frozen=True, slots=True)
class Commands(Piece):
    """Commands to type.

    Args:
        summary: what they are, if a page opens them only when asked.
    """

    lines: Sequence[CommandLine]
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Table(Piece):
    """Rows of cells.

    Args:
        most: number of rows in the terminal, which then says how many are left out; None for all.
        more: what is said of rows that are left out everywhere; "" if none are.
        all_by: what shows the rows that the terminal leaves out.
        folded: a page opens it only when asked.
        cards: a small screen shows each row as a block of its own.
    """

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    most: int | None = None
    more: str = ""
    all_by: str = "--verbose"
    folded: bool = False
    cards: bool = True

    def without_empty(self) -> Table:
        """Return the table without columns that are empty in every row."""
        kept = [
            at for at in range(len(self.columns)) if any(row[at] not in ("", Span("")) for row in self.rows)
        ]
        if len(kept) == len(self.columns):
            return self
        rows = [[row[at] for at in kept] for row in self.rows]
        return replace(self, columns=[self.columns[at] for at in kept], rows=rows)


@dataclass(frozen=True, slots=True)
class LegendEntry:
    part: Part
    name: str
    figures: Sequence[str]


@dataclass(frozen=True, slots=True)
class BarRow:
    name: str
    figure: str
    bar: Bar


@dataclass(frozen=True, slots=True)
class Bars(Piece):
    """Bars on one scale, and what their parts mean.

    Args:
        label: what is shown, for a reader who does not see it.
    """

    label: str
    rows: Sequence[BarRow]
    legend: Sequence[LegendEntry] = ()


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure to read at a glance.

    Args:
        curve: what the figure was lately, evenly spaced and the newest last; None where it had no value.
        share: how much of a whole is done, from 0 to 1, in place of a curve.
        detail: what goes with the figure; left out where there is no room.
    """

    name: str
    figure: str
    detail: str = ""
    curve: Sequence[float | None] = ()
    share: float | None = None
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Tiles(Piece):
    """Figures beside each other, or below each other where there is little room."""

    tiles: Sequence[Tile]


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a plot: the name of its values, and what it is called.

    Args:
        is_most: whether the largest value of each second is drawn in place of the mean.
    """

    values: str
    name: str
    is_most: bool = False


@dataclass(frozen=True, slots=True)
class Plot(Piece):
    """Values over time, which a live page draws from what its server tells it second by second.

    Args:
        scale: what values are multiplied by to be in `unit`.
        most: upper end of the axis; None if the values give it.
    """

    title: str
    curves: Sequence[Curve]
    unit: str = ""
    scale: float = 1.0
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio with its interval, as a row of a forest plot.

    Args:
        group: the word that it shares with others of its kind, such as "proved".
        mark: sign of its point.
        ratio: None if it was not measured; then `note` says so.
        first: whether it is shown before all others where room is short.
    """

    group: str
    name: str
    ratio: float | None
    ci: tuple[float, float] | None
    mark: str = "●"
    tone: Tone = ""
    figures: tuple[str, str] = ("", "")
    note: str = ""
    first: bool = False


@dataclass(frozen=True, slots=True)
class Forest(Piece):
    """Ratios with their intervals on a logarithmic scale.

    Args:
        margin: relative difference within which two arms count as the same.
        ends: what lies left and right of 1.
        legend: marks with their meanings.
        grouped: whether rows of a group stand under its name.
        screen: number of rows on a screen.
        most: number of rows in a terminal otherwise.
    """

    label: str
    rows: Sequence[Interval]
    margin: float
    ends: tuple[str, str] = ("slower", "faster")
    legend: Sequence[tuple[str, Tone, str]] = ()
    grouped: bool = False
    screen: int = 3
    most: int = 12


@dataclass(frozen=True, slots=True)
class Item:
    """A finding.

    Args:
        cost: what it costs at most.
        test: the figures of its test.
        about: more lines of text, each with a name, such as why it costs.
    """

    id: str
    severity: Severity
    cost: str
    claim: Phrase
    place: Phrase = ""
    test: str = ""
    remedy: Phrase = ""
    predicted: Sequence[str] = ()
    evidence: Sequence[Phrase] = ()
    also: Sequence[str] = ()
    commands: Sequence[CommandLine] = ()
    about: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Findings(Piece):
    """Findings, the worst first.

    Args:
        screen: number of findings after the first one on a screen, one line each.
        most: number of findings on a page.
    """

    items: Sequence[Item]
    screen: int = 2
    most: int = 40


@dataclass(frozen=True, slots=True)
class Section(Piece):
    """Blocks under a title.

    Args:
        aside: what the title is about, in small type; a sentence of its own on a page.
        in_nav: whether a page's list of contents has it.
    """

    title: str
    blocks: Sequence[Piece]
    aside: Phrase = ""
    in_nav: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer in a few words.

    Args:
        large: two or three words, or a ratio.
        rest: what goes with it, such as the interval.
        sentence: the answer in one sentence; "" if large and rest say it all.
        line: what the terminal ends with.
        tone: whether the answer is good.
    """

    large: str
    line: Phrase | Lines
    rest: Phrase = ""
    sentence: Phrase = ""
    tone: Tone = "strong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The report of one document.

    Args:
        kicker: what made the document, such as "dynotune tune".
        command: the words of the user's command, as a shell takes them; () if there is none.
        head: names with texts, and tiles, that come first in the terminal; a page has them as figures below
            the answer.
        settings: the settings that the answer is about.
        use: what to type next; a page has it, with a button that copies it, right below the answer.
        footer: where the rest is.
    """

    kicker: str
    answer: Answer
    command: Sequence[str] = ()
    head: Sequence[Fields | Tiles] = ()
    settings: Sequence[str] = ()
    use: Sequence[CommandLine] = ()
    recipe: Listing | None = None
    sections: Sequence[Piece] = ()
    footer: str = ""


def warnings(texts: Iterable[Phrase], label: str = "warning", *, on: On = On.EVERYWHERE) -> list[Piece]:
    return [Note(text, label=label, on=on) for text in texts]


def wary(texts: Iterable[Phrase], label: str = "warning") -> list[Piece]:
    """Lay out what makes an answer less certain: lines in the terminal, a section of a page, if any."""
    known = list(texts)
    return [
        *warnings(known, label, on=On.TERMINAL),
        Section("Be wary of", warnings(known, label), on=On.PAGE),
    ]
