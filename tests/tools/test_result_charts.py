"""Charts of kept results, drawn anew."""

from __future__ import annotations

import re

import pytest

from tools import result_charts


@pytest.mark.parametrize("name", result_charts.CHARTS)
def test_chart_is_what_the_kept_results_say(name):
    kept = (result_charts.IMAGES / name).read_text(encoding="utf-8")
    assert kept == result_charts.CHARTS[name](), "make pictures writes it anew"
    assert not re.search(r"href=|url\(|<script", kept)


def test_chart_keeps_the_programs_in_which_nothing_was_proved():
    rows = result_charts.public_rows()
    assert len(rows) == 10 and [row.name for row in rows if row.ratio is None]
    assert all(row.ci[0] <= row.ratio <= row.ci[1] for row in rows if row.ratio is not None)
