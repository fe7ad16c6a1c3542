"""How far two runs lie apart in what they compute, and whether that is allowed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune import knobs
from dynotune.measure.checks.differences import Apart, judge, losses_apart, outputs_apart
from dynotune.measure.checks.tolerance import TOLERANCES, allowed, guarded
from dynotune.schema.events import Digest

ORDER, TF32, FP16, BF16 = (TOLERANCES[name] for name in ("order", "tf32", "fp16", "bf16"))
NUM = 24
FALLING = [2.3 * 0.97**at for at in range(NUM)]
SAME = Apart([0.0] * NUM, 0)

numbers = st.floats(-1e6, 1e6)


def digest(values, shape=None) -> Digest:
    root = sum(value**2 for value in values) ** 0.5
    return Digest(shape or [len(values)], sum(values), sum(map(abs, values)), root, list(values))


def judged(losses, tolerance=ORDER, own=SAME, **more):
    return judge(losses_apart(FALLING, losses), own, tolerance, what="losses", **more)


# Losses


@given(st.lists(numbers, min_size=1, max_size=30), st.floats(0.01, 100.0))
def test_equal_losses_are_not_apart_and_scale_does_not_matter(losses, factor):
    assert losses_apart(losses, losses) == Apart([0.0] * len(losses), 0)
    others = [value * 1.01 + 0.1 for value in losses]
    scaled = losses_apart([value * factor for value in losses], [value * factor for value in others])
    assert scaled.signed == pytest.approx(losses_apart(losses, others).signed, rel=1e-6, abs=1e-9)


@given(st.floats(-0.9, 3.0))
def test_a_loss_that_is_larger_by_a_share_lies_apart_by_about_that_share(share):
    apart = losses_apart(FALLING, [value * (1 + share) for value in FALLING])
    assert apart.signed == pytest.approx([share] * NUM, rel=0.05, abs=1e-9)


def test_losses_apart_count_values_that_are_no_numbers_in_the_arm_alone():
    apart = losses_apart([1.0, None, 1.0, 1.0], [1.0, None, None, 1.0])
    assert apart == Apart([0.0, None, None, 0.0], 1, 3)


def test_small_losses_are_measured_by_the_larger_ones_too():
    # Rounding of a loss that was 10 is not small beside 0.0001.
    losses = [10.0, 1.0, 0.1, 0.01, 1e-4, 1e-4, 1e-4, 1e-4]
    apart = losses_apart(losses, [*losses[:-1], 2e-4])
    assert abs(apart.signed[-1]) < 1e-3


def test_losses_that_are_all_zero_differ_wholly_from_others():
    assert losses_apart([0.0, 0.0], [0.0, 1.0]).signed == [0.0, 1e6]


# Judged


def test_rounding_is_allowed_and_a_training_that_goes_another_way_is_not():
    assert judged([value * 1.001 for value in FALLING]).ok
    faster = [2.3 * 0.91**at for at in range(NUM)]
    found = judged(faster, BF16)
    assert not found.ok
    assert found.where == "the mean of values 18 to 24"


def test_losses_differ_in_the_mean_only_when_they_stay_on_one_side_of_the_baselines():
    alternating = [value * (1 + (0.04 if at % 2 else -0.04) * (at >= 3)) for at, value in enumerate(FALLING)]
    assert judged(alternating, ORDER).ok
    shifted = [value * (1 + 0.04 * (at >= 3)) for at, value in enumerate(FALLING)]
    assert not judged(shifted, ORDER).ok


def test_the_first_value_alone_shows_a_wrong_forward_pass():
    found = judged([2.3 * 1.03, *FALLING[1:]], BF16)
    assert not found.ok
    assert found.where == "value 1"


def test_a_program_that_differs_from_itself_may_differ_as_much():
    noise = random.Random(1)
    own = Apart([noise.gauss(0, 0.05) for _ in range(NUM)], 0)
    noisy = [value * (1 + noise.gauss(0, 0.05)) for value in FALLING]
    assert not judged(noisy).ok
    found = judged(noisy, own=own)
    assert found.ok
    assert found.own > 0
    assert not judged([value * 3 for value in FALLING], own=own).ok


def test_an_unstable_training_is_known_by_what_it_makes_of_a_rounding_error():
    drifting = [value * (1.0 if at < 6 else 1.3) for at, value in enumerate(FALLING)]
    nudged = Apart([0.0 if at < 6 else -0.2 for at in range(NUM)], 0)
    assert not judged(drifting, BF16).ok
    assert judged(drifting, BF16, nudged=nudged).ok
    # It explains no difference that is there from the first value on.
    assert not judged([value * 1.3 for value in FALLING], BF16, nudged=nudged).ok


@given(
    st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=40),
    st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=40),
)
def test_more_spread_of_its_own_never_allows_less(arm, own):
    quiet = judge(Apart(arm, 0), Apart([0.0] * len(own), 0), ORDER, what="losses")
    loud = judge(Apart(arm, 0), Apart(own, 0), ORDER, what="losses")
    assert loud.difference / loud.allowed <= quiet.difference / quiet.allowed + 1e-12
    assert loud.ok or not quiet.ok


def test_an_arm_that_does_nothing_to_a_noisy_program_is_seldom_called_wrong():
    noise, num_wrong = random.Random(2), 0
    for _ in range(400):
        first, again, arm = ([value * (1 + noise.gauss(0, 0.05)) for value in FALLING] for _ in range(3))
        num_wrong += not judge(losses_apart(first, arm), losses_apart(first, again), ORDER, what="losses").ok
    assert num_wrong <= 4


def test_nothing_known_is_no_verdict():
    assert judge(Apart([None, None], 1), SAME, ORDER, what="losses") is None
    assert judge(Apart([], 0), SAME, ORDER, what="losses") is None


# Outputs


@given(st.lists(numbers, min_size=1, max_size=64))
def test_equal_outputs_are_not_apart(values):
    assert outputs_apart([[digest(values)]], [[digest(values)]]).signed == [0.0]


@given(st.lists(st.floats(0.5, 2.0), min_size=8, max_size=64), st.floats(0.001, 0.5))
def test_outputs_that_are_larger_by_a_share_lie_apart_by_about_that_share(values, share):
    (apart,) = outputs_apart([[digest(values)]], [[digest([value * (1 + share) for value in values])]]).signed
    assert apart == pytest.approx(share, rel=1e-6)


def test_elements_in_another_order_are_found_though_all_moments_agree():
    values = [float(at % 7) - 3 for at in range(64)]
    assert outputs_apart([[digest(values)]], [[digest(values[::-1])]]).signed[0] > 0.5


def test_one_box_more_is_measured_by_moments_and_another_shape_is_a_difference():
    boxes = [1.0, 2.0, 3.0, 4.0] * 25
    more = [*boxes, 1.0, 2.0, 3.0, 4.0]
    assert outputs_apart([[digest(boxes, [25, 4])]], [[digest(more, [26, 4])]]).signed[0] < 0.01
    assert outputs_apart([[digest(boxes, [25, 4])]], [[digest(boxes, [4, 25])]]).signed == [1.0]
    assert outputs_apart([[digest(boxes)]], [[]]).signed == [1.0]
    assert outputs_apart([[Digest([0, 4])]], [[Digest([0, 4])]]).signed == [0.0]
    assert outputs_apart([[Digest([0, 4])]], [[digest(boxes, [25, 4])]]).signed == [1.0]


def test_an_output_that_is_not_finite_in_the_arm_alone_is_counted():
    broken = Digest([2], None, None, None, [1.0, None])
    assert outputs_apart([[digest([1.0, 2.0])]], [[broken]]) == Apart([None], 1, 1)
    assert outputs_apart([[broken]], [[broken]]) == Apart([None], 0)


# What is allowed


def settings(*texts):
    return [knobs.parse(text) for text in texts]


def test_only_settings_that_leave_the_meaning_alone_take_part():
    chosen = settings("loader.num_workers=2", "precision.autocast=bf16", "env.A=1", "host.interop_threads=2")
    assert list(map(str, guarded(chosen))) == ["precision.autocast=bf16", "host.interop_threads=2"]
    assert guarded(settings("loader.num_workers=2", "host.interop_threads=2")) == []


def test_guarded_settings_are_without_those_that_need_workers_when_the_workers_take_no_part():
    words = ["host.interop_threads=2", "precision.autocast=bf16", "loader.prefetch_factor=4"]
    checked = [str(setting) for setting in guarded(settings(*words, "loader.num_workers=2"))]
    assert checked == words[:2]
    # The program has workers of its own.
    assert [str(setting) for setting in guarded(settings(*words))] == words


def test_the_widest_tolerance_of_all_settings_and_of_the_programs_own_precision_counts():
    assert allowed(settings("layout.channels_last=true"), "float32").outputs == ORDER.outputs
    assert allowed(settings("matmul.fp32_precision=high", "compile.mode=default"), "").outputs == TF32.outputs
    assert allowed(settings("precision.autocast=fp16"), "").rounding == FP16.rounding
    assert allowed(settings("layout.channels_last=true"), "bfloat16").outputs == BF16.outputs
    assert allowed(settings("compile.mode=default"), "").redraws
    assert not allowed(settings("cudnn.benchmark=true"), "").redraws


def test_every_knob_of_effect_numerics_names_a_tolerance_for_each_of_its_values():
    for knob in knobs.all_knobs():
        assert (knob.effect == "numerics") == bool(knob.rounding), knob.id
        for value in knob.values if knob.rounding else ():
            assert knob.rounding_of(value) in TOLERANCES, f"{knob.id}={value}"
