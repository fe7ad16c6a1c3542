"""Writes docs/reference/findings.md from the rules: `python tools/findings_page.py > FILE`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dynotune import doctor
from dynotune.doctor import folklore
from dynotune.report.explanation import SCOPES, parts_of
from dynotune.schema.explanation import Explained, Folklore

HEAD = """# Findings

All that `dynotune doctor` and `dynotune diagnose` may find, family by family. `dynotune explain ID` shows one of them
in the terminal. How shares and severities are defined stands in [the reference of diagnoses](diagnosis.md).

This page is made from the rules themselves: `make findings` writes it.
"""
FOLKLORE_HEAD = """
## Popular remedies

These are often recommended, and do not do what is said of them. `dynotune doctor --about WORD` answers with these, and
`doctor` mentions one where its traces stand on the machine.
"""


def page() -> str:
    """The page as it should be: families by name, whichever was imported first."""
    rules = sorted(doctor.all_rules().values(), key=lambda rule: rule.family)
    findings = [doctor.explained(rule) for rule in rules]
    return findings_page(findings, [entry.folklore for entry in folklore.entries()])


def findings_page(findings: Sequence[Explained], folklore: Sequence[Folklore]) -> str:
    lines = [HEAD]
    for family in dict.fromkeys(finding.family for finding in findings):
        lines.append(f"\n## {family.replace('_', ' ').capitalize()}\n")
        lines += [_section(finding) for finding in findings if finding.family == family]
    lines.append(FOLKLORE_HEAD)
    lines += [_belief(each) for each in folklore]
    return "\n".join(lines).rstrip() + "\n"


def _section(finding: Explained) -> str:
    rows = {**parts_of(finding), "judged from": SCOPES[finding.scope]}
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


if __name__ == "__main__":
    print(page(), end="")
