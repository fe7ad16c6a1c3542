"""Say of each finding about speed how it was tested, and set those aside that delays refute.

A finding claims time of one or several parts of a step. Where a delay of the part, or of the place that the
finding names, was timed, the slope says which share of that time a step would be shorter by without it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from dynotune.diagnose.places import same_function
from dynotune.doctor import FAMILIES, Family, all_rules, policy
from dynotune.schema.delays import DelayedPart, DelayTest, DelayTests
from dynotune.schema.diagnosis import SEVERITIES, Delayed, Finding, ReadFromTrace
from dynotune.schema.facts import Unknown

REFUTING_SLOPE = 0.2
"""If a slope's interval ends below this, a cure saves less than a fifth of what the finding claims: nothing
that `compare` could prove."""


class Sorted(NamedTuple):
    """Findings that stand, each with how it was tested, and findings that delays refute."""

    standing: list[Finding]
    refuted: list[Finding]


def sort_by_tests(
    findings: Sequence[Finding],
    families: Mapping[str, Family],
    delays: DelayTests | Unknown,
    *,
    has_device: bool,
) -> Sorted:
    """Return the findings with their tests.

    Args:
        families: family of the rule of each finding, by its id.
        has_device: whether the program uses a device. Without one, operators run in the thread that the
            host's delay stops.
    """
    found = Sorted([], [])
    for finding in findings:
        if finding.kind != "speed":
            found.standing.append(finding)
            continue
        parts = claimed_parts(finding.id, families.get(finding.id), has_device=has_device)
        tests = tests_of(finding, parts, delays)
        whole = len({test.part for test in tests}) == len(parts) or any(
            test.part == "function" for test in tests
        )
        if tests and whole and all(test.ci[1] < REFUTING_SLOPE for test in tests):
            found.refuted.append(_delayed(finding, tests))
        elif tests and (whole or any(test.is_critical for test in tests)):
            found.standing.append(_bounded(_delayed(finding, tests)))
        else:
            found.standing.append(msgspec.structs.replace(finding, tested=ReadFromTrace()))
    return found


def claimed_parts(id_: str, family: Family | None, *, has_device: bool = True) -> set[DelayedPart]:
    """Return the parts of a step in which the time lies that a finding claims; empty if no delay can test
    it."""
    rule = all_rules().get(id_)
    named = None if rule is None else rule.delayed
    if named is None:
        named = () if family is None else FAMILIES[family].delayed
    return set(named) if has_device else {"host" if part == "device" else part for part in named}


def tests_of(finding: Finding, parts: Iterable[DelayedPart], delays: DelayTests | Unknown) -> list[DelayTest]:
    """Return the test of the finding's own place, if there is one, or the tests of its parts.

    Tests that did not decide whether a part is critical say nothing of a finding.
    """
    if isinstance(delays, Unknown):
        return []
    decided = [test for test in delays.tests if test.is_critical is not None]
    functions = [test for test in decided if test.part == "function"]
    own = [test for test in functions if same_function(test.place, finding.where.function)]
    return own or [test for test in decided if test.part in parts]


def _claims_a_whole_part(finding: Finding) -> bool:
    rule = all_rules().get(finding.id)
    return rule is not None and rule.whole_part


def _delayed(finding: Finding, tests: Sequence[DelayTest]) -> Finding:
    """Return the finding with the test whose slope is largest: one critical part is enough for it."""
    test = max(tests, key=lambda test: test.slope)
    cost = None if isinstance(finding.share, Unknown) else finding.share * min(1.0, max(0.0, test.slope))
    is_own = test.part == "function" or _claims_a_whole_part(finding)
    tested = Delayed(
        part=test.part, place=test.place, slope=test.slope, ci=test.ci, cost=cost, tests_cause=is_own
    )
    return msgspec.structs.replace(finding, tested=tested)


def _bounded(finding: Finding) -> Finding:
    """Bound the finding's share by the slope: the upper end of its interval, since a share is an upper
    bound."""
    if (
        isinstance(finding.share, Unknown)
        or not isinstance(finding.tested, Delayed)
        or finding.tested.ci[1] >= 1.0
    ):
        return finding
    share = finding.share * max(0.0, finding.tested.ci[1])
    severity = SEVERITIES[max(SEVERITIES.index(finding.severity), SEVERITIES.index(policy.severity(share)))]
    return msgspec.structs.replace(finding, share=share, severity=severity)
