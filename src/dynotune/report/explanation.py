"""Show the explanation of a finding or of claims in the terminal."""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from dynotune.report.claims import claim_report
from dynotune.report.layout import fields, one_line, spaced, table
from dynotune.report.loudness import is_brief
from dynotune.schema.explanation import Explained, Explanation
from dynotune.text import words

SCOPES = {
    "machine": "The rule needs only facts on machine and environment: dynotune doctor or diagnose.",
    "program": "The rule needs a run of the command, which dynotune diagnose watches.",
}


def explanation_report(explanation: Explanation) -> RenderableType:
    found = [] if explanation.finding is None else [_finding(explanation.finding)]
    return spaced([*found, *map(claim_report, explanation.claims), *_near(explanation)])


def _near(explanation: Explanation) -> list[RenderableType]:
    """List the findings that speak of the word, one a line."""
    if not explanation.near:
        return []
    rows = table(":whole", ":line" if is_brief() else ":text")
    for id_, title in explanation.near.items():
        rows.add_row(id_, one_line(title) if is_brief() else words.plain(title))
    about = f"Findings about {words.plain(explanation.asked)}. `dynotune explain ID` explains one."
    return [Group(Text(about, style="dim"), rows)]


def _finding(finding: Explained) -> RenderableType:
    told = {name: text[0].upper() + text[1:] for name, text in parts_of(finding).items() if text}
    rows = {
        **told,
        "example": finding.example,
        "judged from": SCOPES[finding.scope],
        "explains": ", ".join(finding.explains),
    }
    rows["settings"] = "\n".join(finding.settings)
    table = fields((name, text) for name, text in rows.items() if text)
    head = Text.assemble((finding.id, "bold"), "  ", words.plain(finding.title))
    return Group(head, Padding(table, (0, 0, 0, 2)))


def parts_of(finding: Explained) -> dict[str, str]:
    return {"sees": finding.sees, "costs": finding.costs, "wrong when": finding.wrong}
