"""`dynotune compare --objective`, as a user types it."""

from __future__ import annotations

import sys

import pytest

from .conftest import CALL, MARKED


@pytest.mark.long
def test_the_time_to_the_first_step_is_compared_by_runs_that_end_with_it(user):
    user.write("train.py", CALL)
    done = user.compares(*MARKED, "--objective", "time-to-first-step", "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    assert "Each run ended when its first step was known" in done.stdout
    comparison = user.comparison()
    assert comparison["run"]["objective"] == "time-to-first-step"
    assert comparison["run"]["window_steps"] is None
    # On a busy machine pairs are void; their values are kept all the same.
    values = comparison["pairs"] or [voided["values"] for voided in comparison["voided"]]
    assert all(0.05 < pair["baseline_s"] < 120 for pair in values)
    runs = sorted(path.name for path in user.comparison_folder().glob("0*"))
    assert runs[:2] == ["001-baseline", "001-candidate"]


@pytest.mark.parametrize(
    ("name", "exit_code", "said"), [("speed", 2, "latency-p99"), ("energy", 3, "energy needs a GPU")]
)
def test_an_objective_that_does_not_exist_or_cannot_be_measured_is_refused_before_anything_runs(
    user, name, exit_code, said
):
    user.write("train.py", CALL)
    user.env["CUDA_VISIBLE_DEVICES"] = ""
    done = user.compares(*MARKED, "--objective", name, "--", sys.executable, "train.py")
    assert done.returncode == exit_code
    assert said in done.stderr
    assert not list(user.runs.glob("*/comparison.json"))
