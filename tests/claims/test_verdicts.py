"""What evidence means: a verdict is made from raw values alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.claims import running
from dynotune.claims.running import judged
from dynotune.measure.comparison import judge
from dynotune.schema.claims import SETTLED, Claim, Evidence, TwoArms
from dynotune.schema.comparison import Comparison, FailedArm, Pair

from ..fakes import of_run

VERDICTS = st.sampled_from(["faster", "slower", "same", "undecided", None])


def claim(read="true", **test) -> Claim:
    return Claim(id="one", says="It helps.", kind="speed", read=read, source="nobody", **test)


def on(verdict, **fields) -> Comparison:
    return of_run(Comparison, id="c", candidate_settings=[], verdict=verdict, **fields)


def verdict(fair, elsewhere=(), expects="faster") -> str:
    arms = TwoArms(settings=["env.A=1"], fair=["dense"], elsewhere=["conv"], expects=expects)
    evidence = Evidence(
        id="one", verdict="failed", fair=list(map(on, fair)), elsewhere=list(map(on, elsewhere))
    )
    return judged(claim(compare=arms), evidence).verdict


@pytest.mark.parametrize(
    ("read", "answer", "expected"),
    [
        ("true", {"so": True}, "holds"),
        ("conditional", {"so": True}, "holds here"),
        ("untestable", {"so": True}, "holds here"),
        ("false", {"so": True}, "holds here"),
        ("true", {"so": False}, "refuted"),
        ("false", {"so": "yes"}, "refuted"),
        ("true", {"untestable": "there is no GPU"}, "not testable here"),
        ("true", {"undecided": "the budget is spent"}, "undecided"),
        ("true", {"error": "ZeroDivisionError"}, "failed"),
        ("true", {}, "failed"),
    ],
)
def test_an_answer_is_judged(read, answer, expected):
    evidence = judged(claim(read, check="1"), Evidence(id="one", verdict="holds", answer=answer))
    assert evidence.verdict == expected


@pytest.mark.parametrize(
    ("fair", "elsewhere", "expected"),
    [
        (["faster", "faster"], ["faster"], "holds"),
        (["faster", "faster"], ["same"], "holds here"),
        (["faster", "faster"], ["undecided"], "holds here"),
        (["faster", "same"], [], "undecided"),
        (["faster"], [], "undecided"),
        (["same"], [], "no effect here"),
        (["slower"], [], "refuted"),
        (["undecided"], [], "undecided"),
        ([None], [], "undecided"),
    ],
)
def test_a_claim_is_judged_by_its_comparisons_when_it_expects_a_gain(fair, elsewhere, expected):
    assert verdict(fair, elsewhere) == expected


def test_a_claim_that_something_costs_nothing_holds_where_both_arms_are_the_same():
    assert verdict(["same"], ["same"], "same") == "holds"
    assert verdict(["slower"], expects="same") == "refuted"


@given(st.lists(VERDICTS, min_size=1, max_size=2), st.lists(VERDICTS, max_size=1))
def test_verdict_is_never_settled_when_one_comparison_was_too_noisy(fair, elsewhere):
    if {"undecided", None} & set(fair):
        assert verdict(fair, elsewhere) not in SETTLED


@given(st.lists(VERDICTS, min_size=1, max_size=2), st.lists(VERDICTS, max_size=1))
def test_one_comparison_that_is_faster_makes_no_gain(fair, elsewhere):
    if fair != ["faster", "faster"]:
        assert not verdict(fair, elsewhere).startswith("holds")


def test_a_program_that_fails_is_said_and_not_counted():
    failed = on(None, failed=FailedArm("candidate", 1, ["warning", "RuntimeError: no kernel"]))
    arms = TwoArms(settings=["env.A=1"], fair=["dense"])
    evidence = judged(claim(compare=arms), Evidence(id="one", verdict="holds", fair=[failed]))
    assert evidence.verdict == "failed"
    assert "RuntimeError: no kernel" in evidence.seen
    assert evidence.verdict not in SETTLED


def of_nothing(noise: random.Random) -> str:
    """Return the verdict of one comparison whose arms are the same, on a noisy machine."""
    spread, pairs = noise.choice([0.002, 0.02, 0.2]), []
    while True:
        first = "candidate" if len(pairs) % 2 else "baseline"
        pairs.append(Pair(first, noise.lognormvariate(0, spread), noise.lognormvariate(0, spread)))
        told = {"margin": running.MARGIN, "max_pairs": running.MOST_PAIRS, "precision": running.PRECISION}
        if (settled := judge(pairs, **told)).finished:
            return settled.verdict


def test_verdict_holds_for_fewer_than_one_claim_in_a_hundred_when_settings_do_nothing():
    noise = random.Random(5)
    found = [[of_nothing(noise), of_nothing(noise)] for _ in range(300)]
    holds = [verdict(fair).startswith("holds") for fair in found]
    assert sum(holds) <= 3
    assert sum("faster" in fair for fair in found) <= 30, (
        "a single comparison errs in fewer than one in twenty"
    )
