"""Explaining a finding by its id, or a claim by what people call it."""

from __future__ import annotations

import ast
import re

import pytest

from dynotune.claims import all_claims
from dynotune.doctor import all_rules, explained
from dynotune.doctor import explain as explain_with
from dynotune.knobs import parse
from dynotune.schema.causes import CAUSES
from dynotune.schema.errors import UsageError


def explain(word):
    return explain_with(word, all_claims())


@pytest.mark.parametrize("id_", list(all_rules()))
def test_every_finding_can_be_explained(id_):
    finding = explain(id_).finding
    assert finding is not None
    assert (finding.id, finding.title) == (id_, all_rules()[id_].title)
    assert finding.sees and finding.costs and finding.wrong


@pytest.mark.parametrize("id_", list(all_rules()))
def test_finding_has_an_example_that_is_code_or_a_state_of_the_machine(id_):
    """Python that parses, or commands of a shell with what they print."""
    example = explain(id_).finding.example
    assert example
    if not example.startswith("$ "):
        ast.parse(example)


@pytest.mark.parametrize("id_", list(all_rules()))
def test_the_settings_of_a_finding_exist(id_):
    for setting in explained(all_rules()[id_]).settings:
        parse(setting if "=" in setting else f"{setting}=1")


def test_every_cause_in_a_trace_can_be_explained():
    for id_ in CAUSES:
        assert explain(id_).finding is not None, id_


def test_a_finding_comes_with_what_people_believe_of_it():
    explanation = explain("cublas-env-regex")
    assert explanation.finding.settings == ["env.CUBLAS_WORKSPACE_CONFIG=@unset"]
    assert [each.id for each in explanation.claims] == ["cublas-workspace"]


@pytest.mark.parametrize("word", ["Cublas-Env-Regex", "cublas_env_regex", " cublas-env-regex "])
def test_an_id_is_known_however_it_is_written(word):
    assert explain(word).finding.id == "cublas-env-regex"


def test_a_claim_is_explained_without_a_finding():
    explanation = explain("vm.dirty_ratio")
    assert explanation.finding is None
    assert [each.id for each in explanation.claims] == ["dirty-ratio"]


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("loader-bond", "loader-bound"),
        ("dirty_ratoi", "dirty-ratio"),
    ],
)
def test_an_unknown_word_is_refused_with_the_nearest_ones(word, near):
    with pytest.raises(UsageError) as refused:
        explain(word)
    assert near in refused.value.hint


def test_a_plain_word_that_one_finding_alone_speaks_of_explains_that():
    assert explain("padding").finding.id == "padding-waste"


def test_a_word_that_is_near_nothing_is_sent_to_the_list():
    with pytest.raises(UsageError) as refused:
        explain("zzzzzzzz")
    assert refused.value.hint == "`dynotune explain` lists findings, `dynotune claims list` advice."


@pytest.mark.parametrize(
    ("word", "finding"),
    [
        ("container", "cgroup-cpu-quota"),
        ("DDP", "ddp-find-unused-on"),
        ("jitter", "gc-jitter"),
        ("latency", "gc-jitter"),
        ("OOM", "alloc-retries"),
        ("launch-blocking-of", "launch-blocking-on"),
    ],
)
def test_a_word_that_a_finding_speaks_of_leads_to_it(word, finding):
    near = explain(word).near
    assert near[finding] == all_rules()[finding].title


def test_a_question_in_which_a_claim_is_named_is_answered_by_that_claim():
    for question in ("low gpu utilization", "is PREEMPT_RT faster"):
        word = question.split(maxsplit=1)[1].removesuffix(" faster")
        assert [each.id for each in explain(question).claims] == [each.id for each in explain(word).claims]


def test_ids_that_claims_bear_on_are_spelled_as_ids_are():
    ids = {id_ for claim in all_claims() for id_ in claim.bears_on}
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", id_) for id_ in ids)
