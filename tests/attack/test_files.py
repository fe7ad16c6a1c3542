"""A short draw of the attack on files, and that it finds what it looks for."""

from __future__ import annotations

import json
import os
import sys

from . import files
from .counts import Counts, drawn
from .file_place import age, fill, snapshot


def test_programs_see_the_same_in_a_view_and_the_folder_stays_as_it_was():
    counts = files.attack(2, seed=41)
    assert counts.failures == []
    assert counts.tried == counts.held
    assert counts.tried or counts.skipped


def test_every_place_and_program_is_drawn_once_before_any_comes_again():
    number = len(files.CASES)
    assert number >= 60
    for begin in (0, number):
        assert {drawn(files.CASES, 3, begin + at) for at in range(number)} == set(files.CASES)
    assert drawn(files.CASES, 3, 5) == drawn(files.CASES, 3, 5)


def test_any_touch_of_a_folder_is_seen(tmp_path):
    fill(tmp_path)
    age(tmp_path)
    before = snapshot(tmp_path)
    assert snapshot(tmp_path) == before
    (tmp_path / "a.txt").chmod(0o644)
    assert snapshot(tmp_path) != before, "its time of change"


def test_files_attack_fails_on_differences_from_bare_unless_they_are_documented():
    def seen(launched, bare, sandbox="overlay"):
        def outcome(value):
            return 0, json.dumps(["existing", value]) + "\n", ""

        return {"launched": outcome(launched), "bare": outcome(bare), "sandbox": sandbox}

    assert files._differences("root", "rename a folder", seen("done", "done")) == []
    assert files._differences("root", "rename a folder", seen("EXDEV", "done")) == [
        "existing: EXDEV, bare done"
    ]
    assert files._differences("user", "rename a folder", seen("EXDEV", "done")) == []
    assert files._differences("user", "rename a folder", seen("EXDEV", "done", "none")) != []


def test_files_attack_names_cases_that_cannot_be_tried(monkeypatch):
    monkeypatch.setattr(files, "_python", lambda: None)
    monkeypatch.setattr(files, "CASES", [("user", "rename")])
    counts = files.attack(2, seed=1)
    assert (counts.tried, list(counts.skipped)) == ({}, ["user"])


def test_counts_of_slices_add_up():
    first, second = (Counts(skipped={name: "no"}, failures=[name]) for name in "ab")
    first.tried["x"] += 1
    second.tried["x"] += 2
    first.add(second)
    assert (first.tried, list(first.skipped), first.failures) == ({"x": 3}, ["a", "b"], ["a", "b"])


def test_a_program_runs_where_the_files_are():
    """Else what it saw would say nothing."""
    place = "root" if os.geteuid() == 0 else "user"
    seen = files._seen(place, "symlinks", sys.executable)
    assert seen["wrong"] == []
    assert dict(map(json.loads, seen["bare"][1].splitlines()))["target"] == "through the link"
