"""Answers from blocks within one process, and what they are worth when launched."""

import json
import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.measure.comparison import launched
from dynotune.schema.comparison import BaselineShift, BlocksAnswer, Comparison, Pair
from dynotune.schema.run import RunSpec

RUN = RunSpec(command=["true"], cwd=Path("/"), env={}, base=Path("/"))
PAIRS = [Pair("baseline", 1.2, 1.0), Pair("candidate", 1.2, 1.0)]


def by_blocks(speedup=1.5, half=0.02, verdict="faster", **more):
    ci = (speedup * math.exp(-half), speedup * math.exp(half))
    more.setdefault("baseline_shift", BaselineShift(ratio=1.0, ci=(0.99, 1.01), num_blocks=4))
    return Comparison(
        id="x",
        run=RUN,
        candidate_settings=[],
        within=True,
        verdict=verdict,
        speedup=speedup,
        ci=ci,
        num_pairs=2,
        pairs=PAIRS,
        **more,
    )


def by_pairs(speedup, ci, verdict, blocks):
    return Comparison(
        id="x",
        run=RUN,
        candidate_settings=[],
        verdict=verdict,
        speedup=speedup,
        ci=ci,
        num_pairs=2,
        pairs=PAIRS,
        blocks=launched.blocks_answer(blocks),
    )


def offset(monkeypatch, sd):
    row = launched.Launched(
        "a", "b", within=1.0, within_se=0.0, fresh=math.exp(sd), pairs_sd=0.0, num_pairs=3
    )
    monkeypatch.setattr(launched, "rows", lambda: (row,) * 12)


@given(st.floats(0.2, 5), st.floats(0.001, 0.5), st.sampled_from(["faster", "slower", "undecided"]))
def test_widened_interval_holds_the_interval_of_the_blocks(speedup, half, verdict):
    answer = by_blocks(speedup, half, verdict)
    wide = launched.widened(answer)
    assert wide.ci[0] <= answer.ci[0] * (1 + 1e-9)
    assert answer.ci[1] <= wide.ci[1] * (1 + 1e-9)
    assert wide.speedup == answer.speedup


def test_widened_answer_is_undecided_when_launches_may_gain_nothing(monkeypatch):
    offset(monkeypatch, 0.1)
    answer = launched.widened(by_blocks(1.05))
    assert answer.verdict == "undecided"
    assert "off by" in answer.reason
    assert launched.widened(by_blocks(2.0)).verdict == "faster"


def test_widened_leaves_an_answer_that_states_no_speedup():
    same = by_blocks(1.001, 0.002, "same")
    assert launched.widened(same) == same


def test_stated_is_what_the_pairs_say_when_they_decide(monkeypatch):
    offset(monkeypatch, 0.03)
    for verdict, speedup in (("faster", 1.3), ("same", 1.0), ("slower", 0.8)):
        fresh = by_pairs(speedup, (speedup * 0.95, speedup * 1.05), verdict, by_blocks(1.5))
        assert launched.stated(fresh) == fresh


def test_stated_lies_between_pairs_and_blocks_when_the_pairs_alone_do_not_decide(monkeypatch):
    offset(monkeypatch, 0.03)
    fresh = by_pairs(1.2, (0.95, 1.52), "undecided", by_blocks(1.3))
    answer = launched.stated(fresh)
    assert (answer.verdict, answer.within, answer.pooled) == ("faster", False, True)
    assert 1.2 < answer.speedup < 1.3
    widened = launched.widened(by_blocks(1.3))
    assert answer.ci[1] / answer.ci[0] < widened.ci[1] / widened.ci[0]
    assert answer.pairs == fresh.pairs


def test_stated_is_undecided_when_the_pairs_contradict_the_blocks(monkeypatch):
    offset(monkeypatch, 0.03)
    fresh = by_pairs(1.0, (0.95, 1.05), "undecided", by_blocks(1.5))
    answer = launched.stated(fresh)
    assert (answer.verdict, answer.speedup) == ("undecided", 1.0)
    assert "contradict" in answer.reason


def test_stated_agrees_when_a_lone_pair_differs_as_pairs_do(monkeypatch):
    offset(monkeypatch, 0.03)
    noisy = launched.Launched("a", "b", within=1.0, within_se=0.0, fresh=1.03, pairs_sd=0.05, num_pairs=3)
    monkeypatch.setattr(launched, "rows", lambda: (noisy,) * 12)
    assert launched.stated(by_pairs(1.4, None, "undecided", by_blocks(1.5))).verdict == "faster"
    assert launched.stated(by_pairs(1.0, None, "undecided", by_blocks(1.5))).verdict == "undecided"


def test_stated_is_undecided_when_the_blocks_only_choose(monkeypatch):
    offset(monkeypatch, 0.0)
    only = "Within the process, a step took 30% longer."
    fresh = by_pairs(1.2, (0.95, 1.52), "undecided", by_blocks(1.3, only_chooses=only))
    assert (launched.stated(fresh).verdict, launched.stated(fresh).speedup) == ("undecided", 1.2)
    answer = launched.proved(by_blocks(1.3, only_chooses=only))
    assert (answer.verdict, answer.reason) == ("undecided", only)


def test_stated_is_what_the_blocks_say_when_the_pairs_have_no_interval(monkeypatch):
    offset(monkeypatch, 0.03)
    fresh = by_pairs(1.28, None, "undecided", by_blocks(1.3))
    answer = launched.stated(fresh)
    assert (answer.verdict, answer.within, answer.speedup) == ("faster", True, 1.3)


def test_proved_is_undecided_when_the_baseline_was_never_compared_with_a_plain_window():
    for verdict in ("faster", "slower", "same"):
        assert launched.proved(by_blocks(1.3, verdict=verdict, baseline_shift=None)).verdict == "undecided"


def test_proved_keeps_the_answer_of_equal_arms_when_no_block_was_made():
    equal = msgspec.structs.replace(by_blocks(verdict="same", baseline_shift=None), pairs=[], reason="equal")
    assert launched.proved(equal) is equal


def test_offset_is_the_root_mean_square_of_the_kept_rows(monkeypatch):
    exact = launched.Launched("a", "b", within=1.2, within_se=0.0, fresh=1.3, pairs_sd=0.0, num_pairs=3)
    monkeypatch.setattr(launched, "rows", lambda: (exact, exact))
    assert launched.offset_sd() == pytest.approx(math.log(1.3 / 1.2))


def test_kept_rows_are_those_of_the_recorded_results():
    results = Path(__file__).parents[3] / "benchmarks" / "results"
    recorded = [
        (net, words, arm)
        for file in sorted(results.glob("launched_*.json"))
        for net, row in json.loads(file.read_text())["programs"].items()
        for words, arm in row["arms"].items()
        if arm.get("fresh", {}).get("sd") is not None and arm["within"]["sd"] is not None
    ]
    known = {
        (net, words, round(arm["within"]["speedup"], 4), round(arm["fresh"]["speedup"], 4))
        for net, words, arm in recorded
    }
    assert {(row.program, row.arm, row.within, row.fresh) for row in launched.rows()} == known
    assert launched.spread().variance > 0


def test_blocks_answer_keeps_what_the_blocks_said():
    blocks = by_blocks(1.3, only_chooses="why")
    assert launched.blocks_answer(blocks) == BlocksAnswer(
        verdict="faster",
        speedup=1.3,
        ci=blocks.ci,
        pairs=PAIRS,
        baseline_shift=blocks.baseline_shift,
        only_chooses="why",
    )
