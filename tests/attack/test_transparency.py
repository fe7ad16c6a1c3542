"""A short draw of the attack on transparency, and that it finds what it looks for."""

from __future__ import annotations

from . import transparency
from .odd_programs import PROGRAMS, Odd

QUICK = [name for name in transparency.CASES if PROGRAMS[name].needs != "torch"]
MUCH_BYTES = 5 << 20


def test_programs_do_not_notice_that_they_are_run():
    counts = transparency.attack(5, seed=41, cases=QUICK, much_bytes=MUCH_BYTES)
    assert counts.failures == []
    assert counts.tried == counts.held


def test_much_output_arrives_whole():
    assert transparency.differences(PROGRAMS["much output"], MUCH_BYTES) == []


def test_a_program_that_notices_is_a_failure():
    odd = Odd("import os, sys; os.write(1, repr('DYNOTUNE_RUN' in os.environ).encode()); open('made', 'w')")
    found = transparency.differences(odd, 0)
    assert len(found) == 1 and "out: " in found[0]


def test_there_are_many_programs():
    assert len(transparency.CASES) >= 40
