"""Writes docs/reference/findings.md from the rules: `python tools/findings_page.py > FILE`."""

from __future__ import annotations

from collections.abc import Sequence

from dynotune import doctor
from dynotune.claims import all_claims
from dynotune.report.explanation import SCOPES, parts_of
from dynotune.schema.claims import Claim
from dynotune.schema.explanation import Explained

HEAD = """# Findings

This page lists every finding of `dynotune doctor` and `dynotune diagnose`, family by family. `dynotune explain ID`
shows a finding in the terminal. The code below a finding is an example of what it is about. "Explains" lists more
general findings whose cause the finding names. "Settings worth proving" lists settings that may remove the cost.
[Claims](claims.md) are pieces of advice that findings confirm or refute. [The reference of diagnoses](diagnosis.md)
defines shares and severities.

`make findings` generates this page from the rules.
"""  # noqa: E501


def page() -> str:
    """Return the page, with the families of findings sorted by name."""
    rules = sorted(doctor.all_rules().values(), key=lambda rule: rule.family)
    findings = [doctor.explained(rule) for rule in rules]
    return findings_page(findings, all_claims())


def findings_page(findings: Sequence[Explained], claims: Sequence[Claim]) -> str:
    lines = [HEAD]
    for family in dict.fromkeys(finding.family for finding in findings):
        lines.append(f"\n## {family.replace('_', ' ').capitalize()}\n")
        lines += [_section(finding, claims) for finding in findings if finding.family == family]
    return "\n".join(lines).rstrip() + "\n"


def _section(finding: Explained, claims: Sequence[Claim]) -> str:
    rows = {**parts_of(finding), "judged from": SCOPES[finding.scope]}
    rows["explains"] = ", ".join(f"[`{id_}`](#{id_})" for id_ in finding.explains)
    rows["settings worth proving"] = ", ".join(f"`{setting}`" for setting in finding.settings)
    bearing = [claim.id for claim in claims if finding.id in claim.bears_on]
    rows["claims"] = ", ".join(f"[`{id_}`](claims.md#{id_})" for id_ in bearing)
    listed = [f"- **{name.capitalize()}**: {told}" for name, told in rows.items() if told]
    example = f"\n```{_language(finding.example)}\n{finding.example}\n```"
    return "\n".join([f"### `{finding.id}`\n", f"{finding.title}\n", *listed, example]) + "\n"


def _language(example: str) -> str:
    return "console" if example.startswith("$ ") else "python"


if __name__ == "__main__":
    print(page(), end="")
