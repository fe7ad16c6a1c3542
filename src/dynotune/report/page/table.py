"""Tables of a page, and those that several kinds of pages have."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dynotune.report import tested
from dynotune.report.bars import OF_A_STEP
from dynotune.report.breakdown import Breakdown
from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Facts, Unknown, Value
from dynotune.schema.run import Objective
from dynotune.text import words

NOTHING = "–"
MOST_UNKNOWN = 60


@dataclass(frozen=True, slots=True)
class Marked:
    """A text with a mark before it, which is only decoration: a sign, or the name of a part's colour."""

    mark: str
    text: str

    @property
    def is_accent(self) -> bool:
        """Return whether the mark has the colour of what is good."""
        return self.mark in ("●", "○")


Cell = str | Marked


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells with a header.

    Args:
        header: the columns, as "Setting:code | Why:text". A kind is text, code, number, fate or part; cells
            of kind `fate` and `part` are `Marked`, all others are text.
        cards: show each row as a block on a small screen.
        more: note on rows that were left out; "" if none were.
    """

    caption: str
    header: str
    rows: Sequence[Sequence[Cell]]
    more: str = ""
    cards: bool = True

    @property
    def columns(self) -> list[tuple[str, str]]:
        """Return name and kind of each column."""
        columns = (column.rpartition(":") for column in self.header.split(" | "))
        return [(name, kind) for name, _, kind in columns]


def with_rows(tables: Mapping[str, Table]) -> dict[str, Table]:
    """Return the tables that have rows."""
    return {name: table for name, table in tables.items() if table.rows}


def value_of(value: float, objective: Objective) -> str:
    """Write one run's value of an objective for a column: bytes, joules or seconds, without more words."""
    if objective == "memory":
        return words.num_bytes(value)
    return f"{value:.4g}" if objective == "energy" else words.duration(value, column=True)


def tested_findings(caption: str, findings: Iterable[Finding]) -> Table:
    """Return findings about speed, what each claims, and what its test said."""
    rows = [
        [one.id, tested.claimed(one), tested.in_words(one) or tested.UNTESTED]
        for one in findings
        if one.tested
    ]
    return Table(caption, "Finding:code | Claims:number | Tested:text", rows)


def facts(known: Facts) -> Table:
    header = "Fact:code | Value:code"
    rows = [[name, _fact(value)] for name, value in sorted(known.items())]
    return Table("What held on this machine", header, rows)


def _fact(value: Value | Unknown) -> str:
    if isinstance(value, Unknown):
        return f"unknown: {value.reason}"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def step(sides: Sequence[Breakdown]) -> Table:
    """Show where the time of a step or sample goes, for each breakdown under its name."""
    of_what = sides[0].of_what if sides else "step"
    header = f"Part of a {of_what}:part"
    header += "".join(f" | {side.name}:number | {side.name}, share:number" for side in sides)
    has_device = any(side.has_device for side in sides)
    rows: list[list[Cell]] = []
    for part in OF_A_STEP:
        shares = [part.of(side.shares) for side in sides]
        if any(share > 0 for share in shares):
            cells = [cell for side, share in zip(sides, shares, strict=True) for cell in _part(side, share)]
            rows.append([Marked(part.field, part.named(has_device)), *cells])
    if rows:
        whole = [cell for side in sides for cell in (_time_of(side, 1.0), "100%")]
        rows.append([Marked("whole", f"A {of_what}"), *whole])
    return Table("Time and share of each part", header, rows)


def _part(side: Breakdown, share: float) -> list[str]:
    return [_time_of(side, share) if share else NOTHING, words.fine_share(share)]


def _time_of(side: Breakdown, share: float) -> str:
    return NOTHING if side.whole_s is None else words.duration(share * side.whole_s, column=True)
