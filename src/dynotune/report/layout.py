"""Lay out the pieces of a report: tables, fields, findings, and command lines that a shell can read."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dynotune.report.loudness import is_brief
from dynotune.schema.diagnosis import Finding, Severity
from dynotune.schema.setting import one_arm
from dynotune.text import words

KINDS: dict[str, dict[str, Any]] = {
    "": {},
    "text": {"overflow": "fold"},
    "wide": {"overflow": "fold", "ratio": 1},
    "dim": {"overflow": "fold", "style": "dim"},
    "whole": {"no_wrap": True},
    "line": {"overflow": "ellipsis"},
    "right": {"justify": "right"},
    "number": {"justify": "right", "no_wrap": True},
    "figure": {"justify": "right", "no_wrap": True, "overflow": "fold"},
    "name": {"style": "dim", "no_wrap": True},
}
SEVERITY_STYLES: dict[Severity, str] = {"high": "bold red", "medium": "bold yellow", "low": "cyan"}
KINDS_IN_WORDS = {
    "start": "time to the first step",
    "jitter": "evenness of steps",
    "memory": "memory",
    "correctness": "right results",
    "measurement": "right measuring",
}
IN_BRIEF = ("to do", "prove")


def table(*columns: str, style: str = "dim", gap: int = 2) -> Table:
    """Build an empty table without ruled lines.

    Args:
        columns: each column as "Header:kind", with a kind of `KINDS`. If no column has a header, no header is
            shown.
        style: style of the headers.
        gap: number of blanks between columns.
    """
    parts = [column.rpartition(":") for column in columns]
    shows = any(header for header, _, _ in parts)
    made = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style=style, show_header=shows)
    for header, _, kind in parts:
        made.add_column(header, **KINDS[kind])
    return made


def one_line(text: str) -> Text:
    """Return a text for a column of kind `line`: what has no room is cut, and the other columns are whole."""
    return Text(words.plain(text), no_wrap=True, overflow="ellipsis")


def fields(rows: Iterable[tuple[str, str | Text]]) -> Table:
    """Lay out names and texts side by side."""
    made = table(":name", ":text")
    for name, text in rows:
        made.add_row(name, text if isinstance(text, Text) else Text(text))
    return made


def spaced(parts: Iterable[RenderableType]) -> Group:
    """Stack the parts with an empty line between them."""
    return Group(*(Padding(part, (1, 0, 0, 0)) if at else part for at, part in enumerate(parts)))


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A command, wrapped over several lines, which a shell reads as one command.

    Args:
        quoted: the command's words, quoted for a shell.
        indent: blanks before the first line.
    """

    quoted: Sequence[str]
    indent: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first, *rest = [words.plain(word, longest=4000) for word in self.quoted]
        line = " " * self.indent + first
        for word in rest:
            if cell_len(f"{line} {word} \\") > options.max_width:
                yield Text(f"{line} \\", style="cyan", overflow="fold")
                line = " " * (self.indent + 1)
            line = f"{line} {word}"
        yield Text(line, style="cyan", overflow="fold")


def finding_lines(finding: Finding, *, costs: str = "") -> RenderableType:
    """Show one finding as a block of lines.

    Args:
        costs: why the finding costs time, from its rule; omitted if empty.
    """
    headline = Text.assemble(
        (f"{finding.severity:<6}", SEVERITY_STYLES[finding.severity]), "  ", (words.plain(finding.id), "bold")
    )
    about = KINDS_IN_WORDS.get(finding.kind, "")
    if about:
        headline.append(f"  {about}", style="dim")
    if isinstance(finding.share, float) and finding.share > 0:
        headline.append(f"  up to {words.share(finding.share)} of a step", style="dim")
    rows = [("seen", Text("\n").join(Text(words.plain(line)) for line in finding.evidence))]
    if finding.where.function:
        rows.append(("where", Text(words.plain(finding.where.function))))
    if costs:
        rows.append(("costs", Text(costs[0].upper() + costs[1:])))
    rows.append(("to do", Text(words.plain(finding.remedy))))
    if finding.candidates:
        settings = " ".join(map(str, one_arm(finding.candidates)))
        rows.append(("prove", Text(words.plain(f"dynotune compare {settings} -- COMMAND"), style="bold")))
    if finding.commands:
        rows.append(
            ("shell", Text("\n").join(Text(words.plain(line), style="magenta") for line in finding.commands))
        )
    if finding.also:
        rows.append(("also", Text(", ".join(map(words.plain, finding.also)))))
    rows = [row for row in rows if row[1].plain and (row[0] in IN_BRIEF or not is_brief())]
    body = Group(Text(words.plain(finding.claim)), fields(rows))
    return Group(headline, Padding(body, (0, 0, 0, 2)))
