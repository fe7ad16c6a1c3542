"""Runs a program in a child process under settings, driven as the agent drives them."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

import dynotune
from dynotune import knobs
from dynotune.launch import environment

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
def child(tmp_path):
    def run(program, *settings, env=None, facts=None, torch=True, planned=None):
        child_env, plan = environment.build(
            [knobs.parse(text) for text in settings],
            {**os.environ, "CUDA_MODULE_LOADING": "LAZY", **(env or {})},
            run_dir=tmp_path,
            agent_dir=AGENT,
            facts=facts or {},
        )
        # The driver stands in for the bootstrap, which would start the agent a second time.
        del child_env["DYNOTUNE_RUN"]
        child_env["PYTHONPATH"] = ""
        job = {
            "agent": str(AGENT),
            "torch": torch,
            "program": str(tmp_path / "program.py"),
            "settings": planned or [_plain(setting) for setting in plan],
            "outcome": str(tmp_path / "outcome.json"),
        }
        (tmp_path / "program.py").write_text(dedent(program))
        (tmp_path / "job.json").write_text(json.dumps(job))
        done = subprocess.run(
            [sys.executable, str(DRIVER), str(tmp_path / "job.json")],
            env=child_env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        outcome = json.loads((tmp_path / "outcome.json").read_text())
        return Outcome(
            out=outcome["out"],
            readback={answer["knob"]: answer for answer in outcome["readback"]},
            events=outcome["events"],
            stdout=done.stdout,
        )

    return run


def _plain(setting):
    return {"knob": setting.knob, "value": setting.value, "site": setting.site, "keep": setting.keep}
