"""Say how findings about speed were tested: by switching a candidate, by a delay, or not at all."""

from collections.abc import Sequence

from rich.console import Group, RenderableType

from dynotune.report.delays import NAMES
from dynotune.report.layout import table
from dynotune.report.loudness import is_verbose
from dynotune.report.trace_parts import title
from dynotune.schema.diagnosis import Delayed, Finding, ReadFromTrace, Switched
from dynotune.schema.facts import Unknown
from dynotune.text import words

REFUTED = "Refuted by delays"
WHY_REFUTED = (
    "a delay of the part that the finding blames did not make a step longer, so its cure saves nothing now"
)
UNTESTED = "read from the trace"


def briefly(finding: Finding) -> str:
    """Say in a word how a loud finding about speed was tested; "" for others."""
    if finding.severity == "low" or finding.tested is None:
        return ""
    return UNTESTED if isinstance(finding.tested, ReadFromTrace) else "tested"


def in_words(finding: Finding) -> str:
    """Return a sentence with the figures of the finding's test; "" without a test."""
    tested = finding.tested
    if isinstance(tested, Switched):
        interval = words.interval(tested.ci)
        return (
            f"Switched: {tested.arm} ran in {tested.num_blocks} blocks, {words.times(tested.speedup)} as "
            "fast "
            f"{f'({interval})' if interval else ''}".rstrip()
            + "."
        )
    if isinstance(tested, Delayed):
        what = " ".join(filter(None, [NAMES[tested.part], tested.place]))
        low, high = (f"{100 * end:.0f}" for end in tested.ci)
        cost = "" if tested.cost is None else f", so it costs {words.share(tested.cost)} of a step"
        return (
            f"Delayed: a step became longer by {tested.slope:.0%} of a delay of {what} ({low} to "
            f"{high}%){cost}."
        )
    return ""


def claimed(finding: Finding) -> str:
    """Return the share of a step that the finding claims."""
    return words.UNKNOWN if isinstance(finding.share, Unknown) else words.share(finding.share)


def refuted_report(refuted: Sequence[Finding]) -> list[RenderableType]:
    """Return the table of refuted findings with the figures; nothing without `--verbose`, or if there are
    none."""
    if not refuted or not is_verbose():
        return []
    grid = table("finding:text", "claimed:number", "test:text")
    for finding in refuted:
        grid.add_row(words.plain(finding.id), claimed(finding), words.plain(in_words(finding)))
    return [Group(title(REFUTED, WHY_REFUTED), grid)]
