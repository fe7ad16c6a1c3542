"""The writer for the terminal: show a report's blocks with rich, the answer last.

A screen of 24 lines gets the blocks for `On.SCREEN`, everything else those for `On.LONG`. In plain mode, for
screen readers and logs, nothing is drawn or set in columns: each row is a sentence of names and values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment as RichSegment
from rich.text import Text

from dynotune.report import layout, terminal_forest, terminal_tiles
from dynotune.report.blocks import (
    Bar,
    Bars,
    Cell,
    Column,
    CommandLine,
    Commands,
    Fields,
    Findings,
    Forest,
    Item,
    LegendEntry,
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
    Tone,
)
from dynotune.report.loudness import is_brief, is_plain, most
from dynotune.report.parts import Part, columns
from dynotune.schema.diagnosis import Severity
from dynotune.text import words

STYLES: dict[Tone, str] = {
    "": "",
    "strong": "bold",
    "dim": "dim",
    "good": "bold green",
    "bad": "bold red",
    "wary": "yellow",
    "note": "cyan",
    "code": "cyan",
}
SEVERITY_TONES: dict[Severity, Tone] = {"high": "bad", "medium": "wary", "low": "note"}
"""The tone of each severity, in the terminal and on pages alike."""
GRID_KINDS = {"text": "text", "code": "text", "whole": "whole", "number": "figure", "name": "name"}
WIDEST_BAR, WIDEST_BAR_IN_A_CELL = 100, 60
WIDTH_OF_TWO_COLUMNS = 78
NUM_EVIDENCE, LONGEST_EVIDENCE = 4, 200
NUM_PREDICTED_ON_SCREEN = 1
LONGEST_COMMAND = 4000
GAP = 2
WIDEST_NAME = 0.42
"""The most of a line's width that names take beside what they name."""
LONGEST_WORD = 16
"""A word of a table that is longer may go on in the next line."""
NOTHING = "–"
LINES_OF_OTHERS = 2
"""Lines of a screen that are not the report's: where it is kept, and what the shell writes after it."""


def shown(report: Report, medium: On | None = None) -> RenderableType:
    """Show a report: what it is about, its sections, what to type next, and the answer last.

    `medium`: `On.SCREEN` or `On.LONG`; by default as standard output and `--verbose` ask for.
    """
    medium = medium or (On.SCREEN if is_brief() else On.LONG)
    return _OneScreen(report) if medium is On.SCREEN else _whole(report, medium)


def _whole(report: Report, medium: On) -> RenderableType:
    use = Commands([line for line in report.use if medium in line.on])
    blocks = _stacked([*report.head, *report.sections, *([use] if use.lines else [])], medium)
    pieces: list[RenderableType] = []
    for at, block in enumerate(blocks):
        # No Padding: it fills lines with blanks, and a blank behind a backslash ends the line for a shell.
        pieces += [Text()] if at and not _follows(block, blocks[at - 1], use, medium) else []
        pieces.append(_shown(block, medium))
    pieces += [Text()] if blocks and not (medium is On.SCREEN and use.lines) else []
    return Group(*pieces, _fields([("verdict", _answer(report))]))


@dataclass(frozen=True, slots=True)
class _OneScreen:
    """A report for a screen, with fewer findings and commands where all of them would scroll its top away."""

    report: Report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        free = options.update(height=None)
        for report in _ever_shorter(self.report):
            drawn = _whole(report, On.SCREEN)
            if len(console.render_lines(drawn, free, pad=False)) <= console.height - LINES_OF_OTHERS:
                break
        yield drawn


def _ever_shorter(report: Report) -> Iterator[Report]:
    """Yield the report, then with fewer findings, and then without their commands if it ends with some."""
    yield report
    yield _with_findings(report, lambda findings: replace(findings, screen=0))
    if report.use:
        yield _with_findings(report, _without_commands)


def _without_commands(findings: Findings) -> Findings:
    return replace(findings, screen=0, items=[replace(item, commands=()) for item in findings.items])


def _with_findings(report: Report, change: Callable[[Findings], Findings]) -> Report:
    def changed(block: Piece) -> Piece:
        if isinstance(block, Section):
            return replace(block, blocks=[changed(inner) for inner in block.blocks])
        return change(block) if isinstance(block, Findings) else block

    return replace(report, sections=[changed(block) for block in report.sections])


@dataclass(frozen=True, slots=True)
class Fitted:
    """A report in a fixed number of lines: what comes before the answer is cut, the answer is not.

    Args:
        room: the number of lines.
    """

    report: Report
    room: int
    medium: On = On.SCREEN

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        free = options.update(height=None)
        lines = console.render_lines(_whole(self.report, self.medium), free)
        answer = _whole(replace(self.report, head=[], sections=[]), self.medium)
        num_last = min(self.room, len(console.render_lines(answer, free, pad=False)))
        left_out = max(0, len(lines) - self.room)
        first = lines[: len(lines) - num_last - left_out]
        for line in [*first, *lines[len(lines) - num_last :]]:
            yield from line
            yield RichSegment.line()


def _follows(block: Piece, before: Piece, use: Piece, medium: On) -> bool:
    """Return whether no empty line stands before a block; a screen has none to spare for notes."""
    is_note, after_note = isinstance(block, (Note, _Notes)), isinstance(before, (Note, _Notes))
    return (block is use and after_note) or (is_note and medium is On.SCREEN)


def _answer(report: Report) -> Text:
    line = report.answer.line
    lines = line.lines if isinstance(line, Lines) else (line,)
    first = text_of(lines[0])
    first.stylize(STYLES[report.answer.tone] or "bold")
    return Text("\n").join([first, *map(text_of, lines[1:])])


def _stacked(blocks: Iterable[Piece], medium: On) -> list[Piece]:
    """Return the blocks for the medium; notes, and fields, that follow each other become one block."""
    stacked: list[Piece] = []
    for block in blocks:
        if medium not in block.on or (isinstance(block, Section) and not _kept(block, medium)):
            continue
        if isinstance(block, Note) and stacked and isinstance(stacked[-1], (Note, _Notes)):
            before = stacked.pop()
            notes = before.notes if isinstance(before, _Notes) else (before,)
            stacked.append(_Notes(notes=(*notes, block)))
        elif isinstance(block, Fields) and stacked and isinstance(stacked[-1], Fields):
            stacked[-1] = Fields([*stacked[-1].rows, *block.rows])
        else:
            stacked.append(block)
    return stacked


def _kept(section: Section, medium: On) -> list[Piece]:
    return [block for block in section.blocks if medium in block.on]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Notes(Piece):
    """Notes below each other."""

    notes: tuple[Note, ...]


def _shown(block: Piece, medium: On) -> RenderableType:
    match block:
        case Section():
            inside = [_shown(inner, medium) for inner in _stacked(block.blocks, medium)]
            return Group(title(block.title, block.aside), *inside)
        case Fields():
            return _fields(block.rows)
        case Note():
            return _note(block)
        case _Notes():
            return Group(*map(_note, block.notes))
        case Listing():
            lines = [Text(f"  │ {_plain(line)}", style="dim") for line in block.lines]
            return Group(*([Text(_plain(block.label))] if block.label else []), *lines)
        case Commands():
            return Group(*_commands(block.lines))
        case Table():
            return _table(block.without_empty())
        case Bars():
            return _bars(block)
        case Tiles():
            return _tiles(block)
        case Forest():
            return _forest(block, medium)
        case Findings():
            return _findings(block, medium)
    raise TypeError(f"no block of a report: {type(block).__name__}")


def text_of(phrase: Phrase, *, style: str = "", longest: int = 1000) -> Text:
    """Return a phrase as text for the terminal, without any sign that could control it."""
    pieces = phrase if isinstance(phrase, tuple) else (phrase,)
    text = Text(style=style)
    for piece in pieces:
        span = piece if isinstance(piece, Span) else Span(piece)
        text.append(_plain(span.text, longest), style=STYLES[span.tone] or None)
    return text


def _plain(text: str, longest: int = 1000) -> str:
    return words.plain(text, longest=longest)


def title(text: str, aside: Phrase = "") -> Text:
    detail = text_of(aside, style="dim")
    heading = Text(_plain(text), style="bold")
    return Text.assemble(heading, (", ", "dim"), detail) if detail.plain else heading


def _note(note: Note) -> RenderableType:
    lines = note.text.lines if isinstance(note.text, Lines) else (note.text,)
    text = Text("\n").join(text_of(line, style=STYLES[note.tone]) for line in lines)
    return layout.Written(Text.assemble((f"{note.label}: ", "yellow"), text) if note.label else text)


def _fields(rows: Iterable[tuple[str, Phrase | Lines | Text]]) -> RenderableType:
    """Lay out names and texts side by side."""
    texts = [(name, text if isinstance(text, Text) else _cell(text)) for name, text in rows]
    if is_plain():
        return Group(*(Text.assemble(f"{name}: " if name else "", text) for name, text in texts))
    return _NamedTexts([(_plain(name), text) for name, text in texts])


@dataclass(frozen=True, slots=True)
class _NamedTexts:
    """Names with texts beside them; below them where names would take too much of the width."""

    rows: Sequence[tuple[str, Text]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widest = max((cell_len(name) for name, _ in self.rows), default=0)
        if widest <= WIDEST_NAME * options.max_width:
            grid = layout.table(":name", ":text")
            for name, text in self.rows:
                grid.add_row(name, text)
            yield grid
            return
        for name, text in self.rows:
            yield layout.Written(Text(name, style="dim"))
            below = layout.table(":text", ":text")
            below.add_row("", text)
            yield below


def _cell(cell: Cell | Text) -> Text:
    """Return a cell as text."""
    match cell:
        case Text():
            return cell
        case Lines():
            return Text("\n").join(map(text_of, cell.lines))
        case Marked():
            if is_plain():
                return text_of(Span(cell.text, cell.tone))
            mark = _glyph(cell.mark) if isinstance(cell.mark, Part) else Text(cell.mark)
            return Text.assemble(mark, " ", (_plain(cell.text), STYLES[cell.tone]))
        case Bar():
            return Text()
        case _:
            return text_of(cell)


def _glyph(part: Part) -> Text:
    return Text(part.glyph, style=part.style)


def _table(table: Table) -> RenderableType:
    limit = most(table.most) if table.most is not None else len(table.rows)
    rows = table.rows[:limit]
    left = len(table.rows) - len(rows)
    notes = [Text(f"{left} more: {table.all_by}", style="dim")] if left > 0 else []
    notes += [Text(table.more, style="dim")] if table.more else []
    if is_plain():
        return Group(*(Text("; ").join(_named_cells(table, row)) for row in rows), *notes)
    grid = layout.table(*(f"{column.name}:{GRID_KINDS[column.kind]}" for column in table.columns))
    for at, column in enumerate(grid.columns):
        if any(isinstance(row[at], Bar) for row in rows):
            column.ratio = 1
    for row in rows:
        grid.add_row(*map(_drawn, row))
    return Group(_Fitting(grid, replace(table, rows=rows)), *notes)


@dataclass(frozen=True, slots=True)
class _Fitting:
    """A table; where its columns have no room beside each other, each row as names with values."""

    grid: layout.Grid
    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._has_room(options.max_width):
            yield self.grid
            return
        for first, *rest in self.table.rows:
            yield _drawn(first)
            named = layout.table(":name", ":text")
            for column, cell in zip(self.table.columns[1:], rest, strict=True):
                if isinstance(cell, Bar) or _cell(cell).plain not in ("", NOTHING):
                    named.add_row(f"  {column.name}", _drawn(cell))
            yield named

    def _has_room(self, width: int) -> bool:
        """Return whether names leave most of the width, and all columns have what they need at least."""
        columns = enumerate(self.table.columns)
        widths = [_least(column, [row[at] for row in self.table.rows]) for at, column in columns]
        if not widths:
            return True
        return widths[0] <= WIDEST_NAME * width and sum(widths) + GAP * (len(widths) - 1) <= width


def _least(column: Column, cells: Sequence[Cell]) -> int:
    texts = [column.name, *(_cell(cell).plain for cell in cells)]
    if column.kind not in ("text", "code"):
        return max(map(cell_len, texts))
    longest = max((cell_len(word) for text in texts for word in text.split()), default=0)
    return min(longest, LONGEST_WORD)


def _named_cells(table: Table, row: Sequence[Cell]) -> list[Text]:
    cells = zip(table.columns, map(_cell, row), strict=True)
    return [
        Text.assemble(f"{column.name} " if column.name else "", text) for column, text in cells if text.plain
    ]


def _drawn(cell: Cell) -> RenderableType:
    if isinstance(cell, Marked) and isinstance(cell.mark, Part):
        return _WithMark(cell.mark, text_of(Span(cell.text, cell.tone)))
    return DrawnBar(cell, WIDEST_BAR_IN_A_CELL) if isinstance(cell, Bar) else _cell(cell)


@dataclass(frozen=True, slots=True)
class _WithMark:
    """A text with the sign of a part before it."""

    part: Part
    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text.assemble(drawn_part(self.part, options), " ", self.text)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, 2 + self.text.cell_len)


def drawn_part(part: Part, options: ConsoleOptions, num_columns: int = 1) -> Text:
    return Text((part.ascii_glyph if options.ascii_only else part.glyph) * num_columns, style=part.style)


@dataclass(frozen=True, slots=True)
class DrawnBar:
    """A bar as wide as there is room, up to a width in columns."""

    bar: Bar
    widest: int = WIDEST_BAR

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = min(options.max_width, self.widest)
        width = max(1, round(room * self.bar.length)) if self.bar.length else 0
        segments = self.bar.segments
        line = Text(" " * round(room * self.bar.offset), no_wrap=True, overflow="crop", end="\n")
        for segment, num in zip(segments, columns([one.size for one in segments], width), strict=True):
            line.append_text(drawn_part(segment.part, options, num))
        yield line

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(8, self.widest), min(options.max_width, self.widest))


def _bars(bars: Bars) -> RenderableType:
    if is_plain():
        rows = [Text(": ".join(filter(None, [row.name, row.figure]))) for row in bars.rows if row.name]
        entries = [Text(f"{_plain(one.name)}: {' '.join(one.figures)}") for one in bars.legend]
        return Group(*rows, *entries)
    if len(bars.rows) == 1 and not bars.rows[0].name:
        drawn: RenderableType = DrawnBar(bars.rows[0].bar)
    else:
        grid = layout.table(":whole", ":number", ":wide")
        for row in bars.rows:
            grid.add_row(_plain(row.name), row.figure, DrawnBar(row.bar))
        drawn = grid
    return Group(drawn, *([_Legend(bars.legend)] if bars.legend else []))


def _tiles(tiles: Tiles) -> RenderableType:
    if is_plain():
        said = [(tile.name, ", ".join(filter(None, [tile.figure, tile.detail]))) for tile in tiles.tiles]
        return Group(*(Text(_plain(f"{name}: {text}")) for name, text in said))
    return terminal_tiles.DrawnTiles(tiles.tiles, STYLES)


@dataclass(frozen=True, slots=True)
class _Legend:
    """The parts of bars with their figures, in two columns if there is room."""

    entries: Sequence[LegendEntry]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        num_columns = 2 if options.max_width >= WIDTH_OF_TWO_COLUMNS else 1
        num_figures = max(len(entry.figures) for entry in self.entries)
        legend = layout.grid()
        for _ in range(num_columns):
            legend.add_column(no_wrap=True)
            # In one column, names give way to figures.
            legend.add_column(no_wrap=num_columns > 1)
            for _ in range(num_figures):
                legend.add_column(justify="right", no_wrap=True)
        num_rows = -(-len(self.entries) // num_columns)
        for at in range(num_rows):
            cells: list[RenderableType] = []
            for entry in self.entries[at::num_rows]:
                cells += [drawn_part(entry.part, options), _plain(entry.name), *entry.figures]
            legend.add_row(*cells)
        yield legend


def _forest(forest: Forest, medium: On) -> RenderableType:
    limit = forest.screen if medium is On.SCREEN else most(forest.most)
    rows = terminal_forest.chosen([row for row in forest.rows if row.ratio is not None], limit)
    if is_plain():
        return Group(
            *(Text(", ".join(filter(None, [one.group, _plain(one.name), *one.figures]))) for one in rows)
        )
    left = sum(row.ratio is not None for row in forest.rows) - len(rows)
    more = [Text(f"{left} more: report.html has all", style="dim")] if left and medium is On.LONG else []
    return Group(terminal_forest.DrawnForest(rows, STYLES), *more)


def _commands(lines: Iterable[CommandLine], *, named: bool = True) -> list[RenderableType]:
    pieces: list[RenderableType] = []
    for line in lines:
        pieces += [Text(f"{line.what}:", style="dim")] if named and line.what else []
        pieces.append(layout.ShellCommand(line.words, indent=2))
    return pieces


def _findings(findings: Findings, medium: On) -> RenderableType:
    items = findings.items
    if medium is On.LONG:
        return Group(*(_finding(item, medium) for item in items))
    offers = next((one for one in items[: findings.screen] if one.commands), items[0])
    few = items[1 : findings.screen + (offers is items[0])]
    rest = [_finding(one, medium, only_remedy=True) if one is offers else _title_of(one) for one in few]
    left = len(items) - 1 - len(rest)
    more = [Text(f"and {left} more", style="dim")] if left else []
    return Group(_finding(items[0], medium), *rest, *more)


def _finding(item: Item, medium: On, *, only_remedy: bool = False) -> RenderableType:
    """Show a finding: its title, and below it claim, place and remedy, or `only_remedy`; then its
    commands."""
    grid = _title_of(item)
    lines = [text_of(item.remedy)] if only_remedy else _lines(item, medium)
    grid.add_row("", Text("\n").join(lines))
    few = [] if only_remedy else item.predicted[:NUM_PREDICTED_ON_SCREEN]
    foretold = few if medium is On.SCREEN else item.predicted
    predicted = [Text(f"  {_plain(line)}", style="dim") for line in foretold]
    return Group(grid, *predicted, *_commands(item.commands, named=False))


def _title_of(item: Item) -> layout.Grid:
    """Show severity, id and cost of a finding."""
    grid = layout.grid()
    grid.add_column(no_wrap=True, width=8)
    grid.add_column(overflow="fold")
    severity = Text(item.severity, style=STYLES[SEVERITY_TONES[item.severity]])
    grid.add_row(severity, Text.assemble((_plain(item.id), "bold"), "  ", (item.cost, "dim")))
    return grid


def _lines(item: Item, medium: On) -> list[Text]:
    lines = [text_of(item.claim), text_of(item.place)]
    if medium is On.LONG:
        evidence = item.evidence[: most(NUM_EVIDENCE)]
        lines.append(text_of(item.test, style="dim"))
        lines += [text_of(line, style="dim", longest=LONGEST_EVIDENCE) for line in evidence]
        lines += [text_of(f"{name}: {text}", style="dim") for name, text in item.about]
        lines += [text_of(f"explains {', '.join(item.also)}", style="dim")] if item.also else []
    lines.append(text_of(item.remedy))
    return [line for line in lines if line.plain]
