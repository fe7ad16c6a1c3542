"""Lengths of time as people write them."""

import pytest

from dynotune.schema.errors import UsageError
from dynotune.text import time_spans


@pytest.mark.parametrize(
    ("text", "s"), [("90s", 90), ("1.5h", 5400), ("3m", 180), ("3min", 180), (" 3 min ", 180), ("0.5s", 0.5)]
)
def test_a_length_of_time_is_seconds_when_it_has_a_unit(text, s):
    assert time_spans.seconds(text, "--budget") == s


@pytest.mark.parametrize("text", ["0s", "soon", "-3s", "3 parsecs", ""])
def test_time_spans_refuse_text_that_is_no_length_of_time(text):
    with pytest.raises(UsageError, match="not a length of time"):
        time_spans.seconds(text, "--budget")


def test_a_length_of_time_needs_a_unit():
    with pytest.raises(UsageError, match="--budget 3 has no unit") as refused:
        time_spans.seconds("3", "--budget")
    assert "--budget 3s" in refused.value.hint and "--budget 3m" in refused.value.hint
