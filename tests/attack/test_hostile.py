"""One case of the standing attack by what is hostile, and what its checks would say of harm."""

from __future__ import annotations

import pytest

from . import hostile
from .hostile import CASES, attack, nothing_ran, said_plainly


@pytest.mark.parametrize("number", [1, pytest.param(2 * len(CASES), marks=pytest.mark.long)])
def test_nothing_hostile_acts_when_it_is_read(number):
    counts = attack(number, seed=7, first=0 if number > 1 else CASES.index(hostile._a_kept_record_is_none))
    assert counts.failures == []
    assert counts.tried.total() == counts.held.total() == number


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\x07", "\u202ereversed", "\x9b1m", "a\rb"])
def test_text_that_acts_on_a_terminal_is_seen(text):
    with pytest.raises(AssertionError, match="it shows"):
        said_plainly(f"error: {text}")
    said_plainly("error: né “plain” 1.0×\n\tand more\n")


def test_a_mistake_of_dynotunes_own_is_seen():
    with pytest.raises(AssertionError):
        said_plainly("Traceback (most recent call last):\n")


def test_a_planted_program_that_ran_is_seen(tmp_path):
    nothing_ran(tmp_path)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "gpg-ran").touch()
    with pytest.raises(AssertionError, match="gpg-ran"):
        nothing_ran(tmp_path)


@pytest.mark.parametrize(
    "error", [AssertionError("it ran"), OSError("gone"), hostile.subprocess.TimeoutExpired("x", 1)]
)
def test_a_case_that_does_not_hold_is_a_failure_with_its_number(monkeypatch, error):
    def case(random, folder):
        raise error

    monkeypatch.setattr(hostile, "CASES", (case,))
    counts = attack(2, seed=5, first=3)
    assert counts.held.total() == 0 and counts.tried.total() == 2
    assert [text.partition(":")[0] for text in counts.failures] == [
        "case, --seed 5, case 3",
        "case, --seed 5, case 4",
    ]
