"""A program is joined, holds the agent as long as dynotune does, and is as before: on any Python, with a
program that executes what it is told in place of one that is asked through `sys.remote_exec`; and on a real
one where `DYNOTUNE_PYTHON_314` names it."""

from __future__ import annotations

import compileall
import contextlib
import os
import shlex
from pathlib import Path

import pytest

from dynotune.running import (
    diagnose_running,
    injected,
    joined_program,
    process_files,
    running_diagnosis,
    targets,
)
from dynotune.running.joined_program import JoinedProgram
from dynotune.running.shared_folder import SharedFolder
from dynotune.schema import document
from dynotune.schema.diagnosis import Diagnosis
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.run import Plan

from .conftest import READY

TRAINING = """
import select, sys, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(64, 16))
print("ready", flush=True)
while True:
    for (inputs,) in torch.utils.data.DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
    if select.select([sys.stdin], [], [], 0)[0]:
        line = sys.stdin.readline().strip()
        if line == "?":
            print(sorted(name for name in sys.modules if "_dynotune" in name), flush=True)
        else:
            exec(compile(open(line).read(), "<string>", "exec"), {})
"""


@pytest.fixture
def asked(monkeypatch):
    """The scripts that processes were asked to execute; those of `programs` execute them."""
    scripts, programs = [], {}

    def ask(process, place, folder, wanted):
        agent = Path(folder, "dynotune", "agent") if folder else None
        if agent is not None and (agent / "__init__.py").exists():
            compileall.compile_dir(agent, quiet=2, legacy=True)
        for pid, script in wanted:
            scripts.append(script)
            if pid in programs:
                programs[pid](script)
        return {"failed": {}}

    monkeypatch.setattr(injected, "_ask", ask)
    monkeypatch.setattr(injected, "OLDEST", (3, 9))
    ask.scripts, ask.programs = scripts, programs
    return ask


def join(program, folder: Path) -> JoinedProgram:
    folder.mkdir()
    shared = SharedFolder(folder.parent, str(folder.parent), is_own=True)
    return JoinedProgram(targets.find(program.pid), folder, shared, lambda _: None)


def test_diagnosis_is_that_of_a_start_when_a_training_is_joined(started, asked, monkeypatch, tmp_path):
    monkeypatch.setattr(
        running_diagnosis.target_facts.probe, "machine", lambda env, **_: {"env.TORCH_LOGS": None}
    )
    program = started(TRAINING)

    def tell(script: str) -> None:
        program.child.stdin.write(f"{script}\n")
        program.child.stdin.flush()

    asked.programs[program.pid] = tell
    found = diagnose_running(program.pid, look_s=1.0, with_stacks=False, record=True)
    assert isinstance(found.recorded, Diagnosis), found.recorded
    assert found.rung == 2 and "left" in found.reached
    assert "a step takes" in found.recorded.verdict.lower()
    assert "mistake" not in " ".join(found.recorded.notes)
    assert not list((tmp_path / "state" / "dynotune").glob("joined/*"))
    tell("?")
    assert program.child.stdout.readline().strip() == "[]"


def test_joining_is_given_up_when_the_main_thread_executes_nothing(started, asked, monkeypatch, tmp_path):
    monkeypatch.setattr(injected, "BEGIN_S", 0.2)
    with pytest.raises(CannotRunHere, match=r"executed no Python for 0 s.*request was taken back"):
        join(started(READY), tmp_path / "run")
    assert asked.scripts[-1] == injected.NOTHING
    assert not list((tmp_path / "run").glob("begin-*.py"))


def test_joining_is_given_up_when_the_program_ends_in_the_middle(started, asked, tmp_path):
    program = started(READY)

    def end(_: str) -> None:
        program.child.kill()
        program.child.wait()

    asked.programs[program.pid] = end
    with pytest.raises(CannotRunHere, match="ended while the agent was loaded"):
        join(program, tmp_path / "run")


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("agent", "agent of another dynotune"),
        ("no torch", "not imported torch"),
        ("OSError: \x1b[1m", "failed"),
    ],
    ids=["second", "no torch", "hostile"],
)
def test_joining_says_why_when_the_agent_cannot_stay(started, asked, tmp_path, reason, said):
    program = started(READY)
    asked.programs[program.pid] = lambda _: (tmp_path / "run" / injected.FAILED).write_text(reason)
    with pytest.raises(CannotRunHere, match=said) as error:
        join(program, tmp_path / "run")
    assert "\x1b" not in error.value.message


def test_clearing_removes_folders_when_nobody_uses_them_any_more(started, tmp_path):
    joined, of_others = tmp_path / "joined", tmp_path / "others"
    pending, left, link = (joined / f"20260101-000000-000-00000{number}" for number in range(3))
    foreign = joined / "else"
    for folder in (pending, left, foreign, of_others / "precious"):
        folder.mkdir(parents=True)
    link.symlink_to(of_others)
    (pending / f"begin-{started(READY).pid}.py").touch()
    (left / f"begin-{2**22 + 1}.py").touch()
    joined_program.clear(SharedFolder(joined, str(joined), is_own=True))
    assert pending.exists() and not left.exists()
    assert foreign.exists() and (link / "precious").exists()


def test_nothing_is_cleared_when_the_folder_is_in_the_targets_root(tmp_path):
    left = tmp_path / "20260101-000000-000-000000"
    left.mkdir()
    joined_program.clear(SharedFolder(tmp_path, "/tmp", is_own=False))
    assert left.exists()


def test_diagnosis_reaches_rung_two_when_a_real_python_is_joined(started, monkeypatch):
    words = shlex.split(os.environ.get("DYNOTUNE_PYTHON_314", ""))
    if not words:
        pytest.skip("DYNOTUNE_PYTHON_314 names no Python from 3.14 on with torch")
    monkeypatch.setattr(
        running_diagnosis.target_facts.probe, "machine", lambda env, **_: {"env.TORCH_LOGS": None}
    )
    code = TRAINING.replace("if select.select", "if 0 and select.select")
    program = started(words=[*words, "-c", code])
    found = diagnose_running(program.pid, look_s=1.0, with_stacks=False, record=True)
    assert found.rung == 2, found.next_rung
    maps = Path(f"/proc/{program.pid}/maps").read_text().splitlines()
    assert [line for line in maps if "dynotune" in line] == []


def test_program_counts_as_ended_when_the_agent_has_left_by_itself(started, asked, monkeypatch, tmp_path):
    monkeypatch.setattr(joined_program, "BEAT_S", 60.0)
    program = started(TRAINING)

    def tell(script: str) -> None:
        program.child.stdin.write(f"{script}\n")
        program.child.stdin.flush()

    asked.programs[program.pid] = tell
    folder = tmp_path / "run"
    folder.mkdir()
    document.write(folder / "plan.json", Plan(watched=True), to_agent=True)
    shared = SharedFolder(tmp_path, str(tmp_path), is_own=True)
    joined = JoinedProgram(targets.find(program.pid), folder, shared, lambda _: None)
    with contextlib.ExitStack() as stack:
        stack.callback(joined.close)
        assert joined.wait(0.0) is None
        os.utime(folder / "held.lock", times=(0, 0))
        assert joined.wait(60.0) is not None
        assert process_files.lives(process_files.read(program.pid))
