"""Asking all rules: order, what is missing, and which finding stands for which."""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from dynotune.doctor import Missing, ObservationView, Rule, all_rules, examine, registry, rule, rules
from dynotune.schema.diagnosis import Finding, NotKnown
from dynotune.schema.facts import Unknown

from .observations import observed

TEXTS = {"title": "A title.", "sees": "a", "costs": "b", "wrong_when": "c"}


@pytest.fixture
def made(monkeypatch):
    """`made(name, share, …)`: a rule that always finds this, among those made so alone."""
    rules = {}
    monkeypatch.setattr(registry, "all_rules", lambda: rules)

    def make(name, share=None, *, severity="low", explains=(), missing="", scope="program"):
        def judge(view):
            if missing:
                raise Missing(missing, "nobody knows")
            yield Finding(id=name, severity=severity, claim="", share=Unknown("none") if share is None else share)

        rules[name] = rule(name, scope, explains=explains, **TEXTS)(judge)

    return make


def ids(findings):
    return [finding.id for finding in findings]


def test_findings_stand_by_severity_then_by_share(made):
    made("a", 0.05, severity="medium")
    made("b", severity="high")
    made("c", 0.08, severity="medium")
    made("d", 0.3, severity="high")
    assert ids(examine(ObservationView(observed()))[0]) == ["d", "b", "c", "a"]


def test_a_specific_finding_stands_for_the_general_one_and_names_it(made):
    made("general", 0.5, severity="high")
    made("specific", 0.5, severity="high", explains=["general"])
    (finding,), _ = examine(ObservationView(observed()))
    assert (finding.id, finding.also) == ("specific", ["general"])


def test_a_specific_finding_that_bounds_a_small_part_of_the_loss_does_not_hide_the_rest(made):
    made("general", 0.7, severity="high")
    made("specific", 0.19, severity="high", explains=["general"])
    findings, _ = examine(ObservationView(observed()))
    # But it stands before it, as a cause before its symptom, if it is no small part.
    assert [(finding.id, finding.also) for finding in findings] == [("specific", []), ("general", [])]


def test_a_cause_of_a_small_part_stands_behind_its_symptom(made):
    made("general", 0.7, severity="high")
    made("specific", 0.12, severity="high", explains=["general"])
    made("trifle", 0.3, severity="low", explains=["general"])
    findings, _ = examine(ObservationView(observed()))
    assert [finding.id for finding in findings] == ["general", "specific", "trifle"]


def test_a_finding_that_nothing_bounds_does_not_hide_a_loss_that_is_known(made):
    made("general", 0.7, severity="high")
    made("specific", None, severity="high", explains=["general"])
    assert len(examine(ObservationView(observed()))[0]) == 2


def test_a_general_finding_stands_alone_where_nothing_explains_it(made):
    made("general", 0.5)
    made("other", 0.2)
    findings, _ = examine(ObservationView(observed()))
    assert [(finding.id, finding.also) for finding in findings] == [("general", []), ("other", [])]


def test_a_rule_that_lacks_a_fact_is_unknown_and_the_others_are_asked_all_the_same(made):
    made("a", missing="gpu.name")
    made("b", 0.2)
    findings, unknown = examine(ObservationView(observed()))
    assert ids(findings) == ["b"]
    assert unknown == [NotKnown("a", "gpu.name", "nobody knows")]


def test_rules_of_the_other_scope_are_not_asked(made):
    made("a", 0.2, scope="machine")
    made("b", 0.2)
    assert ids(examine(ObservationView(observed()), "machine")[0]) == ["a"]


def test_every_rule_of_a_family_is_listed_once():
    for family in vars(rules).values():
        if isinstance(family, ModuleType):
            defined = [each for each in vars(family).values() if isinstance(each, Rule)]
            assert [each.id for each in family.RULES] == [each.id for each in defined]
            assert all(each.family == family.__name__.rpartition(".")[2] for each in family.RULES)
            assert all(all_rules()[each.id] is each for each in family.RULES)
    assert len(rules.RULES) == len(all_rules())


def test_every_family_is_listed():
    modules = {path.stem for path in Path(rules.__file__).parent.glob("*.py")} - {"__init__"}
    assert {each.family for each in all_rules().values()} == modules


def test_every_rule_tells_what_it_sees_costs_and_when_it_is_wrong():
    for each in all_rules().values():
        assert each.title.endswith(".") and each.sees and each.costs and each.wrong_when, each.id
        assert all(general in all_rules() for general in each.explains), each.id


def test_every_setting_that_stands_in_a_rule_is_declared_by_it():
    for each in all_rules().values():
        for call in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(each.judge)))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("Setting", "unset"):
                first = call.args[0]
                if isinstance(first, ast.Constant):
                    name = first.value if call.func.id == "Setting" else f"env.{first.value}"
                    assert any(text.partition("=")[0] == name for text in each.candidates), (each.id, name)


def test_every_rule_stands_on_the_page_of_findings():
    page = (Path(__file__).parents[2] / "docs/reference/findings.md").read_text(encoding="utf-8")
    assert [each for each in all_rules() if f"### `{each}`\n" not in page] == []
