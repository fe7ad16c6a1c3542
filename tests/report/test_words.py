from __future__ import annotations

import pytest

from dynotune.report import words


def test_a_verdict_is_said_as_a_person_would_say_it(comparison):
    assert words.verdict(comparison(verdict="faster", speedup=1.4162)) == "1.42× faster"
    assert words.verdict(comparison(verdict="slower", speedup=0.8)) == "1.25× slower"
    assert words.verdict(comparison(verdict="same", margin=0.01)) == "no effect: within ±1%"
    assert words.verdict(comparison(verdict="undecided", num_pairs_to_settle=None)) == "undecided"
    assert words.verdict(comparison(verdict=None)) == "no verdict"


def test_a_small_effect_is_said_in_percent(comparison):
    assert words.verdict(comparison(verdict="faster", speedup=1.032)) == "3.2% faster"
    assert words.verdict(comparison(verdict="slower", speedup=1 / 1.032)) == "3.2% slower"


def test_an_undecided_comparison_says_how_many_pairs_a_new_one_would_need(comparison):
    undecided = comparison(verdict="undecided", num_pairs=12, num_pairs_to_settle=20)
    assert words.verdict(undecided) == "undecided: 20 pairs would likely settle it"


@pytest.mark.parametrize(
    "said",
    [words.times, words.interval, words.rate, words.duration, words.share, words.num_bytes],
    ids=lambda function: function.__name__,
)
def test_what_is_not_known_is_called_unknown_and_never_zero(said):
    assert said(None) == "unknown"


def test_a_narrow_interval_shows_the_digits_that_tell_its_ends_apart(comparison):
    narrow = comparison(speedup=1.0062, ci=(1.0041, 1.0083))
    assert words.interval(narrow.ci) == "1.004× to 1.008×"
    assert words.speedup(narrow) == "1.006×"
    assert words.interval((1.31, 1.52)) == "1.31× to 1.52×"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0 µs"),
        (3.5e-6, "3.5 µs"),
        (0.0568, "56.8 ms"),
        (0.42, "420 ms"),
        (1.914, "1.91 s"),
        (150, "2.5 min"),
    ],
)
def test_durations_carry_a_unit_and_three_digits(seconds, said):
    assert words.duration(seconds) == said


def test_an_arm_without_settings_is_the_command_as_it_is():
    assert words.settings([]) == "as it is"


def test_a_ratio_beyond_reason_shows_no_digits(comparison):
    assert words.interval((1e-59, 2e59)) == "< 0.01× to > 100×"
    assert words.verdict(comparison(verdict="slower", speedup=1e-9)) == "> 100× slower"
    assert words.times(100.0) == "100.00×"
