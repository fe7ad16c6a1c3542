"""Asking all rules: order, what is missing, and which finding stands for which."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from dynotune.doctor import Family, Missing, ObservationView, all_rules, examine, registry, rule, rules
from dynotune.doctor.declaration import Judgement, Umbrella
from dynotune.doctor.finding_texts import texts_beside
from dynotune.schema.diagnosis import NotKnown
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting

from .observations import observed

TEXTS = {"title": "A title.", "sees": "a", "costs": "b", "wrong_when": "c"}


@pytest.fixture
def made(monkeypatch):
    """`made(name, share, …)`: a rule that always finds this, among those made so alone."""
    rules = {}
    monkeypatch.setattr(registry, "all_rules", lambda: rules)

    def make(name, share=None, *, severity="low", explains=(), umbrella=(), missing="", scope="program"):
        def judge(view):
            if missing:
                raise Missing(missing, "nobody knows")
            yield Judgement(claim="", severity=severity, share=Unknown("none") if share is None else share)

        told = {"explains": explains, "umbrella": umbrella, **TEXTS}
        rules[name] = rule(family="work", id=name, scope=scope, **told)(judge)

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


@pytest.mark.parametrize("share", [0.2, None])
def test_cause_stands_before_every_umbrella_when_it_explains_a_third_or_its_cost_is_not_known(made, share):
    made("calls-bound", 0.6, severity="high", umbrella=["host", "calls"])
    made("host-bound", 0.5, severity="high", umbrella=["host"])
    made("loader-bound", 0.7, severity="high", umbrella=["loader"])
    made("cause", share, severity="medium", explains=["host"])
    findings, _ = examine(ObservationView(observed()))
    assert ids(findings) == ["loader-bound", "cause", "calls-bound", "host-bound"]


def test_cause_stands_for_every_umbrella_when_it_explains_most_of_each(made):
    made("calls-bound", 0.6, severity="high", umbrella=["host", "calls"])
    made("host-bound", 0.5, severity="high", umbrella=["host"])
    made("cause", 0.4, severity="high", explains=["host"])
    (finding,), _ = examine(ObservationView(observed()))
    assert (finding.id, finding.also) == ("cause", ["calls-bound", "host-bound"])


def test_finding_explains_itself_never_when_it_sums_up_what_it_explains(made):
    made("sum", 0.6, severity="high", umbrella=["host"], explains=["host"])
    (finding,), _ = examine(ObservationView(observed()))
    assert (finding.id, finding.also) == ("sum", [])


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


def judged_once(judgement, **declared):
    """The findings of a rule that concludes this."""
    return list(
        rule(family="work", id="a", **TEXTS, **declared)(lambda view: [judgement])(
            ObservationView(observed())
        )
    )


def test_the_severity_is_that_of_the_share_and_a_cost_too_small_to_tell_is_no_finding():
    (finding,) = judged_once(Judgement(claim="", share=0.2))
    assert (finding.id, finding.severity) == ("a", "high")
    assert judged_once(Judgement(claim="", share=0.005)) == []
    assert judged_once(Judgement(claim="", share=0.005, severity="medium"))[0].severity == "medium"


def test_a_judgement_that_says_what_an_unknown_share_means_stands_however_small_its_share_is():
    assert (
        judged_once(Judgement(claim="", share=Unknown("not measured"), otherwise="medium"))[0].severity
        == "medium"
    )
    assert judged_once(Judgement(claim="", share=0.0, otherwise="medium"))[0].severity == "low"


def test_a_finding_offers_the_declared_settings_unless_it_names_others():
    offered = [Setting("compile.mode", "default"), "loader.num_workers"]
    other = Setting("loader.num_workers", 2)
    assert judged_once(Judgement(claim="", share=0.2), candidates=offered)[0].candidates == offered[:1]
    assert judged_once(Judgement(claim="", share=0.2, candidates=[other]), candidates=offered)[
        0
    ].candidates == [other]
    assert judged_once(Judgement(claim="", share=0.2, candidates=[]), candidates=offered)[0].candidates == []


def test_rules_of_the_other_scope_are_not_asked(made):
    made("a", 0.2, scope="machine")
    made("b", 0.2)
    assert ids(examine(ObservationView(observed()), "machine")[0]) == ["a"]


def test_every_rule_of_a_family_is_listed_once():
    assert len(rules.RULES) == len(all_rules())
    assert all(all_rules()[each.id] is each for each in rules.RULES)
    assert [each.family for each in rules.RULES] == sorted(each.family for each in rules.RULES)


def test_every_function_that_is_declared_a_rule_is_listed():
    for path in Path(rules.__file__).parent.glob("*.py"):
        names = re.findall(r"^@(?:rule|cuda_rule|machine_rule)\(.*\)\ndef (\w+)", path.read_text(), re.M)
        assert {name.replace("_", "-") for name in names} <= all_rules().keys()


def test_every_entry_of_the_findings_belongs_to_a_rule():
    for each in all_rules().values():
        own = texts_beside(each.judge.__module__) if "habits" not in each.judge.__module__ else {}
        assert {id_ for id_ in own if all_rules()[id_].judge.__module__ != each.judge.__module__} == set()


def test_an_entry_with_an_unknown_field_is_refused():
    with pytest.raises(msgspec.ValidationError):
        rule(family="work", id="a", remedies=["r"], **TEXTS)(lambda view: [])


def test_every_module_of_rules_is_asked():
    modules = {path.stem for path in Path(rules.__file__).parent.glob("*.py")} - {"__init__"}
    assert {each.judge.__module__.rpartition(".")[2] for each in all_rules().values()} == modules


def test_every_declared_family_has_a_rule():
    assert {each.family for each in all_rules().values()} == set(get_args(Family))


def test_rule_keeps_its_family_when_its_function_moves_to_another_module():
    def judge(view):
        return []

    judge.__module__ = "dynotune.doctor.rules.host"
    assert rule(family="phases", id="a", **TEXTS)(judge).family == "phases"


def test_families_that_the_order_of_findings_depends_on_are_declared():
    assert {*registry._OF_IDLE_TIME, *registry._OF_MACHINE} <= set(get_args(Family))
    machine = {each.family for each in all_rules().values() if each.family.startswith("machine_")}
    assert machine == set(registry._OF_MACHINE)


def test_every_rule_tells_what_it_sees_costs_and_when_it_is_wrong():
    for each in all_rules().values():
        assert each.title.endswith(".") and each.sees and each.costs and each.wrong_when, each.id
        assert {*each.explains} <= all_rules().keys() | set(get_args(Umbrella)), each.id


def test_every_kind_of_lost_time_is_summed_up_and_explained():
    each = all_rules().values()
    assert {word for rule in each for word in rule.umbrella} == set(get_args(Umbrella))
    assert {word for rule in each for word in rule.explains} >= set(get_args(Umbrella))


def test_every_rule_says_what_to_do():
    for each in all_rules().values():
        assert each.remedy or "remedy" in inspect.getsource(each.judge), each.id


def test_every_setting_that_stands_in_a_rule_is_declared_by_it():
    for each in all_rules().values():
        for call in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(each.judge)))):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in ("Setting", "machine.unset", "unset"):
                first = call.args[0]
                if isinstance(first, ast.Constant):
                    name = first.value if ast.unparse(call.func) == "Setting" else f"env.{first.value}"
                    assert any(text.partition("=")[0] == name for text in each.candidates), (each.id, name)


def test_every_rule_stands_on_the_page_of_findings():
    page = (Path(__file__).parents[2] / "docs/reference/findings.md").read_text(encoding="utf-8")
    assert [each for each in all_rules() if f"### `{each}`\n" not in page] == []
