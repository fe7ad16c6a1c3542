"""The gate for others' CI: the shell steps of `action.yml` and of the page's snippet, run as a runner
would."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dynotune.launch.process import sandbox

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "guides" / "ci.md").read_text(encoding="utf-8")
STEPS = ACTION["runs"]["steps"]
OPTIONS = "--pairs 4 --warmup 3 --steps 20 --no-lock --step-function dynotune.step"
TRAIN = """
import time, dynotune, pace
for _ in range(100_000):
    time.sleep(0.01 + pace.MORE_S)
    dynotune.step()
"""


class Runner:
    """A machine of somebody's CI, with a repository checked out and its main branch fetched."""

    def __init__(self, folder: Path) -> None:
        self.temp, self.project = folder / "temp", folder / "project"
        binaries = folder / "bin"
        for made in (self.temp, self.project, binaries):
            made.mkdir()
        for name, words in (("dynotune", "-m dynotune"), ("python", "")):
            (binaries / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
            (binaries / name).chmod(0o755)
        self.env = {
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "PYTHONPATH": str(ROOT / "src"),
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_WORKSPACE": str(self.project),
            **{f"GITHUB_{name}": str(self.temp / name) for name in ("STEP_SUMMARY", "OUTPUT", "PATH")},
        }

    def has_branch(self, more_s: float) -> None:
        """Check out a branch whose steps take that much longer than those of `origin/main`."""
        (self.project / "train.py").write_text(TRAIN)
        (self.project / "pace.py").write_text("MORE_S = 0.0\n")
        git = [
            "git",
            "-C",
            str(self.project),
            "-c",
            "user.name=somebody",
            "-c",
            "user.email=somebody@example.com",
        ]
        for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "Main"]):
            subprocess.run([*git, *words], check=True)
        subprocess.run([*git, "update-ref", "refs/remotes/origin/main", "HEAD"], check=True)
        (self.project / "pace.py").write_text(f"MORE_S = {more_s}\n")
        subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-am", "Branch"], check=True)

    def runs(self, script: str, folder: str = ".", **env: str) -> subprocess.CompletedProcess[str]:
        words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        return subprocess.run(
            words, cwd=self.project / folder, env=self.env | env, capture_output=True, text=True, timeout=240
        )

    def acts(self, **inputs: str) -> subprocess.CompletedProcess[str]:
        """Run the step that compares, with its inputs as the runner would fill them in."""
        (step,) = (step for step in STEPS if step["name"] == "Compare")
        known = {name: about.get("default", "") for name, about in ACTION["inputs"].items()} | inputs
        found = {
            name: re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", value) for name, value in step["env"].items()
        }
        env = {name: known[match[1]] for name, match in found.items() if match}
        return self.runs(step["run"], known["working-directory"], **env)

    def text(self, name: str) -> str:
        path = self.temp / name
        return path.read_text() if path.exists() else ""


@pytest.fixture
def runner(tmp_path) -> Runner:
    return Runner(tmp_path)


@pytest.fixture
def with_view(runner, tmp_path) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    if (reason := sandbox.available(runner.project, tmp_path / "any")) is not None:
        pytest.skip(f"no copy-on-write view here: {reason}")


def test_the_action_takes_no_text_of_others_into_its_shell():
    """`${{ … }}` inside of a script would run whatever a branch or a title is named."""
    assert not any("${{" in step["run"] for step in STEPS)
    assert {step["shell"] for step in STEPS} == {"bash"}


def test_ci_page_gives_the_action_only_inputs_that_it_has():
    (workflow,) = re.findall(r"```yaml\n(on: pull_request.*?)```", PAGE, re.DOTALL)
    (given,) = (
        step["with"]
        for step in yaml.safe_load(workflow)["jobs"]["speed"]["steps"]
        if "dynotune" in step.get("uses", "")
    )
    needed = {name for name, about in ACTION["inputs"].items() if about.get("required")}
    assert needed <= set(given) <= set(ACTION["inputs"])


STAND_IN = """#!{python}
import json, sys
words, document = sys.argv[1:], "x"
json.dump(words, open("words-" + words[0] + ".json", "w"))
if words[0] in ("compare", "diagnose"):
    open(words[words.index("--json") + 1], "w").write(words[0])
elif "--sarif" in words:
    open(words[words.index("--sarif") + 1], "w").write({sarif!r})
    print("# the diagnosis")
elif "--markdown" in words:
    print("# the comparison")
else:
    print("verdict  1.80x slower, 100% sure")
"""
PLACE = {"artifactLocation": {"uri": "my%20train.py"}, "region": {"startLine": 31}}
SARIF = json.dumps({"runs": [{"results": [
    {"ruleId": "a", "level": "note", "message": {"text": "of the machine"}},
    {"ruleId": "b", "level": "error", "message": {"text": "one: two, 50%\n::error::not mine"},
     "locations": [{"physicalLocation": PLACE}]},
]}]})  # fmt: skip


@pytest.fixture
def stand_in(runner) -> None:
    """A dynotune that keeps its words, and answers at once."""
    (runner.temp.parent / "bin" / "dynotune").write_text(STAND_IN.format(python=sys.executable, sarif=SARIF))


def test_action_splits_inputs_as_a_shell_would_when_they_hold_lines_and_quotes(runner, stand_in):
    lines = {
        "candidate": "a=1\nb=2 c='3 4'\n",
        "baseline": "\nd=4\ne=5",
        "options": "--margin 0.03\n--pairs 3\n",
    }
    assert runner.acts(command="A='1 2' python train.py && true", **lines).returncode == 0
    words = json.loads((runner.project / "words-compare.json").read_text())
    assert words[:4] == ["compare", "a=1", "b=2", "c=3 4"]
    given = words[words.index("--margin") : words.index("--fail-on")]
    assert given == ["--margin", "0.03", "--pairs", "3", "--baseline", "d=4", "--baseline", "e=5"]
    assert words[-4:] == ["--", "bash", "-c", "A='1 2' python train.py && true"]


def test_action_refuses_an_input_when_its_quotes_do_not_close(runner, stand_in):
    done = runner.acts(command="python train.py", candidate="a='1")
    assert done.returncode == 1 and "::error title=dynotune::The input candidate" in done.stderr


def test_action_annotates_the_verdict_and_the_lines_of_findings(runner, stand_in):
    done = runner.acts(command="python train.py", diagnose="true")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "::notice title=dynotune::1.80x slower, 100%25 sure",
        "::error file=my train.py,line=31,title=dynotune%3A b::one: two, 50%25%0A::error::not mine",
    ]
    assert runner.text("STEP_SUMMARY") == "# the comparison\n\n# the diagnosis\n"
    outputs = dict(line.split("=", 1) for line in runner.text("OUTPUT").splitlines())
    assert outputs["verdict"] == "1.80x slower, 100% sure" and Path(outputs["sarif"]).is_file()


def test_action_names_files_from_the_repository_when_it_works_in_a_folder(runner, stand_in):
    (runner.project / "sub").mkdir()
    done = runner.acts(command="python train.py", diagnose="true", **{"working-directory": "sub"})
    assert "::error file=sub/my train.py,line=31" in done.stdout, done.stderr
    outputs = dict(line.split("=", 1) for line in runner.text("OUTPUT").splitlines())
    assert "sub/my%20train.py" in Path(outputs["sarif"]).read_text()


def test_a_gate_that_cannot_run_fails_and_writes_no_summary(runner):
    done = runner.acts(command="python train.py", candidate="loader.num_worker=4")
    assert done.returncode == 2 and "loader.num_workers" in done.stderr
    assert (runner.text("STEP_SUMMARY"), runner.text("OUTPUT")) == ("", "")


def test_a_command_that_fails_fails_the_gate(runner):
    (runner.project / "train.py").write_text("raise SystemExit('no data')\n")
    done = runner.acts(command="python train.py", candidate="env.A=1", options=OPTIONS)
    assert done.returncode == 4
    assert "no data" in done.stdout and "no data" in runner.text("STEP_SUMMARY")


def test_an_answer_stands_in_the_summary_and_in_the_outputs(runner):
    (runner.project / "pace.py").write_text("MORE_S = 0.0\n")
    (runner.project / "train.py").write_text(TRAIN)
    done = runner.acts(
        command="A='of two words' python train.py", candidate="env.B=1 env.C=2", options=OPTIONS
    )
    assert done.returncode == 0, done.stderr
    summary, outputs = (
        runner.text("STEP_SUMMARY"),
        dict(line.split("=", 1) for line in runner.text("OUTPUT").splitlines()),
    )
    assert summary.startswith("# dynotune compare") and outputs["verdict"].replace("%", "%25") in done.stdout
    assert "env.B=1" in summary and "env.C=2" in summary and "\x1b" not in summary
    assert Path(outputs["json"]).is_file()


@pytest.mark.long
def test_a_branch_that_is_slower_fails(runner, with_view):
    runner.has_branch(0.04)
    done = runner.acts(command="python train.py", baseline="git.ref=origin/main", options=OPTIONS)
    assert done.returncode == 1, done.stderr
    assert "slower" in runner.text("STEP_SUMMARY") and "::error title=dynotune::" in done.stdout
    done = runner.acts(
        command="python train.py", baseline="git.ref=origin/main", options=OPTIONS, **{"fail-on": "never"}
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_the_lines_for_gitlab_fail_a_branch_that_is_slower(runner, with_view):
    runner.has_branch(0.04)
    (text,) = re.findall(r"```yaml\n(speed:.*?)```", PAGE, re.DOTALL)
    job = yaml.safe_load(text)["speed"]
    (line,) = job["script"]
    line = line.replace(" -- ", f" {OPTIONS} -- ")
    branch = {"CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main"}
    assert runner.runs(line, **branch).returncode == 1
    assert runner.runs("\n".join(job["after_script"]), **branch).returncode == 0
    assert all((runner.project / name).stat().st_size for name in job["artifacts"]["paths"])


@pytest.mark.long
def test_the_action_installs_what_is_beside_it(runner):
    (step,) = (step for step in STEPS if step["name"] == "Install dynotune")
    done = runner.runs(step["run"])
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip("packages cannot be installed here")
    assert done.returncode == 0, done.stderr
    place = Path(runner.text("PATH").strip())
    said = subprocess.run([place / "dynotune", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("dynotune ")
