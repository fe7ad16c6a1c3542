"""Figures of a search, in words."""

from __future__ import annotations

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from dynotune.schema.study import Estimate
from dynotune.search import words
from lab.search.studies import study_of

from ..fakes import changed

STUDY = study_of([])


def estimate(log: float, half: float, num: int) -> Estimate:
    ci = (math.exp(log - half), math.exp(log + half))
    return Estimate(arm="a=1", against="", phase="prune", speedup=math.exp(log), ci=ci, num_blocks=num)


@given(st.floats(-30, 30), st.floats(0, 30), st.integers(1, 20))
def test_a_gain_can_be_read_however_little_is_known(log: float, half: float, num: int) -> None:
    said = words.gained(STUDY, estimate(log, half, num))
    assert "e+" not in said and "nan" not in said and "inf" not in said
    assert max(len(digits) for digits in re.findall(r"[\d,]+", said)) <= 5


def test_an_interval_that_leaves_all_open_is_not_given_in_figures() -> None:
    said = words.gained(STUDY, estimate(-0.003, 40.0, 1))
    assert said == "0.3% slower (95% interval too wide to tell anything, 1 block)"
    assert words.interval(STUDY, (0.5, 3e12)) == "95% interval −50.0% to > +900%"


def test_a_ratio_beyond_reason_is_cut() -> None:
    assert words.size(STUDY, math.exp(20)) == "more than 100 times faster"
    assert words.size(STUDY, math.exp(-20)) == "more than 100 times slower"


def test_size_is_a_ratio_when_the_command_is_twice_as_fast_or_more() -> None:
    assert words.size(STUDY, 1.985) == "98.5% faster"
    assert words.size(STUDY, 11.048) == "11 times as fast"
    assert words.size(STUDY, 2.015) == "2.02 times as fast"
    assert words.interval(STUDY, (1.25, 3.26)) == "95% interval 1.25× to 3.26×"
    assert words.interval(STUDY, (1.05, 1.5)) == "95% interval +5.0% to +50.0%"


def test_of_what_is_used_it_is_said_which_share_is_saved() -> None:
    study = changed(STUDY, objective="energy")
    assert words.size(study, 1.25) == "20.0% better" and words.size(study, 4.0) == "75.0% better"
    assert words.size(study, 0.8) == "25.0% worse" and words.size(study, 1.0) == "as good as equal"
    assert words.interval(study, (1.25, 2.0)) == "95% interval 20.0% to 50.0%"
    assert words.interval(study, (0.8, 1.25)) == "95% interval −25.0% to 20.0%"
