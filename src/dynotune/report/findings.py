"""Show a finding in the terminal: its claim, the evidence, why it costs time, and the remedy."""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from dynotune.report.layout import fields
from dynotune.report.loudness import is_brief
from dynotune.schema.diagnosis import Finding, Severity
from dynotune.schema.setting import one_arm
from dynotune.text import words

SEVERITY_STYLES: dict[Severity, str] = {"high": "bold red", "medium": "bold yellow", "low": "cyan"}
KINDS = {
    "speed": "",
    "start": "time to the first step",
    "jitter": "evenness of steps",
    "memory": "memory",
    "correctness": "right results",
    "measurement": "right measuring",
}
IN_BRIEF = ("to do", "prove")


def finding_lines(finding: Finding, *, costs: str = "") -> RenderableType:
    """Show one finding as a block of lines.

    Args:
        costs: why the finding costs time, from its rule; omitted if empty.
    """
    headline = Text.assemble(
        (f"{finding.severity:<6}", SEVERITY_STYLES[finding.severity]), "  ", (words.plain(finding.id), "bold")
    )
    about = KINDS[finding.kind]
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
        rows.append(("shell", Text("\n").join(Text(words.plain(line), style="magenta") for line in finding.commands)))
    if finding.also:
        rows.append(("also", Text(", ".join(map(words.plain, finding.also)))))
    rows = [row for row in rows if row[1].plain and (row[0] in IN_BRIEF or not is_brief())]
    body = Group(Text(words.plain(finding.claim)), fields(rows))
    return Group(headline, Padding(body, (0, 0, 0, 2)))
