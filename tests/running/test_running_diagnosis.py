"""The whole diagnosis of a program that runs: what it says, what it refuses, and that the program is as
before."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

from dynotune.report import as_text, on_terminal
from dynotune.running import diagnose_running, parts, running_diagnosis
from dynotune.schema import document
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Unknown

from .conftest import READY, eventually

LOADING = """
import os, sys
workers = []
for _ in range(2):
    if not os.fork():
        open("/proc/self/comm", "w").write("pt_data_worker")
        print("ready", flush=True)
        while True: pass
for _ in range(2):
    pass
os.read(os.pipe()[0], 1)
"""
"""Two workers that compute, and a main process that waits for one of them."""


@pytest.fixture(autouse=True)
def no_interpreter_asked(monkeypatch):
    """Facts of the interpreter take a second, and have tests of their own."""
    monkeypatch.setattr(
        running_diagnosis.target_facts.probe, "machine", lambda env, **_: {"env.TORCH_LOGS": None}
    )


def diagnose(pid: int, **how):
    return diagnose_running(pid, **{"look_s": 2.5, "with_stacks": False} | how)


def test_diagnosis_names_the_input_when_workers_compute_and_the_main_process_waits(started):
    diagnosis = diagnose(started(LOADING).pid)
    assert (diagnosis.part, diagnosis.rung) == ("input", 0)
    assert [view.role for view in diagnosis.ranks[0].processes] == ["program", "worker", "worker"]
    assert "2 workers use" in " ".join(diagnosis.ranks[0].evidence)


def test_diagnosis_names_the_cpu_when_the_process_computes(started):
    assert diagnose(started("print('ready', flush=True)\nwhile True: pass").pid).part == "cpu"


def test_diagnosis_names_no_part_but_waiting_when_the_program_sleeps(started):
    diagnosis = diagnose(started("print('ready', flush=True)\nimport time; time.sleep(1e6)").pid)
    assert diagnosis.part == "waiting"
    assert "its main thread sleeps 100% of the time" in diagnosis.verdict
    assert "has not loaded torch" in " ".join(diagnosis.notes)


def test_diagnosis_says_what_the_next_rung_needs_when_there_is_no_py_spy(started, monkeypatch):
    monkeypatch.setattr(running_diagnosis.stacks, "_program", lambda: None)
    diagnosis = diagnose(started().pid, with_stacks=True)
    assert diagnosis.rung == 0
    assert "py-spy" in diagnosis.next_rung
    assert diagnosis.stacks == running_diagnosis.stacks.NO_PROGRAM


def test_diagnosis_is_refused_when_the_program_ends_while_it_is_looked_at(started):
    program = started()

    def end(_: str) -> None:
        program.child.kill()
        program.child.wait()

    with pytest.raises(CannotRunHere, match="ended while dynotune observed it"):
        diagnose(program.pid, running=end)


def test_diagnosis_says_that_it_saw_too_little_when_the_program_goes_on(started, monkeypatch):
    program = started()
    monkeypatch.setattr(parts, "FEWEST_LOOKS", 10_000)
    with pytest.raises(CannotRunHere, match=r"was sampled only \d+ times"):
        diagnose(program.pid, look_s=0.1)


def test_diagnosis_is_refused_when_another_dynotune_looks_at_the_program(started):
    program = started()
    refused = []

    def look_again(_: str) -> None:
        with pytest.raises(
            CannotRunHere, match=rf"Another dynotune \(process {os.getpid()}\) looks at"
        ) as error:
            diagnose(program.pid)
        refused.append(error)

    diagnose(program.pid, running=look_again)
    assert len(refused) == 1
    assert diagnose(program.pid).part == "waiting"


def test_diagnosis_hides_secrets_and_quotes_names_when_the_program_is_hostile(started):
    hostile = "\x1b[31m\u202eevil"
    env = {"HF_TOKEN": "hf_abcdefghijklmnop1234", "RANK": "1\n2", "TORCH_LOGS": hostile}
    code = f"{READY} # --api-key=abcd1234efgh5678 {hostile}"
    diagnosis = diagnose(started(code, env=env).pid)
    shown = as_text(on_terminal(document.without_secrets(diagnosis)))
    stored = document.encode(diagnosis).decode()
    for text in (shown, stored):
        assert "hf_abcdefghijklmnop1234" not in text
        assert "abcd1234efgh5678" not in text
    assert "\x1b" not in shown and "\u202e" not in shown
    assert diagnosis.ranks[0].rank is None


def test_diagnosis_says_so_when_the_program_lives_in_other_namespaces(started):
    unshare = shutil.which("unshare")
    if (
        unshare is None
        or subprocess.run([unshare, "--mount", "--pid", "--fork", "true"], check=False).returncode
    ):
        pytest.skip("this user may not make namespaces")
    words = [unshare, "--mount", "--pid", "--fork", sys.executable, "-c", READY]
    diagnosis = diagnose(started(words=words).pid)
    assert "The program runs in a container, with process ids of its own." in diagnosis.notes
    assert "The program runs in a container, with file systems of its own." in diagnosis.notes


def test_program_goes_on_as_before_when_it_was_looked_at(started):
    code = "print('ready', flush=True)\nimport sys\nprint(sum(map(int, sys.stdin.read().split())))"
    program = started(code)
    diagnose(program.pid, with_stacks=True)
    out, _ = program.child.communicate("1 2 39")
    assert (out.strip(), program.child.returncode) == ("42", 0)


def test_stopped_program_is_told_when_a_signal_stopped_it(started):
    program = started()
    program.child.send_signal(signal.SIGSTOP)
    assert diagnose(program.pid).verdict == "The program is stopped by a signal."


def test_document_can_be_read_again_when_it_was_written(started, tmp_path):
    diagnosis = diagnose(started().pid)
    document.write(tmp_path / "running.json", diagnosis)
    assert document.read(tmp_path / "running.json", type(diagnosis)) == diagnosis
    assert isinstance(diagnosis.ranks[0].device_busy, Unknown)


def test_program_is_as_before_when_a_dynotune_is_killed_while_it_looks(started, tmp_path):
    code = "print('ready', flush=True)\nimport sys\nprint(sum(map(int, sys.stdin.read().split())))"
    program = started(code)
    locks = tmp_path / "state" / "dynotune" / "attached"
    for _ in range(3):
        words = [sys.executable, "-m", "dynotune", "diagnose", "--pid", str(program.pid)]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as looking:
            assert eventually(lambda: locks.is_dir() and any(locks.iterdir()))
            looking.kill()
    assert diagnose(program.pid).part == "waiting"
    out, _ = program.child.communicate("1 2 39")
    assert (out.strip(), program.child.returncode) == ("42", 0)
    assert list(locks.iterdir()) == []
