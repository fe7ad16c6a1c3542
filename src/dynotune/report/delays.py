"""Lay out how a step answered delays of its parts."""

from __future__ import annotations

from dynotune.report.blocks import Column, Note, On, Piece, Section, Table
from dynotune.schema.delays import DelayTest, DelayTests
from dynotune.schema.facts import Unknown
from dynotune.text import words

HEADING = "Delays, and what a step made of them"
NAMES = {
    "host": "the host",
    "device": "the device",
    "loader": "the loader",
    "transfer": "copies to the device",
    "rank": "a rank",
    "function": "a function",
}


def section(delays: DelayTests | Unknown) -> list[Piece]:
    """Return the table of delays; [] if none was tested."""
    if isinstance(delays, Unknown) or not delays.tests:
        return []
    rows = []
    for test in delays.tests:
        first = test.answers[0]
        reach = words.duration((first.ci[1] - first.ci[0]) / 2)
        name = " ".join(filter(None, [NAMES[test.part], test.place]))
        longer = f"{words.duration(max(0.0, first.longer_s))} ± {reach}"
        rows.append([name, words.duration(first.delay_s), longer, conclusion(test)])
    header = [Column("delayed"), Column("by", "number"), Column("a step longer by", "number"), Column("so")]
    untested = [
        Note(f"not delayed: {NAMES.get(part, part)}, {why}", tone="dim")
        for part, why in delays.untested.items()
    ]
    detail = f"{words.duration(delays.wall_s)}, without a profiler"
    return [Section(HEADING, [Table("", header, rows), *untested], aside=detail, on=On.ALL_OF_IT)]


def conclusion(test: DelayTest) -> str:
    """Say what the answer tells of the part."""
    if test.is_critical is None:
        return "undecided"
    if test.is_critical:
        return "a step waits for it"
    last = test.answers[-1]
    if test.slack_s is None:
        return f"hidden: more than {words.duration(last.delay_s)} of slack"
    return f"hidden: {words.duration(test.slack_s)} of slack"
