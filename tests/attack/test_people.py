"""One of each case of the standing attack on what people share, and what it would say of a leak."""

from __future__ import annotations

import pytest

from . import people
from .people import CASES, Person, attack, leaks, open_to_others


@pytest.mark.parametrize("number", [1, pytest.param(len(CASES), marks=pytest.mark.long)])
def test_nothing_shared_gives_anybody_what_is_not_theirs(number):
    counts = attack(number, seed=41)
    assert counts.failures == []
    assert counts.tried.total() == counts.held.total() >= number - len(counts.skipped)


def test_open_to_others_lists_paths_that_others_can_read(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "closed" / "file").write_text("")
    tmp_path.chmod(0o700)
    assert list(open_to_others(tmp_path)) == []
    (tmp_path / "file").touch(mode=0o644)
    (tmp_path / "closed").chmod(0o755)
    assert len(list(open_to_others(tmp_path))) == 3


def test_a_leak_is_seen_and_one_that_fails_is_told(tmp_path, monkeypatch):
    me = Person(tmp_path / "me")
    (me.home / "record.json").write_text('"S3cret"')
    (me.home / "stdout").write_text("S3cret")
    assert leaks(me, ["S3cret"]) == [str(me.home / "record.json")]

    def breaks(random, folder):
        raise AssertionError("broken")

    def cannot(random, folder):
        raise people.Skipped("not here")

    monkeypatch.setattr(people, "CASES", (breaks, cannot))
    counts = attack(2, seed=3)
    assert counts.failures == ["breaks, --seed 3 --first 0: AssertionError: broken"]
    assert counts.skipped == {"cannot": "not here"} and set(counts.tried) == {"breaks"}
