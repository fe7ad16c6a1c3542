"""Arms against each other: least squares over blocks, Holm, the model of many settings, and the layout of
proofs."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynotune.schema.study import Trial
from dynotune.search.fit import Fit, holm


def trial(arm: str, block: int, log: float, **more: object) -> Trial:
    return Trial(arm=arm, phase="prune", block=block, ended="measured", value=math.exp(log), **more)  # type: ignore[arg-type]


def blocks_of(
    effects: dict[str, float], num_blocks: int, sd: float, seed: int, drift: float = 0.0
) -> list[Trial]:
    draw = random.Random(seed)
    return [
        trial(arm, block, drift * block - effect + draw.gauss(0, sd))
        for block in range(1, num_blocks + 1)
        for arm, effect in effects.items()
    ]


@given(st.floats(-0.5, 0.5), st.floats(-0.5, 0.5), st.floats(-1, 1), st.integers(2, 6))
def test_without_noise_the_planted_gains_come_back_whatever_the_drift(
    one: float, other: float, drift: float, num_blocks: int
) -> None:
    fit = Fit(blocks_of({"": 0.0, "a": one, "b": other}, num_blocks, 0.0, 0, drift))
    gain = fit.gain("a")
    assert gain is not None and gain.log == pytest.approx(one, abs=1e-6)
    between = fit.gain("a", "b")
    assert between is not None and between.log == pytest.approx(one - other, abs=1e-6)


@given(st.integers(0, 10_000), st.floats(1e-6, 1e6))
@settings(max_examples=30)
def test_the_unit_does_not_matter_and_swapping_arms_swaps_the_gain(seed: int, scale: float) -> None:
    trials = blocks_of({"": 0.0, "a": 0.05, "b": 0.0}, 4, 0.02, seed)
    scaled = [trial(one.arm, one.block, math.log(one.value or 1) + math.log(scale)) for one in trials]
    there, again, back = Fit(trials).gain("a"), Fit(scaled).gain("a"), Fit(trials).gain("", "a")
    assert there is not None and again is not None and back is not None
    assert again.log == pytest.approx(there.log, abs=1e-7) and again.se == pytest.approx(there.se, rel=1e-4)
    assert back.log == pytest.approx(-there.log, abs=1e-9) and back.se == pytest.approx(there.se, rel=1e-9)
    assert there.p + back.p == pytest.approx(1.0)


def test_of_one_block_there_is_a_gain_and_no_interval() -> None:
    gain = Fit(blocks_of({"": 0.0, "a": 0.1}, 1, 0.0, 0)).gain("a")
    assert gain is not None and gain.log == pytest.approx(0.1)
    assert gain.ci is None and gain.p == 1.0 and math.isinf(gain.upper(0.05))


def test_arms_that_no_block_connects_are_not_compared() -> None:
    fit = Fit([trial("", 1, 0.0), trial("a", 1, 0.1), trial("b", 2, 0.0), trial("c", 2, 0.1)])
    assert fit.gain("b") is None and fit.gain("never") is None and fit.gain("a") is not None


def test_void_and_failed_runs_are_passed_over() -> None:
    trials = blocks_of({"": 0.0, "a": 0.1}, 3, 0.0, 0)
    void = trial("a", 3, 5.0, void="another process")
    failed = Trial(arm="a", phase="prune", block=2, ended="failed")
    gain = Fit([*trials, void, failed]).gain("a")
    assert gain is not None and gain.log == pytest.approx(0.1)


def test_one_stalled_run_moves_the_gain_little() -> None:
    trials = blocks_of({"": 0.0, "a": 0.05, "b": 0.0, "c": 0.0}, 6, 0.005, 3)
    stalled = [
        trial(one.arm, one.block, math.log(one.value or 1) + 0.5) if at == 1 else one
        for at, one in enumerate(trials)
    ]
    gain = Fit(stalled).gain("a")
    assert gain is not None and gain.log == pytest.approx(0.05, abs=0.01)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    held = 0
    for seed in range(300):
        gain = Fit(blocks_of({"": 0.0, "a": 0.03, "b": 0.0, "c": 0.0}, 4, 0.02, seed)).gain("a")
        assert gain is not None and gain.ci is not None
        held += gain.ci[0] <= math.exp(0.03) <= gain.ci[1]
    assert held / 300 >= 0.92


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_never_makes_a_p_smaller_and_keeps_their_order(ps: list[float]) -> None:
    corrected = holm(ps)
    assert all(p <= q <= 1 for p, q in zip(ps, corrected, strict=True))
    order = sorted(range(len(ps)), key=lambda at: ps[at])
    assert [corrected[at] for at in order] == sorted(corrected)
    if ps:
        assert corrected[order[0]] == pytest.approx(min(1.0, len(ps) * min(ps)))


# How pairs spread


def test_the_spread_of_a_pair_is_that_of_runs_and_known_without_any_of_its_own_arms() -> None:
    blocks = blocks_of({"": 0.0, "a": 0.1, "b": 0.2}, 200, 0.02, 0)
    of_all, of_two = Fit(blocks).of_a_pair(), Fit(blocks).of_a_pair("", "a")
    assert of_all is not None and of_two is not None and of_all.df == of_two.df == 398
    for spread in (of_all, of_two):
        assert math.sqrt(spread.variance) == pytest.approx(math.sqrt(2) * 0.02, rel=0.25)
    assert Fit(blocks_of({"": 0.0, "a": 0.1}, 1, 0.0, 0)).of_a_pair("") is None
