"""Asking all rules: order, what is missing, and which finding stands for which."""

import pytest

from dynotune.doctor import Missing, Seen, all_rules, examine, registry, rule
from dynotune.schema.diagnosis import Finding, NotKnown
from dynotune.schema.facts import Unknown

from .observations import observed


@pytest.fixture
def made(monkeypatch):
    """`made(name, share, …)`: a rule that always finds this, among those made so alone."""
    monkeypatch.setattr(registry, "_rules", {})
    monkeypatch.setattr(registry, "all_rules", lambda: registry._rules)

    def make(name, share=None, *, severity="low", explains=(), missing="", scope="program"):
        def judge(seen):
            if missing:
                raise Missing(missing, "nobody knows")
            yield Finding(id=name, severity=severity, claim="", share=Unknown("none") if share is None else share)

        judge.__name__ = name.replace("-", "_")
        judge.__doc__ = "A title.\n\nSees: a.\n\nCosts: b.\n\nWrong when: c."
        rule(scope, explains=explains)(judge)

    return make


def ids(findings):
    return [finding.id for finding in findings]


def test_findings_stand_by_severity_then_by_share(made):
    made("a", 0.05, severity="medium")
    made("b", severity="high")
    made("c", 0.08, severity="medium")
    made("d", 0.3, severity="high")
    assert ids(examine(Seen(observed()))[0]) == ["d", "b", "c", "a"]


def test_a_specific_finding_stands_for_the_general_one_and_names_it(made):
    made("general", 0.5, severity="high")
    made("specific", 0.5, severity="high", explains=["general"])
    (finding,), _ = examine(Seen(observed()))
    assert (finding.id, finding.also) == ("specific", ["general"])


def test_a_specific_finding_that_bounds_a_small_part_of_the_loss_does_not_hide_the_rest(made):
    made("general", 0.7, severity="high")
    made("specific", 0.19, severity="high", explains=["general"])
    findings, _ = examine(Seen(observed()))
    assert [(finding.id, finding.also) for finding in findings] == [("general", []), ("specific", [])]


def test_a_finding_that_nothing_bounds_does_not_hide_a_loss_that_is_known(made):
    made("general", 0.7, severity="high")
    made("specific", None, severity="high", explains=["general"])
    assert len(examine(Seen(observed()))[0]) == 2


def test_a_general_finding_stands_alone_where_nothing_explains_it(made):
    made("general", 0.5)
    made("other", 0.2)
    findings, _ = examine(Seen(observed()))
    assert [(finding.id, finding.also) for finding in findings] == [("general", []), ("other", [])]


def test_a_rule_that_lacks_a_fact_is_unknown_and_the_others_are_asked_all_the_same(made):
    made("a", missing="gpu.name")
    made("b", 0.2)
    findings, unknown = examine(Seen(observed()))
    assert ids(findings) == ["b"]
    assert unknown == [NotKnown("a", "gpu.name", "nobody knows")]


def test_rules_of_the_other_scope_are_not_asked(made):
    made("a", 0.2, scope="machine")
    made("b", 0.2)
    assert ids(examine(Seen(observed()), "machine")[0]) == ["a"]


def test_a_rule_without_all_parts_of_its_docstring_is_refused():
    def lacking(seen):
        """A title.

        Sees: something.
        """
        yield from ()

    with pytest.raises(ValueError, match="Wrong when"):
        rule("program")(lacking)


def test_every_rule_tells_what_it_sees_costs_and_when_it_is_wrong():
    for each in all_rules().values():
        assert each.title and each.sees and each.costs and each.wrong, each.id
        assert all(general in all_rules() for general in each.explains), each.id
