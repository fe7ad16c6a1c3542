"""A finding explained, in the terminal and as the page of all of them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from dynotune.report.claims import claim_report
from dynotune.report.layout import fields, spaced
from dynotune.schema.claims import Claim
from dynotune.schema.explanation import Explained, Explanation
from dynotune.text import words

SCOPES = {
    "machine": "machine and environment alone: dynotune doctor, and dynotune diagnose",
    "program": "a command that was watched: dynotune diagnose",
}
HEAD = """# Findings

What `dynotune doctor` and `dynotune diagnose` may find, family by family. `dynotune explain ID` shows one of them in
the terminal. [Claims](claims.md) are advice that bears on them. How shares and severities are defined stands in
[the reference of diagnoses](diagnosis.md).

This page is made from the rules themselves: `make findings` writes it.
"""


def explanation_report(explanation: Explanation) -> RenderableType:
    found = [] if explanation.finding is None else [_finding(explanation.finding)]
    return spaced([*found, *map(claim_report, explanation.claims)])


def _finding(finding: Explained) -> RenderableType:
    told = {name: text[0].upper() + text[1:] for name, text in _parts(finding).items() if text}
    rows = {**told, "judged from": SCOPES[finding.scope], "explains": ", ".join(finding.explains)}
    rows["settings"] = "\n".join(finding.settings)
    table = fields((name, text) for name, text in rows.items() if text)
    return Group(Text.assemble((finding.id, "bold"), "  ", words.plain(finding.title)), Padding(table, (0, 0, 0, 2)))


def _parts(finding: Explained) -> dict[str, str]:
    return {"sees": finding.sees, "costs": finding.costs, "wrong when": finding.wrong}


def findings_page(findings: Sequence[Explained], claims: Sequence[Claim]) -> str:
    lines = [HEAD]
    for family in dict.fromkeys(finding.family for finding in findings):
        lines.append(f"\n## {family.replace('_', ' ').capitalize()}\n")
        lines += [_section(finding, claims) for finding in findings if finding.family == family]
    return "\n".join(lines).rstrip() + "\n"


def _section(finding: Explained, claims: Sequence[Claim]) -> str:
    rows = {**_parts(finding), "judged from": SCOPES[finding.scope]}
    rows["explains"] = ", ".join(f"[`{id_}`](#{id_})" for id_ in finding.explains)
    rows["settings worth proving"] = ", ".join(f"`{setting}`" for setting in finding.settings)
    bearing = [claim.id for claim in claims if finding.id in claim.bears_on]
    rows["claims"] = ", ".join(f"[`{id_}`](claims.md#{id_})" for id_ in bearing)
    listed = [f"- **{name.capitalize()}**: {told}" for name, told in rows.items() if told]
    return "\n".join([f"### `{finding.id}`\n", f"{finding.title}\n", *listed]) + "\n"
