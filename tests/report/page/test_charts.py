"""Pictures of pages: where they put a ratio, and what they write for the browser."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.report.blocks import Bar, BarRow, Bars, Forest, Interval, Segment
from dynotune.report.page import charts
from dynotune.report.page.charts import Axis
from dynotune.report.parts import OF_A_STEP

RATIOS = st.floats(1e-6, 1e6)
GOES_ON_LEFT, GOES_ON_RIGHT = "M6-5v10l-7-5z", "M-6-5v10l7-5z"


def interval(
    ratio: float, *, half: float | None = 0.01, name: str = "knob.a=1", group: str = "proved"
) -> Interval:
    ci = None if half is None else (ratio * math.exp(-half), ratio * math.exp(half))
    return Interval(group, name, ratio, ci, figures=(f"{ratio:.2f}×", ""))


def drawn(*rows: Interval, grouped: bool = False) -> str:
    return str(charts.forest(Forest("Ratios", rows, 0.01, grouped=grouped)))


@given(st.lists(st.tuples(RATIOS, st.floats(0, 5)), max_size=5), st.floats(0.001, 0.5))
def test_an_axis_of_ratios_holds_1_and_the_margin_and_has_ticks_within(points, margin):
    axis = Axis([interval(ratio, half=half) for ratio, half in points], margin)
    assert axis.low < 1 / (1 + margin) < 1 + margin < axis.high
    assert 1.0 in axis.ticks()
    assert len(axis.ticks()) <= 7
    assert all(axis.low <= tick <= axis.high for tick in axis.ticks())
    assert axis.place(axis.low) == 0 and axis.place(axis.high) == pytest.approx(1)


@given(st.lists(RATIOS, min_size=1, max_size=4))
def test_no_picture_holds_a_place_that_is_none(ratios):
    text = drawn(*(interval(ratio, half=3.0) for ratio in ratios))
    assert "nan" not in text and "inf" not in text
    places = [float(place) for place in re.findall(r'"(-?[\d.e+-]+)%"', text)]
    assert places and all(-0.01 <= place <= 100.01 for place in places)


def test_forest_draws_arrows_where_an_interval_goes_on_and_nowhere_else():
    text = drawn(interval(1.0, half=25.0), interval(1.1))
    assert text.count(GOES_ON_LEFT) == text.count(GOES_ON_RIGHT) == 1
    assert GOES_ON_LEFT not in drawn(interval(1.1))


def test_forest_names_each_group_once_when_it_is_grouped():
    rows = [interval(1.2), interval(1.1, name="knob.b=1"), interval(0.9, name="knob.c=1", group="slower")]
    assert re.findall(r'class="group">(\w+)<', drawn(*rows, grouped=True)) == ["proved", "slower"]
    assert 'class="group"' not in drawn(*rows)


def test_forest_says_why_a_row_has_no_mark_when_it_was_not_measured():
    row = Interval("failed", "knob.a=1", None, None, note="no measurement")
    text = drawn(row, interval(1.2))
    assert "no measurement" in text and text.count('class="mark') == 1


def test_bars_have_the_lengths_of_their_sizes_and_follow_each_other():
    first, second = OF_A_STEP[:2]
    bar = Bar((Segment(first, 1.0), Segment(second, 3.0)), length=0.5, offset=0.25)
    text = str(charts.bars(Bars("A step", [BarRow("before", "2 ms", bar)])))
    places = re.findall(r'x="([\d.]+)%" width="([\d.]+)%"', text)
    assert [tuple(map(float, place)) for place in places] == [(25.0, 12.5), (37.5, 37.5)]
    assert "before" in text and "2 ms" in text


def test_text_of_a_row_is_escaped():
    text = drawn(interval(1.2, name="<script>alert(1)</script>"))
    assert "<script>" not in text and "&lt;script&gt;" in text
