"""Writes docs/reference/findings.md from the rules: `python tools/findings_page.py > FILE`."""

from __future__ import annotations

from dynotune import doctor
from dynotune.claims import all_claims
from dynotune.report.explanation import findings_page


def page() -> str:
    """The page as it should be: families by name, whichever was imported first."""
    rules = sorted(doctor.all_rules().values(), key=lambda rule: rule.family)
    findings = [doctor.explained(rule) for rule in rules]
    return findings_page(findings, all_claims())


if __name__ == "__main__":
    print(page(), end="")
