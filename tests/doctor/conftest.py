"""Every rule that a test here asks keeps to what it declares."""

from __future__ import annotations

import pytest

from dynotune.doctor import ObservationView, Rule
from dynotune.knobs import parse
from dynotune.schema.diagnosis import Finding


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a rule offers a setting that it does not declare, or a remedy breaks off."""
    call = Rule.__call__

    def judged(rule: Rule, view: ObservationView) -> list[Finding]:
        findings = list(call(rule, view))
        for finding in findings:
            assert finding.remedy == finding.remedy.strip(), (
                f"a remedy of {rule.id} breaks off: {finding.remedy!r}"
            )
            for setting in finding.candidates:
                assert rule.declares(setting), f"{rule.id} offers {setting} and does not declare it"
                parse(str(setting))
        return findings

    monkeypatch.setattr(Rule, "__call__", judged)
