"""Kept runs: listed, removed when asked, and left alone while something uses them."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import subprocess
import sys

import pytest

from dynotune.cli import run_names, runs

from .conftest import CALL, MARKED, until

OLD, NEW = "20200101-120000-000-abcdef", "29991231-120000-000-abcdef"


@pytest.fixture
def kept(user):
    base = user.cwd.parent / "state" / "dynotune" / "runs"
    for name in (OLD, NEW):
        (base / name).mkdir(parents=True)
    (base / NEW / "comparison.json").write_text(
        '{"verdict": "faster", "run": {"command": ["python", "train.py"]}}'
    )
    (base / OLD / "study.json").write_text("damaged")
    return base


def test_runs_are_listed_newest_first_with_what_they_found(user, kept):
    (kept / "notes.txt").write_text("not a run")
    told = json.loads(user.types("runs", "--json", "-").stdout)["runs"]
    assert [(one["name"], one["subcommand"], one["verdict"]) for one in told] == [
        (NEW, "compare", "faster"),
        (OLD, "tune", ""),
    ]
    assert told[0]["command"] == ["python", "train.py"] and not told[0]["alive"]
    assert "2 runs" in user.types("runs").stdout


@pytest.mark.parametrize(
    ("document", "answer"),
    [
        ({"verdict": "slower", "speedup": 0.5}, "2.00× slower"),
        ({"verdict": "same", "speedup": 1.0}, "no effect"),
        (
            {"schema": "dynotune.study/2", "finished": True, "verdict": "Nothing to try; not offered: x"},
            "nothing proved",
        ),
        ({"schema": "dynotune.study/2", "confirmed": {"verdict": "faster", "speedup": 1.13}}, "1.13× faster"),
        ({"verdict": 3}, ""),
        ({"verdict": "faster", "speedup": 1.13, "run": {"objective": "memory"}}, "uses 12% less memory"),
        ({"verdict": "slower", "speedup": 0.8, "run": {"objective": "energy"}}, "uses 25% more energy"),
        (
            {"confirmed": {"verdict": "faster", "speedup": 1.5}, "run": {"objective": "latency-p99"}},
            "1.50× faster at the 99th percentile",
        ),
        ({"verdict": "faster", "speedup": 1.5, "run": {"objective": ["memory"]}}, "1.50× faster"),
    ],
)
def test_answer_of_a_run_is_in_the_terms_of_its_objective(document, answer):
    assert runs._answer(document) == answer


def test_run_is_found_by_the_end_of_its_name_and_by_its_place(user, kept):
    assert run_names.found("abcdef", kept) == run_names.found("-1", kept) == kept / NEW
    assert run_names.found("-2", kept) == run_names.found(OLD, kept) == kept / OLD
    assert not run_names.found("-9", kept).exists()
    done = user.types("report", "-1")
    assert "holds nothing that has a report" not in done.stderr and NEW in done.stderr


def test_last_run_is_meant_when_options_stand_before_the_subcommand(user, kept):
    done = user.types("-v", "report", "-1")
    assert NEW in done.stderr and "No such option" not in done.stderr, done.stderr


@pytest.mark.parametrize("typed", ["run2", "runs", "run"])
def test_only_a_number_counts_back_when_the_name_begins_with_run(user, kept, typed):
    (user.cwd / (typed[3:] or "s")).write_text("{}")
    done = user.types("report", typed)
    assert done.returncode == 2 and typed in done.stderr, done.stderr


@pytest.mark.parametrize(("file", "by"), [("plan.json", "run"), ("build.sh", "plan")])
def test_a_run_without_a_record_is_not_taken_for_a_plan_of_an_engine(user, kept, file, by):
    (kept / OLD / "study.json").rename(kept / OLD / file)
    assert json.loads(user.types("runs", "--json", "-").stdout)["runs"][1]["subcommand"] == by


def test_a_folder_without_runs_is_told(user):
    assert user.types("runs").stdout.strip() == "No runs are kept."


def test_old_runs_are_removed_and_others_stay(user, kept):
    done = user.types("runs", "rm", "--older-than", "30d", "--yes")
    assert done.returncode == 0 and "Removed 1 runs" in done.stdout, done.stderr
    assert not (kept / OLD).exists() and (kept / NEW).exists()


@pytest.mark.parametrize("age", ["400000d", "700000d", "10000000h", "99999999999999d"])
def test_no_run_is_older_than_an_age_before_the_calendar(user, kept, age):
    done = user.types("runs", "rm", "--older-than", age, "--yes")
    assert done.returncode == 0 and "Removed 0 runs" in done.stdout, done.stderr
    assert (kept / OLD).exists() and (kept / NEW).exists()


def test_nothing_is_removed_unasked(user, kept):
    done = user.types("runs", "rm", "--all")
    assert done.returncode == 2 and "--yes" in done.stderr
    assert (kept / OLD).exists()


@pytest.mark.parametrize(
    ("typed", "left"), [("y\n", False), ("n\n", True), ("\x04", True)], ids=["yes", "no", "end"]
)
def test_runs_rm_keeps_all_when_the_answer_is_not_yes(user, kept, typed, left):
    ours, theirs = pty.openpty()
    os.write(ours, typed.encode())
    with user.start("runs", "rm", "--all", stdin=theirs) as process:
        out, err = process.communicate()
    os.close(ours)
    os.close(theirs)
    assert process.returncode == left, err
    assert "Remove 2 runs" in err and "Remove 2" not in out and "mistake" not in err
    assert (kept / OLD).exists() == left


def test_without_a_standard_input_nothing_is_removed(user, kept):
    line = "import os, sys; os.close(0); os.execv(sys.argv[1], sys.argv[1:])"
    argv = [sys.executable, "-c", line, sys.executable, "-m", "dynotune", "runs", "rm", "--all"]
    done = subprocess.run(argv, env=user.env, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--yes" in done.stderr
    assert (kept / OLD).exists()


def test_links_are_not_followed(user, kept):
    outside = user.write("precious", "data")
    (kept / OLD / "link").symlink_to(user.cwd)
    linked = kept / "20210101-120000-000-abcdef"
    linked.symlink_to(user.cwd)
    assert user.types("runs", "rm", linked.name, "--yes").returncode == 2
    assert user.types("runs", "rm", "../../../project", "--yes").returncode == 2
    assert user.types("runs", "rm", "--all", "--yes").returncode == 0
    assert outside.read_text() == "data" and linked.is_symlink() and not (kept / OLD).exists()


def test_a_run_whose_folder_is_held_is_never_removed(user, kept):
    descriptor = os.open(kept / OLD, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        refused = user.types("runs", "rm", OLD, "--yes")
        assert refused.returncode == 2 and "still in use" in refused.stderr
        assert "1 in use were left" in user.types("runs", "rm", "--all", "--yes").stdout
    finally:
        os.close(descriptor)
    assert (kept / OLD).exists() and not (kept / NEW).exists()


@pytest.mark.parametrize("how", [["run"], ["diagnose", "--no-lock", *MARKED]], ids=["run", "diagnose"])
def test_a_run_that_goes_on_is_in_use(user, how):
    user.write("train.py", f"open({str(user.cwd.parent / 'begun')!r}, 'w').close()\n" + CALL)
    base = user.cwd.parent / "state" / "dynotune" / "runs"
    with user.start(*how, "--", sys.executable, "train.py") as process:
        until((user.cwd.parent / "begun").exists, "the command starts")
        (one,) = json.loads(user.types("runs", "--json", "-").stdout)["runs"]
        refused = user.types("runs", "rm", one["name"], "--yes")
        process.terminate()
        process.communicate()
    assert one["alive"] and refused.returncode == 2 and "still in use" in refused.stderr
    assert (base / one["name"]).is_dir()
