"""All rules by their id, and the findings that they make of an observation, worst first."""

import itertools
from collections.abc import Iterable, Sequence

import msgspec

from dynotune.doctor import policy
from dynotune.doctor.bounds import at_most, idle_in_doubt
from dynotune.doctor.declaration import Rule, Scope
from dynotune.doctor.families import Family
from dynotune.doctor.observation_view import Missing, ObservationView
from dynotune.doctor.own_options import with_option
from dynotune.doctor.rules import RULES
from dynotune.doctor.trainers import with_switch
from dynotune.schema.diagnosis import SEVERITIES, Finding, NotKnown
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting

_OF_IDLE_TIME: tuple[Family, ...] = ("host", "sync")
"""Families whose findings cost a part of an unrecorded step that the recorded device work does not
explain."""
_OF_MACHINE: tuple[Family, ...] = ("machine_gpu", "machine_host", "machine_memory")
"""Families whose findings are conditions of the machine, which follow the program's own findings."""
_RULES = {rule.id: rule for rule in RULES}


def all_rules() -> dict[str, Rule]:
    """Return all rules by their id, ordered by family and then by definition."""
    return _RULES


def examine(view: ObservationView, scope: Scope | None = None) -> tuple[list[Finding], list[NotKnown]]:
    """Ask all rules, or those of one scope; return findings, worst first, and the rules that lack a fact.

    A finding that explains a more general one takes its place and names it in `also`.
    """
    findings: list[Finding] = []
    unknown: list[NotKnown] = []
    for rule in all_rules().values():
        if scope is not None and rule.scope != scope:
            continue
        try:
            found = list(rule(view))
        except Missing as missing:
            unknown.append(NotKnown(rule.id, missing.name, missing.reason))
            continue
        findings += [_surely(view, one) for one in found] if rule.family in _OF_IDLE_TIME else found
    ordered = _causes_first(sorted(_folded(findings), key=_weight))
    named = [with_switch(view, finding) for finding in ordered]
    return [with_option(view, finding, all_rules()[finding.id].own_option) for finding in named], unknown


def _surely(view: ObservationView, finding: Finding) -> Finding:
    """Lower the severity to that of the certain loss, because the plain window's idle time has an error."""
    doubt = idle_in_doubt(view)
    if isinstance(finding.share, Unknown) or doubt < policy.LEAST_SHARE:
        return finding
    told = (
        f"of the idle time {doubt:.0%} of a step may be work: the device's clock was lowered while "
        "steps were timed"
    )
    severity = at_most(finding.severity, policy.severity(finding.share - doubt))
    return msgspec.structs.replace(finding, severity=severity, evidence=[*finding.evidence, told])


def _causes_first(findings: list[Finding]) -> list[Finding]:
    """Move a finding before the more general findings that it partly explains, unless it is a trifle."""
    found: list[Finding] = []
    for finding in findings:
        symptoms = [at for at, general in enumerate(found) if _explains_part(finding, general)]
        found.insert(min(symptoms, default=len(found)), finding)
    return found


def _explains_part(finding: Finding, general: Finding) -> bool:
    """Tell whether the finding explains a good part of the general one; a cost that is not known may be all
    of it."""
    rules = all_rules()
    if (
        finding.severity == "low"
        or finding.kind == "memory"
        or general.id not in rules[finding.id].generals(rules)
    ):
        return False
    if isinstance(general.share, Unknown) or isinstance(finding.share, Unknown):
        return True
    return finding.share >= policy.OF_A_SYMPTOM * general.share


def _folded(findings: Sequence[Finding]) -> list[Finding]:
    """Drop general findings that another finding mostly explains, and name them in its `also`.

    A finding without a setting of its own takes over theirs: workers hide a slow read that only the code can
    take away.
    """
    explained: dict[str, list[str]] = {}
    for finding in findings:
        order = all_rules()[finding.id].generals(all_rules())
        generals = (
            general.id for general in findings if general.id in order and _is_most_of(finding, general)
        )
        explained[finding.id] = sorted(generals, key=order.index)
    given = {finding.id: finding.candidates for finding in findings}
    dropped = {general for ids in explained.values() for general in ids}
    return [
        msgspec.structs.replace(
            finding,
            also=explained[finding.id],
            candidates=finding.candidates or _each_once(given[general] for general in explained[finding.id]),
        )
        for finding in findings
        if finding.id not in dropped
    ]


def _each_once(candidates: Iterable[list[Setting]]) -> list[Setting]:
    return list(dict.fromkeys(itertools.chain.from_iterable(candidates)))


def _is_most_of(finding: Finding, general: Finding) -> bool:
    """Tell whether the finding covers most of the general finding's loss, and so can replace it."""
    if isinstance(general.share, Unknown):
        return True
    return not isinstance(finding.share, Unknown) and finding.share >= policy.MOST_OF_A_LOSS * general.share


def _weight(finding: Finding) -> tuple[bool, bool, int, float, str]:
    """Return the sort key: a condition of the machine follows the program's own findings, unless they hardly
    matter."""
    share = 0.0 if isinstance(finding.share, Unknown) else finding.share
    rule = all_rules().get(finding.id)
    of_machine = rule is not None and rule.family in _OF_MACHINE
    severity = SEVERITIES.index(finding.severity)
    return finding.severity == "low", of_machine, severity, -share, finding.id
