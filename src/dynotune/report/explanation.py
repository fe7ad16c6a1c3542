"""A finding explained, in the terminal and as the page of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from dynotune.report.findings import belief
from dynotune.report.layout import fields, spaced
from dynotune.schema.explanation import Explained, Explanation, Folklore
from dynotune.text import words

SCOPES = {
    "machine": "machine and environment alone: dynotune doctor, and dynotune diagnose",
    "program": "a command that was watched: dynotune diagnose",
}
HEAD = """# Findings

What `dynotune doctor` and `dynotune diagnose` may find, family by family. `dynotune explain ID` shows one of them in
the terminal. How shares and severities are defined stands in [the reference of diagnoses](diagnosis.md).

This page is made from the rules themselves: `make findings` writes it.
"""
FOLKLORE_HEAD = """
## Popular remedies

What is often recommended, and does not do what is said of it. `dynotune doctor --about WORD` answers with these, and
`doctor` mentions one where its traces stand on the machine.
"""


def explanation_report(explanation: Explanation) -> RenderableType:
    found = [] if explanation.finding is None else [_finding(explanation.finding)]
    return spaced([*found, *map(belief, explanation.folklore)])


def _finding(finding: Explained) -> RenderableType:
    told = {name: text[0].upper() + text[1:] for name, text in _parts(finding).items() if text}
    rows = {**told, "judged from": SCOPES[finding.scope], "explains": ", ".join(finding.explains)}
    rows["settings"] = "\n".join(finding.settings)
    table = fields((name, text) for name, text in rows.items() if text)
    return Group(Text.assemble((finding.id, "bold"), "  ", words.plain(finding.title)), Padding(table, (0, 0, 0, 2)))


def _parts(finding: Explained) -> dict[str, str]:
    return {"sees": finding.sees, "costs": finding.costs, "wrong when": finding.wrong}


def findings_page(findings: Sequence[Explained], folklore: Sequence[Folklore]) -> str:
    lines = [HEAD]
    for family in dict.fromkeys(finding.family for finding in findings):
        lines.append(f"\n## {family.replace('_', ' ').capitalize()}\n")
        lines += [_section(finding) for finding in findings if finding.family == family]
    lines.append(FOLKLORE_HEAD)
    lines += [_belief(each) for each in folklore]
    return "\n".join(lines).rstrip() + "\n"


def _section(finding: Explained) -> str:
    rows = {**_parts(finding), "judged from": SCOPES[finding.scope]}
    rows["explains"] = ", ".join(f"[`{id_}`](#{id_})" for id_ in finding.explains)
    rows["settings worth proving"] = ", ".join(f"`{setting}`" for setting in finding.settings)
    return _entry(f"### `{finding.id}`", finding.title, rows)


def _belief(folklore: Folklore) -> str:
    rows = {"does": folklore.does, "does not": folklore.does_not, "instead": folklore.instead}
    rows |= {"source": folklore.source, "bears on": ", ".join(f"`{id_}`" for id_ in folklore.bears_on)}
    return _entry(f"### {folklore.id}", f"“{folklore.claim}”", rows)


def _entry(heading: str, text: str, rows: Mapping[str, str]) -> str:
    listed = [f"- **{name.capitalize()}**: {told}" for name, told in rows.items() if told]
    return "\n".join([f"{heading}\n", f"{text}\n", *listed]) + "\n"
