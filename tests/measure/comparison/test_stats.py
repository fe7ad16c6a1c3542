from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from scipy import stats as scipy_stats

from dynotune.measure.comparison import stats
from dynotune.measure.comparison.looks import nominal_levels
from dynotune.measure.comparison.schedule import looks, orders
from dynotune.measure.comparison.stats import SequentialResult, judge, sign_flip_p
from dynotune.schema.comparison import LOOKS, MAX_PAIRS, Pair, Spread
from dynotune.schema.errors import DynotuneError, StatisticsError, UsageError


def pairs_of(log_ratios: Sequence[float], *, seed: int = 0) -> list[Pair]:
    firsts = orders(len(log_ratios), seed)
    return [Pair(first, math.exp(y), 1.0) for first, y in zip(firsts, log_ratios, strict=True)]


def simulated(num_pairs: int, *, effect: float, sd: float, seed: int) -> list[Pair]:
    draw = random.Random(seed)
    return pairs_of([effect + draw.gauss(0, sd) for _ in range(num_pairs)], seed=seed)


log_ratios = st.floats(-0.2, 0.2, allow_subnormal=False)
# Noise of a size that rounding cannot imitate.
noisy = st.lists(log_ratios, min_size=2, max_size=12).filter(lambda ys: len(set(ys)) == len(ys))


def swapped(pairs: Sequence[Pair]) -> list[Pair]:
    other = {"baseline": "candidate", "candidate": "baseline"}
    return [Pair(other[pair.first], pair.candidate_s, pair.baseline_s) for pair in pairs]  # type: ignore[arg-type]


def assert_close(one: SequentialResult, other: SequentialResult) -> None:
    assert one.verdict == other.verdict
    assert one.num_pairs == other.num_pairs
    assert one.speedup == pytest.approx(other.speedup, rel=1e-9)
    assert (one.ci is None) == (other.ci is None)
    if one.ci and other.ci:
        assert one.ci == pytest.approx(other.ci, rel=1e-9)


def both_errors(fit: stats._Fit) -> tuple[float, float]:
    """Return the standard errors with and without the order's effect."""
    assert fit.with_order is not None
    return fit.with_order.se, fit.plain.se


# What does not change an answer


@given(noisy, st.integers(0, 1000))
def test_swapping_the_arms_inverts_the_speedup_and_flips_the_verdict(ys: list[float], seed: int) -> None:
    pairs = pairs_of(ys, seed=seed)
    there, back = judge(pairs), judge(swapped(pairs))
    assert back.verdict == {"faster": "slower", "slower": "faster"}.get(str(there.verdict), there.verdict)
    assert back.num_pairs == there.num_pairs
    assert there.speedup is not None and back.speedup == pytest.approx(1 / there.speedup, rel=1e-9)
    if there.ci:
        assert back.ci == pytest.approx((1 / there.ci[1], 1 / there.ci[0]), rel=1e-9)


@given(noisy, st.floats(1e-9, 1e9))
def test_the_unit_of_time_does_not_matter(ys: list[float], scale: float) -> None:
    pairs = pairs_of(ys)
    scaled = [Pair(pair.first, pair.baseline_s * scale, pair.candidate_s * scale) for pair in pairs]
    assert_close(judge(pairs), judge(scaled))


@given(st.lists(log_ratios, min_size=12, max_size=12, unique=True), st.randoms(use_true_random=False))
def test_pairs_of_one_order_may_change_places(ys: list[float], shuffle: random.Random) -> None:
    pairs = pairs_of(ys)
    for look in looks(MAX_PAIRS):
        groups = {
            first: [pair for pair in pairs[:look] if pair.first == first]
            for first in ("baseline", "candidate")
        }
        for group in groups.values():
            shuffle.shuffle(group)
        moved = [groups[pair.first].pop() for pair in pairs[:look]]
        fit, fit_moved = stats._fit(pairs[:look]), stats._fit(moved)
        assert fit_moved.effect == pytest.approx(fit.effect, abs=1e-12)
        assert fit_moved.half_width(0.01) == pytest.approx(fit.half_width(0.01), rel=1e-9)


@given(noisy, st.floats(-0.1, 0.1))
def test_a_constant_difference_between_first_and_second_does_not_move_the_effect(
    ys: list[float], order_effect: float
) -> None:
    even = ys[: len(ys) - len(ys) % 2]
    moved = [
        y + (order_effect if first == "baseline" else -order_effect)
        for y, first in zip(even, orders(len(even), 0), strict=True)
    ]
    fit, fit_moved = stats._fit(pairs_of(even)), stats._fit(pairs_of(moved))
    assert fit_moved.effect == pytest.approx(fit.effect, abs=1e-12)
    assert both_errors(fit_moved)[0] == pytest.approx(both_errors(fit)[0], abs=1e-9, nan_ok=True)


# Known values, computed another way


@pytest.mark.parametrize("num_pairs", [4, 5, 6, 7, 8, 11, 12])
def test_effect_and_error_are_those_of_least_squares_on_the_order(num_pairs: int) -> None:
    pairs = simulated(num_pairs, effect=0.02, sd=0.02, seed=num_pairs)
    y = np.log([pair.baseline_s / pair.candidate_s for pair in pairs])
    order = [1.0 if pair.first == "baseline" else -1.0 for pair in pairs]
    design = np.column_stack([np.ones(num_pairs), order])
    coefficients, rss, _, _ = np.linalg.lstsq(design, y, rcond=None)
    covariance = rss[0] / (num_pairs - 2) * np.linalg.inv(design.T @ design)
    fit = stats._fit(pairs)
    assert fit.effect == pytest.approx(coefficients[0])
    assert both_errors(fit) == pytest.approx((math.sqrt(covariance[0, 0]), scipy_stats.sem(y)))


def test_the_interval_at_the_last_look_is_student_s() -> None:
    pairs = simulated(12, effect=0.004, sd=0.02, seed=5)
    judgement = judge(pairs)
    assert judgement.num_pairs == 12
    y = np.log([pair.baseline_s / pair.candidate_s for pair in pairs])
    order = np.array([1.0 if pair.first == "baseline" else -1.0 for pair in pairs])
    residual = y - y.mean() - (y * order).mean() * order
    se = math.sqrt((residual**2).sum() / 10 / 12)
    level = nominal_levels(looks(MAX_PAIRS), 0.05)[-1]
    interval = scipy_stats.t.interval(1 - level, 10, loc=y.mean(), scale=se)
    assert judgement.ci == pytest.approx(tuple(np.exp(interval)), rel=1e-9)
    assert judgement.speedup == pytest.approx(scipy_stats.gmean(np.exp(y)))


@pytest.mark.parametrize("num_blocks", [2, 3, 4, 8, 12])
def test_an_interval_of_blocks_is_student_s_without_the_order_when_all_were_made(num_blocks: int) -> None:
    blocks = simulated(num_blocks, effect=0.7, sd=0.1, seed=num_blocks)
    y = [math.log(block.baseline_s / block.candidate_s) for block in blocks]
    level = nominal_levels(looks(num_blocks), 0.05)[-1]
    interval = scipy_stats.t.interval(1 - level, num_blocks - 1, loc=np.mean(y), scale=scipy_stats.sem(y))
    state = stats._state(stats._fit(blocks, fits_order=False), level, verdict=None, reason="")
    assert state.ci == pytest.approx(tuple(np.exp(interval)), rel=1e-9)


def test_three_blocks_prove_a_large_gain_and_so_do_three_pairs_when_none_follows() -> None:
    ys = [0.96, 1.14, 0.91]
    pairs = judge(pairs_of(ys), max_pairs=3, error=0.05 / 3, ended=True)
    blocks = judge(pairs_of(ys), max_pairs=3, error=0.05 / 3, ended=True, fits_order=False)
    assert pairs.verdict == blocks.verdict == "faster"
    assert pairs.ci is not None and blocks.ci is not None
    # One order has two pairs and the other one, so their mean is known less well.
    assert blocks.ci[0] > pairs.ci[0] > 1.2
    assert judge(pairs_of(ys), max_pairs=6).verdict is None


@pytest.mark.parametrize("modes", [0.0, 1.0])
def test_three_pairs_err_no_more_than_promised_when_none_follows(modes: float) -> None:
    draw = np.random.default_rng(5)
    num = 1500
    runs = 0.3 * draw.standard_normal((num, 3, 2)) + modes * draw.integers(0, 2, (num, 3, 2))
    called = sum(
        judge(pairs_of(list(0.02 * (own[:, 0] - own[:, 1])), seed=seed), max_pairs=3, ended=True).verdict
        in ("faster", "slower")
        for seed, own in enumerate(runs)
    )
    assert called < (0.05 + 2 * math.sqrt(0.05 * 0.95 / num)) * num


def test_an_effect_of_the_order_widens_the_interval_of_three_pairs() -> None:
    firsts = orders(3, 0)
    plain = [0.10, 0.11, 0.09]
    moved = [
        value + (0.05 if first == "baseline" else -0.05) for value, first in zip(plain, firsts, strict=True)
    ]
    even, odd = (judge(pairs_of(ys, seed=0), max_pairs=3, ended=True) for ys in (plain, moved))
    assert even.ci is not None and odd.ci is not None
    assert odd.speedup == pytest.approx(even.speedup, rel=0.01)
    assert math.log(odd.ci[1] / odd.ci[0]) > 2 * math.log(even.ci[1] / even.ci[0])


def of_blocks(log_ratios: Sequence[float], repeats: Sequence[float]) -> list[Pair]:
    """Blocks of these log ratios, each with two of these repeats."""
    pairs = pairs_of(log_ratios)
    return [replace(pair, repeats=tuple(repeats[2 * k : 2 * k + 2])) for k, pair in enumerate(pairs)]


def test_two_blocks_prove_a_large_gain_when_their_stretches_show_the_noise() -> None:
    plain = judge(pairs_of([0.96, 1.1]), max_pairs=2, error=0.05 / 3, ended=True, fits_order=False)
    assert plain.verdict == "undecided"
    blocks = of_blocks([0.96, 1.1], [0.1, -0.12, 0.15, 0.08])
    found = judge(blocks, max_pairs=2, error=0.05 / 3, ended=True, fits_order=False)
    assert found.verdict == "faster"
    assert found.ci is not None and found.ci[0] > 1.8


def test_one_block_has_an_interval_and_no_verdict_when_its_stretches_show_the_noise() -> None:
    found = judge(of_blocks([1.0], [0.01, 0.01]), max_pairs=4, ended=True, fits_order=False)
    assert found.verdict == "undecided"
    assert found.ci is not None and found.ci[0] > 1


@pytest.mark.parametrize("repeat", [math.nan, math.inf, -math.inf])
def test_blocks_are_refused_when_a_repeat_is_no_ratio(repeat: float) -> None:
    with pytest.raises(StatisticsError, match="no ratios of two stretches"):
        judge(of_blocks([0.1, 0.1], [0.0, repeat, 0.0, 0.0]), fits_order=False)


def order_explains_all(num_pairs: int) -> tuple[list[Pair], stats._Fit]:
    by_order = {"baseline": 0.05, "candidate": 0.01}
    pairs = pairs_of([by_order[first] for first in orders(num_pairs, 0)])
    return pairs, stats._fit(pairs)


@pytest.mark.parametrize("num_pairs", [4, 6])
def test_with_few_pairs_fitting_the_order_does_not_narrow_the_interval(num_pairs: int) -> None:
    pairs, fit = order_explains_all(num_pairs)
    y = np.log([pair.baseline_s for pair in pairs])
    low, high = scipy_stats.t.interval(0.99, num_pairs - 1, loc=y.mean(), scale=scipy_stats.sem(y))
    assert fit.half_width(0.01) == pytest.approx((high - low) / 2)


def test_from_eight_pairs_on_fitting_the_order_narrows_the_interval() -> None:
    assert order_explains_all(8)[1].half_width(0.01) == pytest.approx(0, abs=1e-12)


@given(st.lists(log_ratios, min_size=1, max_size=8))
def test_the_sign_flip_p_is_that_of_all_flips(values: list[float]) -> None:
    slack = 1e-9 * sum(map(abs, values))
    totals = [
        abs(sum(sign * value for sign, value in zip(signs, values, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(values))
    ]
    as_far = sum(total >= abs(sum(values)) - slack for total in totals)
    assert sign_flip_p(values) == pytest.approx(as_far / len(totals), abs=2 / len(totals) * 1e-6)


def test_the_sign_flip_p_agrees_with_scipy() -> None:
    values = [0.03, 0.01, -0.02, 0.04, 0.025, 0.005, 0.031]
    drawn = scipy_stats.permutation_test(
        (np.array(values),), np.sum, permutation_type="samples", n_resamples=np.inf
    )
    assert sign_flip_p(values) == pytest.approx(drawn.pvalue)


def test_six_values_of_one_sign_have_a_sign_flip_p_of_two_in_sixty_four() -> None:
    assert sign_flip_p([0.01, 0.02, 0.03, 0.01, 0.02, 0.04]) == 2 / 64


def test_values_that_sum_to_nothing_have_a_sign_flip_p_of_one() -> None:
    assert sign_flip_p([0.0] * 6) == 1
    assert sign_flip_p([0.1, -0.1, 0.2, -0.2, 0.3, -0.3]) == 1


# Verdicts, and when they fall


def test_a_plain_improvement_is_faster_and_a_plain_loss_slower() -> None:
    assert judge(simulated(12, effect=0.10, sd=0.01, seed=1)).verdict == "faster"
    assert judge(simulated(12, effect=-0.10, sd=0.01, seed=1)).verdict == "slower"


def test_a_difference_inside_the_margin_is_same_although_it_is_there() -> None:
    judgement = judge(simulated(12, effect=0.004, sd=0.0002, seed=2))
    assert judgement.verdict == "same"
    assert judgement.ci is not None and judgement.ci[0] > 1
    assert judgement.reason.startswith("A difference of 0.4")
    assert "±1%" in judgement.reason


def test_a_wider_margin_turns_faster_into_same() -> None:
    pairs = simulated(12, effect=0.03, sd=0.004, seed=3)
    assert judge(pairs, margin=0.01).verdict == "faster"
    assert judge(pairs, margin=0.05).verdict == "same"


def test_noise_that_hides_everything_is_undecided_and_says_what_would_settle_it() -> None:
    judgement = judge(simulated(12, effect=0.0, sd=0.03, seed=4))
    assert judgement.verdict == "undecided"
    assert judgement.finished
    assert judgement.num_pairs_to_settle is not None and judgement.num_pairs_to_settle > 12
    assert "±1%" in judgement.reason


@pytest.mark.parametrize("share_of_noise", [0.9, 0.8, 0.7])
def test_less_noise_needs_fewer_pairs_to_settle(share_of_noise: float) -> None:
    noise = [0.06, 0.05, -0.06, -0.05]
    noisy = judge(pairs_of(noise), max_pairs=4)
    quieter = judge(pairs_of([share_of_noise * value for value in noise]), max_pairs=4)
    # Their mean is nothing either way, so only the noise counts.
    assert noisy.verdict == quieter.verdict == "undecided"
    assert noisy.num_pairs_to_settle is not None and quieter.num_pairs_to_settle is not None
    assert noisy.num_pairs_to_settle >= quieter.num_pairs_to_settle > 4


def test_noise_that_no_number_of_pairs_overcomes_leaves_that_number_unknown() -> None:
    judgement = judge(simulated(12, effect=0.0, sd=3.0, seed=4))
    assert judgement.verdict == "undecided"
    assert judgement.num_pairs_to_settle is None


@given(noisy)
def test_between_looks_there_is_no_verdict(ys: list[float]) -> None:
    first_settled = judge(pairs_of(ys))
    for n in range(len(ys) + 1):
        judgement = judge(pairs_of(ys)[:n])
        if n not in LOOKS and not (first_settled.finished and n > first_settled.num_pairs):
            assert judgement.verdict is None
            assert not judgement.finished
            assert judgement.next_look == next(look for look in LOOKS if look > n)


@given(noisy)
def test_the_first_look_that_settles_it_is_never_taken_back(ys: list[float]) -> None:
    pairs = pairs_of(ys)
    answers = [judge(pairs[:n]) for n in range(len(pairs) + 1)]
    settled = [answer for answer in answers if answer.finished]
    assert all(answer == settled[0] for answer in settled)


@given(noisy, st.integers(2, 12))
def test_finished_verdict_and_next_look_tell_the_same_story(ys: list[float], max_pairs: int) -> None:
    judgement = judge(pairs_of(ys)[:max_pairs], max_pairs=max_pairs)
    assert judgement.finished == (judgement.verdict is not None) == (judgement.next_look is None)
    assert judgement.num_pairs_to_settle is None or judgement.verdict == "undecided"
    if judgement.finished:
        assert judgement.num_pairs in looks(max_pairs)
    if judgement.verdict == "faster":
        assert judgement.ci is not None and judgement.ci[0] > 1
    if judgement.verdict == "slower":
        assert judgement.ci is not None and judgement.ci[1] < 1


# When the time is up between two looks


@given(noisy, st.integers(2, 12))
def test_at_the_end_there_is_always_an_answer_and_a_look_that_settled_it_stands(
    ys: list[float], max_pairs: int
) -> None:
    pairs = pairs_of(ys)[:max_pairs]
    before, at_the_end = judge(pairs, max_pairs=max_pairs), judge(pairs, max_pairs=max_pairs, ended=True)
    assert at_the_end.finished and at_the_end.next_look is None
    if before.finished:
        assert at_the_end == before
    elif len(pairs) != 3 and (len(pairs) in looks(max_pairs) or len(pairs) < looks(max_pairs)[0]):
        assert at_the_end.verdict == "undecided" and at_the_end.reason.startswith("The budget is used up.")


def test_pairs_beyond_the_last_look_are_judged_at_the_level_of_the_next() -> None:
    pairs = pairs_of([0.05, 0.02, 0.08, 0.05, 0.05])
    before, at_the_end = judge(pairs, max_pairs=6), judge(pairs, max_pairs=6, ended=True)
    assert before.verdict is None and at_the_end.verdict == "faster" and at_the_end.num_pairs == 5
    level = nominal_levels(looks(6), 1 - stats.CONFIDENCE)[-1]
    fit = stats._fit(pairs)
    assert at_the_end.ci == pytest.approx(
        (math.exp(fit.effect - fit.half_width(level)), math.exp(fit.effect + fit.half_width(level)))
    )


def test_judge_is_undecided_with_both_reasons_when_five_pairs_show_nothing() -> None:
    judgement = judge(simulated(5, effect=0.0, sd=0.05, seed=3), max_pairs=6, ended=True)
    assert judgement.verdict == "undecided"
    assert judgement.reason.startswith("The budget is used up. Neither a difference nor equality")


def test_at_the_end_too_more_than_a_fifth_void_says_nothing() -> None:
    pairs = simulated(5, effect=0.3, sd=0.01, seed=3)
    assert judge(pairs, max_pairs=6, num_voided=1, ended=True).verdict == "faster"
    judgement = judge(pairs, max_pairs=6, num_voided=2, ended=True)
    assert judgement.verdict == "undecided" and "2 of 7 pairs were void" in judgement.reason


def test_judge_needs_few_pairs_when_the_spread_is_known() -> None:
    noisy = pairs_of([0.5, 0.2, 0.8, 0.55], seed=0)
    alone, known = judge(noisy, max_pairs=4), judge(noisy, max_pairs=4, seen=Spread(0.15**2, 4))
    assert alone.verdict == "undecided"
    assert known.verdict == "faster" and known.ci is not None and known.ci[0] > 1.05
    assert judge(pairs_of([0.5, 0.4], seed=0), max_pairs=2).verdict == "undecided"
    assert judge(pairs_of([0.5, 0.4], seed=0), max_pairs=2, seen=Spread(0.1**2, 8)).verdict == "faster"


def test_a_spread_seen_elsewhere_does_not_hide_that_of_the_pairs() -> None:
    wild = pairs_of([0.9, -0.5, 0.8, -0.4], seed=0)
    assert judge(wild, max_pairs=4, seen=Spread(0.01**2, 8)).verdict == "undecided"


@pytest.mark.parametrize(
    "text", ['{"variance": -1, "df": 4}', '{"variance": 1, "df": -1}', '{"variance": 1, "df": 1e30}']
)
def test_a_spread_from_a_file_is_refused_where_it_cannot_be_one(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=Spread)


@given(noisy, st.integers(0, 100), st.integers(1, 8))
def test_a_quiet_past_makes_no_variance_smaller(ys: list[float], seed: int, df: int) -> None:
    pairs = pairs_of(ys, seed=seed)
    quiet, alone = stats._fit(pairs, Spread(0.0, df)), stats._fit(pairs)
    first = 0 if len(ys) > 2 else 1  # two pairs alone leave nothing to estimate the order's effect from
    assert both_errors(quiet)[first:] == pytest.approx(both_errors(alone)[first:])


def test_at_the_end_pairs_before_the_first_look_count_where_the_spread_is_known() -> None:
    two = pairs_of([0.5, 0.48], seed=0)
    assert judge(two, max_pairs=8, ended=True).verdict == "undecided"
    assert judge(two, max_pairs=8, ended=True, seen=Spread(0.02**2, 6)).verdict == "faster"
    one = pairs_of([0.5], seed=0)
    assert judge(one, max_pairs=8, ended=True, seen=Spread(0.02**2, 6)).verdict == "undecided"


@given(noisy, st.integers(0, 100), st.floats(0, 0.1))
def test_a_spread_without_degrees_of_freedom_says_nothing(
    ys: list[float], seed: int, variance: float
) -> None:
    pairs = pairs_of(ys, seed=seed)
    assert judge(pairs, seen=Spread(variance, 0)) == judge(pairs)


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_the_interval_of_pairs_and_a_known_spread_is_that_of_a_pooled_t_or_of_their_own_spread_if_that_is_more(  # noqa: E501
    seed: int,
) -> None:
    draw = np.random.default_rng(seed)
    ys, seen = draw.normal(0.1, 0.02, 8), Spread(float(draw.uniform(1e-4, 1e-3)), 5)
    pairs = pairs_of(list(ys), seed=seed)
    order = np.array([1.0 if pair.first == "baseline" else -1.0 for pair in pairs])
    residuals = ys - ys.mean() - order * (order @ ys) / 8
    own = residuals @ residuals
    variance = max((own + 5 * seen.variance) / (6 + 5), own / 6)
    level = nominal_levels((4, 6, 8), 0.05)[-1]
    half = scipy_stats.t.ppf(1 - level / 2, 11) * math.sqrt(variance / 8)
    found = stats._fit(pairs, seen).half_width(level)
    assert found == pytest.approx(half)


def test_going_on_past_the_last_look_is_refused() -> None:
    pairs = simulated(8, effect=0.0, sd=0.03, seed=4)
    with pytest.raises(StatisticsError, match="no verdict comes from going on"):
        judge(pairs, max_pairs=6)


def test_one_pair_that_carries_everything_does_not_pass_the_sign_flip_test() -> None:
    errors = stats._Error(0.001, 5), stats._Error(0.001, 4)
    fit = stats._Fit(6, 0.05, (0.3, 0.01, -0.01, 0.02, -0.01, -0.01), *errors)
    verdict, reason = stats._verdict(fit, 0.01, 0.01, 0.01)
    assert verdict is None
    assert "sign-flip" in reason


def test_two_modes_that_agree_by_luck_within_each_order_do_not_pass_at_four_pairs() -> None:
    # Of each order both pairs fell into the same modes: with the order fitted nearly no noise is left.
    pairs = pairs_of([0.05, 0.0001, -0.0001, 0.0499], seed=0)
    by_order = {pair.first: [] for pair in pairs}  # type: ignore[var-annotated]
    for pair in pairs:
        by_order[pair.first].append(round(pair.baseline_s, 2))
    assert sorted(by_order.values()) == [[1.0, 1.0], [1.05, 1.05]]
    assert judge(pairs).verdict is None


def test_two_pairs_say_nothing_about_noise() -> None:
    judgement = judge(pairs_of([0.5, 0.5]), max_pairs=2)
    assert judgement.verdict == "undecided"
    assert judgement.ci is None
    assert judgement.speedup == pytest.approx(math.exp(0.5))
    assert "noise" in judgement.reason


def test_without_pairs_nothing_is_claimed() -> None:
    judgement = judge([])
    assert (judgement.verdict, judgement.speedup, judgement.ci, judgement.next_look) == (
        None,
        None,
        None,
        LOOKS[0],
    )


def test_an_interval_beyond_all_numbers_is_no_interval() -> None:
    pairs = [Pair(first, value, 1.0) for first, value in zip(orders(3, 0), (1e-200, 1.0, 1e200), strict=True)]
    assert judge(pairs).ci is None


# Precision


@given(noisy, st.floats(0.02, 1.0))
def test_going_on_for_a_narrower_interval_changes_no_verdict(ys: list[float], precision: float) -> None:
    pairs = pairs_of(ys)
    first = judge(pairs, ended=True)
    more = judge(pairs, precision=precision, ended=True)
    assert more.verdict == first.verdict and more.num_pairs >= first.num_pairs
    if first.ci is not None and more.ci is not None:
        assert more.ci[1] / more.ci[0] <= first.ci[1] / first.ci[0] * (1 + 1e-12)


def test_a_clear_gain_goes_on_to_a_narrow_interval_while_pairs_are_left() -> None:
    pairs = simulated(12, effect=0.5, sd=0.03, seed=1)
    assert judge(pairs[:4]).verdict == "faster"
    assert not judge(pairs[:4], precision=0.1).finished
    assert judge(pairs[:5], precision=0.1, ended=True).verdict == "faster"
    enough = judge(pairs, precision=0.2)
    assert enough.verdict == "faster" and 4 < enough.num_pairs <= 12
    assert enough.ci is not None and math.log(enough.ci[1] / enough.ci[0]) <= 0.2 * 0.55


def test_more_pairs_than_flips_can_be_gone_through_give_nearly_the_same_p() -> None:
    values = [0.01 * (1 + index % 5) * (-1) ** (index % 3) for index in range(17)]
    exact = (
        sum(
            abs(sum(sign * value for sign, value in zip(signs, values, strict=True)))
            >= abs(sum(values)) - 1e-12
            for signs in itertools.product((-1, 1), repeat=16)
            for signs in [(*signs, 1)]
        )
        / 2**16
    )
    assert sign_flip_p(values) == pytest.approx(exact, abs=0.01)
    assert sign_flip_p([0.1] * 40) == pytest.approx(2**-16)


# Void pairs


def fewest_to_end(max_pairs: int) -> int:
    """Void pairs after which no verdict can come any more."""
    return next(num for num in range(100) if judge([], max_pairs=max_pairs, num_voided=num).finished)


@pytest.mark.parametrize("max_pairs", range(2, MAX_PAIRS + 1))
def test_void_pairs_are_made_again_until_they_are_more_than_a_fifth_of_all_there_can_be(
    max_pairs: int,
) -> None:
    num = fewest_to_end(max_pairs)
    assert num > 1, "one may be chance"
    assert num > (max_pairs + num) / 5
    assert num == 2 or num - 1 <= (max_pairs + num - 1) / 5
    undecided = judge(pairs_of([0.5], seed=0), max_pairs=max_pairs, num_voided=num)
    assert (
        undecided.verdict == "undecided"
        and f"{num} of {num + 1} pairs were void, more than 20%" in undecided.reason
    )


def test_a_look_with_too_many_void_pairs_waits_for_more_valid_ones() -> None:
    pairs = simulated(8, effect=0.1, sd=0.001, seed=1)
    assert judge(pairs[:4], num_voided=2).verdict is None
    assert judge(pairs[:8], num_voided=2).verdict == "faster"


def test_three_void_in_fifteen_are_not_too_many() -> None:
    judgement = judge(simulated(12, effect=0.0, sd=0.03, seed=4), num_voided=3)
    assert judgement.num_pairs == 12
    assert "void" not in judgement.reason


@given(st.integers(0, 12))
def test_one_void_pair_more_never_brings_a_verdict(num: int) -> None:
    pairs = simulated(12, effect=0.1, sd=0.001, seed=1)[:num]
    for ended in (False, True):
        verdicts = [judge(pairs, num_voided=num_voided, ended=ended).verdict for num_voided in range(9)]
        told = [at for at, one in enumerate(verdicts) if one == "faster"]
        assert told == list(range(len(told)))


# What cannot be judged


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
@pytest.mark.parametrize("arm", ["baseline_s", "candidate_s"])
def test_a_time_that_is_no_duration_is_an_error_that_names_the_pair(value: float, arm: str) -> None:
    pairs = simulated(4, effect=0.0, sd=0.01, seed=1)
    times = {"baseline_s": 1.0, "candidate_s": 1.0, arm: value}
    pairs[2] = Pair(pairs[2].first, **times)
    with pytest.raises(StatisticsError, match=f"Pair 3: the {arm[:-2]}'s time"):
        judge(pairs)


def test_a_ratio_that_no_machine_gives_is_an_error() -> None:
    with pytest.raises(StatisticsError, match=r"Pair 1: .* no two runs"):
        judge([Pair("baseline", 1e300, 1e-300)])


def test_an_arm_that_was_first_too_often_is_an_error() -> None:
    with pytest.raises(StatisticsError, match="By pair 2 one run was first too often"):
        judge([Pair("baseline", 1.0, 1.0), Pair("baseline", 1.0, 1.0)])


@pytest.mark.parametrize("margin", [-0.01, 1.0, math.nan])
def test_a_margin_that_is_no_share_is_refused(margin: float) -> None:
    with pytest.raises(UsageError, match="margin"):
        judge([], margin=margin)


def test_statistics_that_fail_are_an_error_a_user_can_read() -> None:
    assert issubclass(StatisticsError, DynotuneError)
    with pytest.raises(StatisticsError):
        sign_flip_p([])


def test_identical_times_are_the_same_without_doubt() -> None:
    judgement = judge([Pair(first, 0.1, 0.1) for first in orders(4, 0)])
    assert judgement.verdict == "same"
    assert judgement.ci == (1.0, 1.0)


def test_a_ratio_without_any_noise_is_judged_by_its_size() -> None:
    judgement = judge([Pair(first, 1.1, 1.0) for first in orders(6, 0)])
    assert judgement.verdict == "faster"
    assert judgement.speedup == pytest.approx(1.1)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(1e-150, 1e150), st.floats(1e-150, 1e150)), min_size=0, max_size=12),
    st.floats(0, 0.5),
)
def test_any_durations_get_an_answer(times: list[tuple[float, float]], margin: float) -> None:
    firsts = orders(len(times), 0)
    pairs = [Pair(first, *both) for first, both in zip(firsts, times, strict=True)]
    judgement = judge(pairs, margin=margin)
    if judgement.ci:
        assert judgement.speedup is not None
        low, high = judgement.ci
        assert 0 <= low <= judgement.speedup * (1 + 1e-12) and judgement.speedup <= high * (1 + 1e-12)
        assert math.isfinite(high)


# Rates


def test_of_simulated_comparisons_of_a_command_with_itself_few_are_called() -> None:
    num, called = 3000, 0
    for seed in range(num):
        called += judge(simulated(12, effect=0.0, sd=0.02, seed=seed)).verdict in ("faster", "slower")
    # 3.8% is what the full simulation gives; five standard errors around it.
    assert abs(called / num - 0.038) < 5 * math.sqrt(0.038 * 0.962 / num)


def test_of_true_effects_of_three_percent_nearly_all_are_found() -> None:
    num = 500
    found = sum(
        judge(simulated(12, effect=0.03, sd=0.02, seed=seed)).verdict == "faster" for seed in range(num)
    )
    assert found / num > 0.94


def test_scipy_is_not_loaded_before_a_judgement_is_asked_for() -> None:
    program = (
        "import sys, dynotune.measure.comparison.stats;"
        "import dynotune.measure.live.warmup, dynotune.measure.live.window_length;"
        "sys.exit(any(name in sys.modules for name in ('scipy', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
