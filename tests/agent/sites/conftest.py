"""Runs a program in a child process under settings, driven as the agent drives them."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

import dynotune
from dynotune import knobs
from dynotune.launch.process import environment

AGENT = Path(dynotune.__file__).parent / "agent"
DRIVER = Path(__file__).with_name("driver.py")


@dataclass(frozen=True)
class Outcome:
    """What came of a child.

    Args:
        out: what the program put into the dict `out`.
        readback: by knob.
    """

    out: dict
    readback: dict
    events: list
    stdout: str

    def errors(self):
        return [event for event in self.events if event["event"] == "error"]


@pytest.fixture
def child(tmp_path, interpreters, target_python):
    """`child(program, *settings)`: an `Outcome`. Started anew where it is to find another environment.

    `compiler=False`: torch's compiler is not imported yet.
    """

    def run(program, *settings, compiler=True, **how):
        def fork(job):
            forked = interpreters["compiler" if compiler else "torch"]
            return forked.run([str(DRIVER), str(job)], cwd=job.parent, folder=job.parent, env=_environment())

        return _run(tmp_path, fork, target_python, program, settings, **how)

    return run


@pytest.fixture
def fresh_child(tmp_path, target_python):
    """`child` that is always started anew."""

    def run(program, *settings, **how):
        def start(job):
            return _start(target_python, job, _environment())

        return _run(tmp_path, start, target_python, program, settings, **how)

    return run


def _run(folder, fork, python, program, settings, env=None, facts=None, torch=True, planned=None):
    inherited = _environment()
    child_env, plan = environment.build(
        [knobs.parse(text) for text in settings],
        inherited | (env or {}),
        run_dir=folder,
        facts=facts or {},
    )
    # The driver stands in for the bootstrap, which would start the agent a second time.
    del child_env["DYNOTUNE_RUN"]
    child_env["PYTHONPATH"] = ""
    job = {
        "agent": str(AGENT),
        "torch": torch,
        "program": str(folder / "program.py"),
        "settings": planned or [_plain(setting) for setting in plan],
        "outcome": str(folder / "outcome.json"),
    }
    (folder / "program.py").write_text(dedent(program))
    (folder / "job.json").write_text(json.dumps(job))
    if torch and child_env == inherited:
        done = fork(folder / "job.json")
    else:
        done = _start(python, folder / "job.json", child_env)
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads((folder / "outcome.json").read_text())
    return Outcome(
        out=outcome["out"],
        readback={answer["knob"]: answer for answer in outcome["readback"]},
        events=outcome["events"],
        stdout=done.stdout,
    )


def _environment():
    return {**os.environ, "CUDA_MODULE_LOADING": "LAZY", "PYTHONPATH": ""}


def _start(python, job, env):
    words = [python, str(DRIVER), str(job)]
    return subprocess.run(words, env=env, cwd=job.parent, capture_output=True, text=True)


def _plain(setting):
    return {"knob": setting.knob, "value": setting.value, "site": setting.site, "keep": setting.keep}
