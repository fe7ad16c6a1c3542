"""`dynotune diagnose` as a user types it, on tiny programs."""

from __future__ import annotations

import json
import sys

import msgspec
import pytest

from dynotune import cli
from dynotune.schema.loader import Loader
from dynotune.schema.observation import Observation, ProcessState
from dynotune.schema.trace_summary import Place

from ..doctor.observations import attribution, loss, observed, timing
from .conftest import STEPS, User

# Without an optimizer, which is not the subject: torch imports its compiler for the first one.
LOADS = """
import time, torch
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self):
        return 1_000_000
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.ones(8)
net = torch.nn.Linear(8, 8)
for batch in DataLoader(Slow(), batch_size=4):
    net(batch).sum().backward()
    net.zero_grad()
"""
PROFILES = """
import time, torch
from torch.profiler import profile
net = torch.nn.Linear(8, 8)
with profile() as profiler:
    while True:
        net(torch.ones(4, 8)).sum().backward()
        time.sleep(0.005)
"""


def diagnoses(user, program: str, *options: str):
    user.write("train.py", program)
    words = ("diagnose", "--no-lock", "--run-dir", str(user.runs), *options, "--", sys.executable, "train.py")
    return user.types(*words)


@pytest.fixture(scope="module")
def waiting(tmp_path_factory, dynotune_forks):
    """A user whose program waits for its loader, and what came of diagnosing it."""
    user = User(tmp_path_factory.mktemp("waiting"), dynotune_forks)
    return user, diagnoses(user, LOADS, "--json", "found.json")


def test_a_program_that_waits_for_its_loader_is_told_so(waiting):
    user, done = waiting
    assert done.returncode == 0
    assert "bottleneck  input" in done.stdout
    assert "train.py" in done.stdout
    assert "Observed: " in done.stderr
    assert "Find and prove what helps:\n  dynotune tune -- " in done.stdout
    found = json.loads((user.cwd / "found.json").read_text())
    assert found["schema"] == "dynotune.diagnosis/2"
    assert found["shares"]["input"] > 0.5
    assert sum(value for name, value in found["shares"].items() if name != "type") == pytest.approx(1)


def test_diagnose_replay_explains_an_observation_again_and_gates(waiting):
    user, _ = waiting
    (path,) = user.runs.glob("*/observation.json")
    again = user.types("diagnose", "--replay", str(path), "--fail-on", "high")
    assert again.returncode == 1
    assert "bottleneck  input" in again.stdout
    document = user.types("diagnose", "--replay", str(path), "--json", "-")
    assert document.returncode == 0
    assert json.loads(document.stdout)["bottleneck"] == "input"


@pytest.mark.long
def test_a_program_that_uses_the_profiler_itself_still_gets_what_the_plain_run_says(user):
    done = diagnoses(user, PROFILES, "--json", "found.json", "--warmup", "5", "--steps", "20")
    assert done.returncode == 0
    found = json.loads((user.cwd / "found.json").read_text())
    assert "profiler itself" in found["shares"]["reason"]
    assert found["steps"]["num_steps"] > 0
    assert "profiler itself" in done.stdout


@pytest.mark.long
def test_a_program_without_torch_gets_what_its_marked_steps_say_and_no_mistake_of_ours(user):
    marks = "import time, dynotune\nwhile True:\n    time.sleep(0.002)\n    dynotune.step()\n"
    done = diagnoses(user, marks, "--json", "found.json", "--step-function", "dynotune.step")
    assert done.returncode == 0
    found = json.loads((user.cwd / "found.json").read_text())
    assert found["steps"]["num_steps"] > 0
    assert found["shares"]["reason"].endswith("the program did not import torch")
    assert "once more without" not in done.stderr
    assert not any("mistake" in note or "Could not be looked at" in note for note in found["notes"])


@pytest.mark.long
def test_a_program_that_trains_briefly_is_diagnosed_in_what_it_does_afterwards(user):
    program = STEPS + (
        "for _ in range(8):\n    step()\nnet.eval()\nwith torch.no_grad():\n    for _ in range(300):\n"
        "        net(torch.randn(4, 8))\n        time.sleep(0.01)\n"
    )
    done = diagnoses(user, program, "--json", "found.json")
    assert done.returncode == 0, done.stderr
    assert "ends after 8 steps" in done.stderr and "--phase inference" in done.stderr
    diagnosis = json.loads((user.cwd / "found.json").read_text())
    assert diagnosis["steps"]["step_s"] > 0.01 and diagnosis["steps"]["num_steps"] > 8


@pytest.mark.long
def test_a_command_that_fails_shows_its_last_lines(user):
    done = diagnoses(user, "import torch\nraise SystemExit('no data here')\n")
    assert done.returncode == 4
    assert "no data here" in done.stderr


def test_a_target_without_torch_says_what_is_missing(user):
    user.write("train.py", "import torch\n")
    bare = getattr(sys, "_base_executable", sys.executable)
    if bare == sys.executable:
        pytest.skip("there is no interpreter without torch here")
    done = user.types("diagnose", "--no-lock", "--run-dir", str(user.runs), "--", bare, "train.py")
    assert done.returncode == 3
    assert "torch" in done.stderr


@pytest.fixture
def types(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")

    def types(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            cli.main(["diagnose", *map(str, words)])
        captured = capsys.readouterr()
        return int(end.value.code or 0), captured.out, captured.err

    return types


@pytest.fixture
def recorded(tmp_path):
    """A program that waits 2% of its steps for its loader: a finding of low severity."""
    here = Place("train.py(9): main")
    told = attribution(loss("loader-bound", 0.02, where=here), input=0.02)
    seen = observed(
        attributed=told, timed=timing(), loaders=[Loader(name="DataLoader", dataset="x", place=here)]
    )
    path = tmp_path / "observation.json"
    path.write_bytes(msgspec.json.encode(seen))
    return path


@pytest.mark.parametrize(("severity", "code"), [("high", 0), ("medium", 0), ("low", 1)])
def test_fail_on_counts_findings_of_that_severity_or_worse(types, recorded, severity, code):
    assert types("--replay", recorded, "--fail-on", severity)[0] == code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "There is no command to run"),
        (("--fail-on", "severe", "--", "python"), "--fail-on takes high, medium or low"),
        (("--replay", "x.json", "--", "python"), "a command was given"),
        (("--replay", "x.json", "--steps", "5"), "--steps applies only to a command that is run"),
        (("--timeout", "soon", "--", "python"), "not a length of time"),
        (("--set", "nothing", "--", "python"), "nothing"),
        (("--json", "/no/such/folder/x", "--", "python"), "Cannot write"),
    ],
)
def test_diagnose_refuses_options_that_do_not_fit_together_before_anything_runs(types, words, said):
    code, out, err = types(*words)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())


def test_a_file_that_is_no_observation_is_refused(types, tmp_path):
    path = tmp_path / "x.json"
    path.write_text("{")
    code, _, err = types("--replay", path)
    assert code == 3
    assert "not a complete JSON document" in " ".join(err.split())


def test_an_observation_of_nothing_is_explained_without_a_traceback(types, tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(msgspec.json.encode(Observation(processes=[ProcessState(pid=1)])))
    code, out, _ = types("--replay", path)
    assert code == 0
    assert "No step was timed" in out


@pytest.mark.long
def test_ceilings_are_told_where_they_are_asked_for(user):
    words = ("--isolate-loader", "--warmup", "10", "--steps", "10", "--json", "found.json")
    done = diagnoses(user, LOADS, *words)
    assert done.returncode == 0
    found = json.loads((user.cwd / "found.json").read_text())
    loader, step, both = found["upper_bounds"]
    assert [row["part"] for row in found["upper_bounds"]] == ["loader", "step", "both"]
    assert loader["step_s"] >= 0.04 > step["step_s"]
    assert both["step_s"] == found["steps"]["step_s"]
    assert "the loader alone" in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--page-cache", "lukewarm", "--isolate-loader", "--", "python"), "--page-cache takes warm or cold"),
        (("--page-cache", "cold", "--", "python"), "Add --isolate-loader"),
        (
            ("--replay", "x.json", "--isolate-loader"),
            "--isolate-loader applies only to a command that is run",
        ),
    ],
)
def test_ceilings_that_make_no_sense_are_refused(words, told, types):
    code, _, err = types(*words)
    assert code == 2
    assert told in " ".join(err.split())
