"""Show how a step answered delays of its parts."""

from rich.console import Group, RenderableType
from rich.text import Text

from dynotune.report.layout import table
from dynotune.report.loudness import is_brief
from dynotune.report.trace_parts import title
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


def delays_report(delays: DelayTests | Unknown) -> list[RenderableType]:
    """Return the table of delays; nothing in a brief report, or if none was tested."""
    if is_brief() or isinstance(delays, Unknown) or not delays.tests:
        return []
    grid = table("delayed:text", "by:number", "a step longer by:number", "so:text")
    for test in delays.tests:
        first = test.answers[0]
        reach = words.duration((first.ci[1] - first.ci[0]) / 2)
        grid.add_row(
            " ".join(filter(None, [NAMES[test.part], words.plain(test.place)])),
            words.duration(first.delay_s),
            f"{words.duration(max(0.0, first.longer_s))} ± {reach}",
            conclusion(test),
        )
    lines = [
        Text(f"not delayed: {NAMES.get(part, part)}, {why}", "dim") for part, why in delays.untested.items()
    ]
    detail = f"{words.duration(delays.wall_s)}, without a profiler"
    return [Group(title(HEADING, detail), grid, *lines)]


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
