"""`dynotune compare` of arms that differ in more than settings of the program, and within one run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dynotune import cli
from dynotune.cli import compare as comparing
from dynotune.launch.process import sandbox
from dynotune.report.page.html import markdown
from dynotune.schema import document
from dynotune.schema.comparison import Comparison
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting

from ..fakes import of_run
from .conftest import CALLS, MARKED

BY_BATCH = """
import sys, time, torch
net = torch.nn.Linear(8, 8).requires_grad_(False)
data = torch.utils.data.DataLoader(torch.zeros(100_000, 8), batch_size=int(sys.argv[1]))
while True:
    for batch in data:
        net(batch)
        time.sleep(0.01)
"""


@pytest.mark.long
def test_arguments_of_the_command_are_compared_by_the_sample(user):
    user.write("train.py", BY_BATCH)
    done = user.compares(
        "arg.batch=64", "--baseline", "arg.batch=32", "--", sys.executable, "train.py", "{batch}"
    )
    assert done.returncode == 0, done.stderr
    comparison = user.comparison()
    assert comparison["unit"] == "sample"
    assert all(1.5 < pair["baseline_s"] / pair["candidate_s"] < 2.5 for pair in comparison["pairs"])
    assert comparison["readback"]["arg.batch"] == {
        "knob": "arg.batch", "asked": "64", "found": "64", "witness": "the launch", "ok": True, "detail": "",
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_branch_is_compared_with_the_working_tree(user):
    if (reason := sandbox.available(user.cwd, user.runs / "any")) is not None:
        pytest.skip(f"no copy-on-write view here: {reason}")
    user.write(
        "train.py", CALLS + "import pace\nfor _ in range(100_000):\n    step()\n    time.sleep(pace.MORE_S)\n"
    )
    user.write("pace.py", "MORE_S = 0.0\n")
    git = ["git", "-C", str(user.cwd), "-c", "user.name=somebody", "-c", "user.email=somebody@example.com"]
    for words in (
        ["init", "--quiet"],
        ["add", "--all"],
        ["commit", "--quiet", "-m", "Quick"],
        ["tag", "quick"],
    ):
        subprocess.run([*git, *words], check=True)
    user.write("pace.py", "MORE_S = 0.04\n")
    done = user.compares("git.ref=quick", *MARKED, "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    comparison = user.comparison()
    assert all(3 < pair["baseline_s"] / pair["candidate_s"] < 7 for pair in comparison["pairs"])
    assert any("working tree, with changes" in text for text in comparison["warnings"])
    assert any("(Quick)" in text for text in comparison["warnings"])
    assert (user.cwd / "pace.py").read_text() == "MORE_S = 0.04\n"
    # The gate of a branch, as the README has it: what is checked out is judged against another revision.
    gate = ("--baseline", "git.ref=quick", "--pairs", "4", "--fail-on", "slower")
    gated = user.compares(*gate, *MARKED, "--", sys.executable, "train.py")
    assert gated.returncode == 1, gated.stderr


def test_a_placeholder_that_the_command_lacks_costs_no_run(user):
    user.write("train.py", BY_BATCH)
    done = user.compares("arg.batch=64", "--baseline", "arg.batch=32", "--", sys.executable, "train.py")
    assert done.returncode == 2
    assert "no placeholder {batch}" in done.stderr
    assert not user.runs.exists() or not list(user.runs.glob("*/comparison.json"))


def test_settings_that_can_be_switched_are_compared_within_one_run(user):
    user.write("train.py", BY_BATCH)
    user.env["OMP_NUM_THREADS"] = "2"
    done = user.compares("host.num_threads=1", "--", sys.executable, "train.py", "8")
    assert done.returncode == 0, done.stderr
    comparison = user.comparison()
    # On a busy machine steps may change meanwhile: blocks then choose, and fresh pairs state the speed-up.
    blocks = comparison["pairs"] if comparison["within"] else comparison["blocks"]
    assert blocks, done.stderr
    assert "block" in done.stdout


STEPS = """
import time, torch
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(net.parameters())
while True:
    net(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.005)
"""


def test_comparison_shows_what_was_read_back_when_a_fused_optimizer_is_switched(user):
    user.write("train.py", STEPS)
    done = user.compares("optimizer.fused=true", "--in-process", "only", "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    groups = "fused of the optimizers' parameter groups"
    assert user.comparison()["within"]
    assert user.comparison()["readback"]["optimizer.fused"] == {
        "knob": "optimizer.fused",
        "asked": "true",
        "found": "true",
        "witness": groups,
        "ok": True,
        "detail": "",
    }
    said = " ".join(done.stdout.split())
    assert f"While optimizer.fused=true was on, dynotune read true ({groups})." in said
    comparison = document.read(user.comparison_folder() / "comparison.json", Comparison)
    assert f"| `optimizer.fused=true` | `true` | {groups} | in effect |" in markdown(comparison)


def test_compare_refuses_arms_that_cannot_be_switched_when_only_one_run_is_wanted(user):
    user.write("train.py", BY_BATCH)
    done = user.compares("--in-process", "only", "--", sys.executable, "train.py", "8")
    assert done.returncode == 2
    assert "cannot be compared within one run" in done.stderr


@pytest.mark.long
def test_a_candidate_that_is_slower_fails_the_build_where_that_is_asked_for(user):
    user.write("train.py", BY_BATCH.replace("0.01", "float(sys.argv[2])"))
    settings = ["arg.pause=0.05", "--baseline", "arg.pause=0.01", "--pairs", "4", "--fail-on", "slower"]
    done = user.compares(*settings, "--", sys.executable, "train.py", "8", "{pause}")
    assert user.comparison()["verdict"] == "slower", done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("fail_on", "verdict", "exit_code"),
    [
        ("slower", "slower", 1), ("slower", "same", 0), ("slower", "undecided", 0), ("slower", "faster", 0),
        ("not-faster", "slower", 1), ("not-faster", "same", 1), ("not-faster", "undecided", 1),
        ("not-faster", "faster", 0), (None, "slower", 0),
    ],
)  # fmt: skip
def test_a_verdict_is_an_exit_code_only_where_that_is_asked_for(
    monkeypatch, tmp_path, fail_on, verdict, exit_code
):
    answer = of_run(
        Comparison, id="c", command=["true"], candidate_settings=[Setting("env.A", "1")], verdict=verdict
    )
    monkeypatch.setattr(comparing, "measure", lambda request, **more: answer)
    monkeypatch.chdir(tmp_path)
    asked = [] if fail_on is None else ["--fail-on", fail_on]
    with pytest.raises(SystemExit) as end:
        cli.main(["compare", "env.A=1", *asked, "--run-dir", str(tmp_path / "runs"), "--", "true"])
    assert (end.value.code or 0) == exit_code


def test_an_interpreter_without_torch_is_refused_before_anything_runs(user, tmp_path):
    user.write("train.py", BY_BATCH)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "other")], check=True)
    done = user.compares(f"python={tmp_path}/other/bin/python", "--", sys.executable, "train.py", "8")
    assert done.returncode == 3
    assert "has no torch" in done.stderr
    assert not user.runs.exists() or not list(user.runs.glob("*/comparison.json"))


@pytest.mark.long
def test_arms_that_are_the_same_are_told_within_one_run(user):
    user.write("train.py", BY_BATCH)
    user.env["OMP_NUM_THREADS"] = "1"
    done = user.compares("host.num_threads=1", "--", sys.executable, "train.py", "8")
    assert done.returncode == 0, done.stderr
    comparison = user.comparison()
    assert (comparison["verdict"], comparison["pairs"]) == ("same", [])
    assert "The program has host.num_threads=1 already" in done.stdout


@pytest.mark.parametrize(
    ("env", "against", "num"),
    [
        ({}, [], 1),
        ({"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, [], 0),
        ({}, [Setting("env.CUBLAS_WORKSPACE_CONFIG", "x")], 0),
    ],
)
def test_variable_that_nothing_sets_is_named_before_it_is_removed(env, against, num):
    removed = [Setting("env.CUBLAS_WORKSPACE_CONFIG", "@unset"), Setting("env.A", "1")]
    run = RunSpec(command=["python", "x.py"], cwd=Path("/"), env=env, base=Path("/runs"))
    lines = comparing.not_set_here(removed, against, run)
    assert len(lines) == num
    assert all("CUBLAS_WORKSPACE_CONFIG is not set here" in line for line in lines)
    assert all("dynotune compare env.CUBLAS_WORKSPACE_CONFIG=:4096:8" in line for line in lines)
