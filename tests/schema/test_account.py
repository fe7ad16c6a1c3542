"""Documents of accounts from elsewhere are refused if their times cannot be."""

from __future__ import annotations

import msgspec
import pytest

from dynotune.schema.account import RunAccount


@pytest.mark.parametrize(
    "wrong", [{"wall_s": -8}, {"rows": [{"part": "start", "activity": "imports", "took_s": -8}]}]
)
def test_account_is_refused_when_a_time_is_negative(wrong):
    document = {"type": "account", "command": ["a"], "wall_s": 8} | wrong
    with pytest.raises(msgspec.ValidationError, match=">= 0"):
        msgspec.convert(document, RunAccount)
