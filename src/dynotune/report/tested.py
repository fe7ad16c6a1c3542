"""Say how findings about speed were tested: by switching a candidate, by a delay, or not at all."""

from __future__ import annotations

from collections.abc import Iterable

from dynotune.report.blocks import Column, On, Table
from dynotune.report.delays import NAMES
from dynotune.schema.diagnosis import Delayed, Finding, ReadFromTrace, Switched
from dynotune.schema.facts import Unknown
from dynotune.text import words

UNTESTED = "read from the trace"


def briefly(finding: Finding) -> str:
    """Say in a word how a loud finding about speed was tested; "" for others."""
    if finding.severity == "low" or finding.tested is None:
        return ""
    tested = finding.tested
    is_part = isinstance(tested, Delayed) and not tested.tests_cause
    return UNTESTED if is_part or isinstance(tested, ReadFromTrace) else "tested"


def in_words(finding: Finding) -> str:
    """Return a sentence with the figures of the finding's test; "" without a test."""
    tested = finding.tested
    if isinstance(tested, Switched):
        interval = f" ({words.interval(tested.ci)})" if tested.ci else ""
        fast = f"{words.times(tested.speedup)} as fast{interval}"
        return f"Switched: {tested.arm} ran in {tested.num_blocks} blocks, {fast}."
    if isinstance(tested, Delayed):
        what = " ".join(filter(None, [NAMES[tested.part], tested.place]))
        low, high = (f"{100 * end:.0f}" for end in tested.ci)
        longer = f"a step became longer by {tested.slope:.0%} of a delay of {what} ({low} to {high}%)"
        if not tested.tests_cause:
            return f"Not tested by itself: {longer}, so its time counts."
        cost = "" if tested.cost is None else f", so it costs {words.share(tested.cost)} of a step"
        return f"Delayed: {longer}{cost}."
    return ""


def claimed(finding: Finding) -> str:
    """Return the share of a step that the finding claims."""
    return words.UNKNOWN if isinstance(finding.share, Unknown) else words.share(finding.share)


def tested_findings(caption: str, findings: Iterable[Finding], *, on: On = On.PAGE) -> Table:
    """Lay out findings about speed, what each claims, and what its test said."""
    rows = [[one.id, claimed(one), in_words(one) or UNTESTED] for one in findings if one.tested]
    header = [Column("Finding", "code"), Column("Claims", "number"), Column("Tested")]
    return Table(caption, header, rows, folded=True, on=on)
