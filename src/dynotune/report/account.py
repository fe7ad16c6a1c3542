"""Lay out what the whole time of a run went to: one table that sums to the wall clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from dynotune.report.blocks import (
    Answer,
    Bar,
    BarRow,
    Bars,
    Cell,
    Column,
    Fields,
    LegendEntry,
    Listing,
    Marked,
    Note,
    On,
    Phrase,
    Piece,
    Report,
    Section,
    Segment,
    Span,
    Table,
    wary,
)
from dynotune.report.parts import OF_A_RUN
from dynotune.report.places import place, prose
from dynotune.schema.account import ACTIVITIES, PARTS, AccountDetail, AccountRow, RunAccount
from dynotune.schema.facts import Unknown
from dynotune.schema.trace_summary import Place
from dynotune.text import words

LEAST_ON_SCREEN, LEAST = 0.01, 0.0005
"""Smallest rows of the table on a screen and elsewhere, as shares of the run; smaller rows are summed."""
NUM_DETAILS = 3
LEAST_DETAIL = 0.05
"""Smallest detail beside a row, as a share of the row."""
LOUD_UNEXPLAINED = 0.05
"""From this share of the run on, the stack that was seen most in unexplained time is shown."""


def layout(account: RunAccount) -> Report:
    unexplained = account.part_s("unexplained") / account.wall_s if account.wall_s else 0.0
    return Report(
        kicker="dynotune account",
        answer=_answer(account),
        command=words.shell(account.command),
        head=[
            Fields([("command", words.command(account.command))], on=On.LONG),
            Fields(list(_paces(account))),
        ],
        sections=[
            Section("Where the run went", [*_bars(account), *tables(account)], aside=_aside(account)),
            *_stack(account, unexplained),
            *_saved(account),
            *wary(map(prose, account.notes), "note"),
        ],
        footer="account.json in the run folder has everything shown here; dynotune report shows it again.",
    )


def tables(account: RunAccount) -> list[Table]:
    """Lay out the rows by part, with small rows summed; a screen gets fewer rows."""
    return [
        _table(account, LEAST_ON_SCREEN, On.SCREEN),
        _table(account, LEAST, On.ALL_OF_IT),
    ]


def before_steps(account: RunAccount | Unknown) -> list[Piece]:
    """Lay out where the time went before steps were timed, as a part of a diagnosis; [] if that is not known.

    A screen gets a sentence.
    """
    if isinstance(account, Unknown) or not account.rows:
        return []
    again = "dynotune account shows the whole run"
    return [
        Note(in_short(account), on=On.SCREEN),
        Section("Before the timed steps", tables(account)[1:], aside=again, on=On.ALL_OF_IT),
    ]


def in_short(account: RunAccount) -> str:
    """Say what took most of the start, and what the other parts of the run took."""
    whole_s = account.wall_s
    if not whole_s:
        return "Nothing was recorded."
    largest = sorted((row for row in account.rows if row.part == "start"), key=lambda row: -row.took_s)
    mostly = ", ".join(f"{ACTIVITIES[row.activity]} {words.duration(row.took_s)}" for row in largest[:3])
    mostly = f": {mostly}." if mostly else "."
    if not account.num_steps:
        return f"No step was found. The run took {words.duration(whole_s)}{mostly}"
    others = [
        f"{PARTS[part]} {words.fine_share(account.part_s(part) / whole_s)}"
        for part in ("steps", "between", "end")
        if account.part_s(part) >= LEAST * whole_s
    ]
    said = f"The start took {words.duration(account.part_s('start'))}{mostly}"
    if not account.is_whole:
        return said
    return said + (f" Of {words.duration(whole_s)}, {', '.join(others)}." if others else "")


def _answer(account: RunAccount) -> Answer:
    unexplained = account.part_s("unexplained") / account.wall_s if account.wall_s else 0.0
    sentence = f"{in_short(account)} Unexplained: {words.fine_share(unexplained)}."
    return Answer(
        large=words.duration(account.wall_s),
        rest="from the launch to the end" if account.is_whole else "from the launch to the timed steps",
        sentence=sentence,
        line=sentence,
        tone="strong" if unexplained < LOUD_UNEXPLAINED else "wary",
    )


def _aside(account: RunAccount) -> str:
    others = account.num_processes - 1
    beside = f", of {others} more not counted again" if others > 0 else ""
    return f"the wall clock of process {account.pid}{beside}" if account.pid else "the wall clock"


def _paces(account: RunAccount) -> Iterator[tuple[str, Phrase]]:
    ended = "" if account.exit_code is None else f", ended {words.ending(account.exit_code)}"
    yield "run", f"{words.duration(account.wall_s)}{ended}"
    if account.num_steps:
        yield "steps", f"{account.num_steps:,}" + (f": {account.step}" if account.step else "")
    if account.per_thousand_steps_s is not None:
        yield "1,000 steps", words.hours(account.per_thousand_steps_s) + _about(account.per_thousand_steps_j)
    if account.per_epoch_s is not None:
        yield "an epoch", words.hours(account.per_epoch_s) + _about(account.per_epoch_j)
    yield "energy", _known(account.energy_j, words.energy, of=" of the GPUs, over the whole run")


def _about(joules: float | Unknown) -> str:
    """Write the energy of a part of the run, which is in proportion to its time; "" if it is not known."""
    return "" if isinstance(joules, Unknown) else f", about {words.energy(joules)}"


def _known(value: float | Unknown, write: Callable[[float], str], *, of: str = "") -> str:
    return f"unknown: {value.reason}" if isinstance(value, Unknown) else write(value) + of


def _bars(account: RunAccount) -> list[Piece]:
    sizes = {part: account.part_s(part) for part in OF_A_RUN}
    bar = Bar(tuple(Segment(OF_A_RUN[part], size) for part, size in sizes.items()))
    legend = [
        LegendEntry(
            OF_A_RUN[part],
            OF_A_RUN[part].label,
            [words.fine_share(size / account.wall_s), words.duration(size, column=True)],
        )
        for part, size in sizes.items()
        if size > 0
    ]
    return [Bars("Where the run went, by its parts", [BarRow("", "", bar)], legend)] if legend else []


def _table(account: RunAccount, least: float, on: On) -> Table:
    rows: list[list[Cell]] = []
    for part, drawn in OF_A_RUN.items():
        own = [row for row in account.rows if row.part == part]
        if not own:
            continue
        part_s = account.part_s(part)
        rows.append([Marked(drawn, drawn.label, "strong"), *_times(part_s, account.wall_s, "strong"), ""])
        shown = [row for row in own if row.took_s >= least * account.wall_s]
        rows += [
            [f"  {ACTIVITIES[row.activity]}", *_times(row.took_s, account.wall_s), _mostly(row)]
            for row in shown
            if part != "unexplained"
        ]
        small_s = part_s - sum(row.took_s for row in shown)
        if len(own) > len(shown) > 0 and small_s > 0:
            rows.append(["  smaller ones", *_times(small_s, account.wall_s), ""])
    whole = [Span("whole run" if account.is_whole else "up to then", "strong")]
    rows.append([*whole, *_times(account.wall_s, account.wall_s, "strong"), ""])
    columns = [Column(""), Column("time", "number"), Column("share", "number"), Column("mostly")]
    return Table("", columns, rows, cards=False, on=on)


def _times(took_s: float, wall_s: float, tone: Literal["", "strong"] = "") -> list[Cell]:
    share = words.fine_share(took_s / wall_s) if wall_s else ""
    return [Span(words.duration(took_s, column=True), tone), Span(share, tone)]


def _mostly(row: AccountRow) -> Phrase:
    """Name the largest details of a row: packages with their time, or the first place."""
    large = [each for each in row.details if each.took_s >= LEAST_DETAIL * row.took_s][:NUM_DETAILS]
    if not large:
        return ""
    if row.activity == "imports":
        return ", ".join(f"{each.name} {words.duration(each.took_s)}" for each in large)
    parts: list[str | Span] = []
    for each in large[: 1 if row.part == "start" else 2]:
        parts += [", " if parts else "", *_place(each), f" {words.fine_share(each.took_s / row.took_s)}"]
    return tuple(parts)


def _place(detail: AccountDetail) -> tuple[str | Span, ...]:
    found = place(Place(function=detail.name))
    return found if isinstance(found, tuple) else (found,)


def _stack(account: RunAccount, unexplained: float) -> list[Piece]:
    if unexplained < LOUD_UNEXPLAINED or not account.unexplained_stack:
        return []
    return [Section("Unexplained", [Listing("the stack that was seen most", account.unexplained_stack)])]


def _saved(account: RunAccount) -> list[Piece]:
    """Lay out what each proved setting saves; a column that is unknown for all rows is a note instead."""
    if not account.saved:
        return []
    figures = {
        "in 1,000 steps": [_cell(each.per_thousand_steps_s, words.hours) for each in account.saved],
        "in an epoch": [_cell(each.per_epoch_s, words.hours) for each in account.saved],
        "energy in 1,000 steps": [_cell(each.per_thousand_steps_j, words.energy) for each in account.saved],
    }
    known = {name: column for name, column in figures.items() if any(column)}
    rows: list[Sequence[Cell]] = [
        [
            saved.setting,
            words.times(saved.speedup, digits=words.digits(saved.ci)),
            words.interval(saved.ci),
            *(column[at] or words.UNKNOWN for column in known.values()),
        ]
        for at, saved in enumerate(account.saved)
    ]
    columns = [
        Column("setting", "code"),
        Column("proved", "number"),
        Column("interval"),
        *(Column(name, "number") for name in known),
    ]
    energy = account.saved[0].per_thousand_steps_j
    why = [Note(f"Energy that they save: unknown: {energy.reason}.")] if isinstance(energy, Unknown) else []
    return [Section("What the recipe's settings save", [Table("", columns, rows), *why])]


def _cell(value: float | Unknown, write: Callable[[float], str]) -> str:
    return "" if isinstance(value, Unknown) else write(value)
