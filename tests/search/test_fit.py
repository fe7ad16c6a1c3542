"""Arms against each other: least squares over blocks, Holm, the model of many settings, and the layout of proofs."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynotune.schema.comparison import LOOKS
from dynotune.schema.study import Trial
from dynotune.search import layout
from dynotune.search.fit import Fit, Gain, holm
from dynotune.search.model import Model

from .simulated import candidate


def trial(arm: str, block: int, log: float, **more: object) -> Trial:
    return Trial(arm=arm, phase="ablate", block=block, ended="measured", value=math.exp(log), **more)  # type: ignore[arg-type]


def blocks_of(effects: dict[str, float], num_blocks: int, sd: float, seed: int, drift: float = 0.0) -> list[Trial]:
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
    failed = Trial(arm="a", phase="ablate", block=2, ended="failed")
    gain = Fit([*trials, void, failed]).gain("a")
    assert gain is not None and gain.log == pytest.approx(0.1)


def test_one_stalled_run_moves_the_gain_little() -> None:
    trials = blocks_of({"": 0.0, "a": 0.05, "b": 0.0, "c": 0.0}, 6, 0.005, 3)
    stalled = [
        trial(one.arm, one.block, math.log(one.value or 1) + 0.5) if at == 1 else one for at, one in enumerate(trials)
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


# The model of many settings


def test_runs_of_many_settings_tell_what_each_adds_and_what_a_pair_adds() -> None:
    candidates = [candidate("a=1", group="g"), candidate("b=1", group="g"), candidate("c=1"), candidate("d=1")]
    ids = [one.id for one in candidates]
    rng = np.random.default_rng(0)
    arms, trials = {"": frozenset[str]()}, []
    for number in range(60):
        chosen = frozenset(id_ for id_ in ids if rng.random() < 0.5)
        gain = 0.1 * ("c=1" in chosen) + 0.15 * ({"a=1", "b=1"} <= chosen)
        arms[" ".join(sorted(chosen))] = chosen
        trials.append(trial(" ".join(sorted(chosen)), 1 + number // 6, -gain + 0.005 * float(rng.standard_normal())))
    model = Model(candidates, arms, trials)
    assert model.gain(frozenset({"c=1"})).log == pytest.approx(0.1, abs=0.02)
    assert model.gain(frozenset({"a=1"})).log == pytest.approx(0.0, abs=0.03)
    assert model.gain(frozenset({"a=1", "b=1"})).log == pytest.approx(0.15, abs=0.03)
    assert {one.id for one in model.best(candidates, model.mean)} >= {"a=1", "b=1", "c=1"}


def test_before_any_run_nothing_is_known_and_one_value_a_knob_is_drawn() -> None:
    candidates = [candidate("w=2"), candidate("w=4"), candidate("x=1")]
    model = Model(candidates, {}, [])
    assert model.gain(frozenset({"x=1"})).log == 0.0
    rng = np.random.default_rng(0)
    drawn = [model.best(candidates, model.draw(rng)) for _ in range(50)]
    assert all(len({one.setting.knob for one in best}) == len(best) for best in drawn)
    assert {one.id for best in drawn for one in best} == {"w=2", "w=4", "x=1"}


# The layout of proofs


def wholes_of(adds: list[Gain], rounds: list[layout.Round]) -> list[layout.Whole]:
    """Of settings whose gains add up."""
    found = []
    for num, a_round in enumerate(rounds, start=1):
        gain = adds[0]._replace(log=sum(one.log for one in adds[:num]), se=math.hypot(*(one.se for one in adds[:num])))
        found.append(layout.Whole(gain, adds[:num], a_round))
    return found


@given(
    st.lists(st.floats(0.01, 0.3), min_size=1, max_size=6), st.floats(0.001, 0.08), st.integers(0, 200), st.booleans()
)
@settings(max_examples=60, deadline=None)
def test_a_layout_fits_into_the_runs_left(logs: list[float], sd: float, num_runs: int, new: bool) -> None:
    adds = [Gain(log, sd / 2, 10, 4) for log in sorted(logs, reverse=True)]
    rounds = [layout.Round(num + 2, int(new) * (num + 1)) for num in range(1, len(adds) + 1)]
    found = layout.best(wholes_of(adds, rounds), sd, num_runs)
    if found is None:
        assert num_runs < 2 * LOOKS[0]
        return
    promise, (num_settings, num_blocks, num_pairs) = found
    ablation = rounds[num_settings - 1].num_runs(num_blocks)
    assert ablation + 2 * num_pairs <= num_runs
    assert (num_blocks == 0) == (num_settings == 1)
    assert num_blocks or num_pairs
    assert 0 <= promise <= sum(logs) + 1e-9


def test_with_time_all_settings_are_laid_out_and_without_only_the_strongest() -> None:
    adds = [Gain(log, 0.004, 20, 6) for log in (0.2, 0.1, 0.08)]
    rounds = [layout.Round(3), layout.Round(4, 1), layout.Round(5, 1)]
    wholes = wholes_of(adds, rounds)
    plenty, little = layout.best(wholes, 0.01, 100), layout.best(wholes, 0.01, 8)
    assert plenty is not None and plenty[1].num_settings == 3
    assert little is not None and little[1] == (1, 0, 4)


def test_without_time_for_fresh_pairs_the_blocks_of_an_ablation_are_laid_out_alone() -> None:
    adds = [Gain(log, 0.004, 20, 6) for log in (0.4, 0.3)]
    rounds = [layout.Round(3), layout.Round(4)]
    assert layout.best(wholes_of(adds, rounds), 0.01, 8) == (
        pytest.approx(layout.ALL_OR_NOTHING * 0.7, abs=0.01),
        (2, 2, 0),
    )


def test_what_is_left_out_with_another_leaves_fewer_arms_and_more_blocks() -> None:
    """Workers and what they make ready: without workers it is the baseline, which runs in any block."""
    adds = [Gain(log, 0.004, 20, 6) for log in (0.4, 0.3)]
    found = layout.best(wholes_of(adds, [layout.Round(3), layout.Round(3)]), 0.01, 9)
    assert found is not None and found[1] == (2, 3, 0)


def test_of_two_that_do_the_same_one_is_proved_and_no_time_goes_into_what_the_other_adds() -> None:
    one, little = Gain(0.63, 0.01, 14, 15), Gain(0.01, 0.01, 14, 15)
    alone = layout.Whole(one, [one], layout.Round(2))
    both = layout.Whole(Gain(0.64, 0.01, 14, 15), [little, little], layout.Round(4))
    assert layout.best([alone, both], 0.015, 19) == (pytest.approx(0.63, rel=0.01), (1, 0, 9))


def test_blocks_alone_promise_what_their_arms_may_prove() -> None:
    """Where one setting surely goes, the rest ran; where two go, it did not, and only fresh pairs tell of that."""
    assert layout.of_arms_that_ran(0.9, [0.4, 0.3, 0.2], [1, 1, 1]) == pytest.approx(0.9 * layout.ALL_OR_NOTHING)
    assert layout.of_arms_that_ran(0.9, [0.4, 0.3, 0.2], [1, 0, 1]) == pytest.approx(0.6 * layout.ALL_OR_NOTHING)
    assert layout.of_arms_that_ran(0.9, [0.4, 0.3, 0.2], [1, 0, 0]) == 0


def test_the_spread_of_a_pair_is_that_of_runs_and_known_without_any_of_its_own_arms() -> None:
    blocks = blocks_of({"": 0.0, "a": 0.1, "b": 0.2}, 200, 0.02, 0)
    of_all, of_two = Fit(blocks).of_a_pair(), Fit(blocks).of_a_pair("", "a")
    assert of_all is not None and of_two is not None and of_all.df == of_two.df == 398
    for spread in (of_all, of_two):
        assert math.sqrt(spread.variance) == pytest.approx(math.sqrt(2) * 0.02, rel=0.25)
    assert Fit(blocks_of({"": 0.0, "a": 0.1}, 1, 0.0, 0)).of_a_pair("") is None
