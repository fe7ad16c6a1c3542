"""Recordings on request: by stand-ins for torch's profiler, and once by a real training."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dynotune.running import diagnose_running, kineto_door, prepared, targets
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Unknown

from .conftest import READY

# Asks for orders as torch's profiler does, and writes what it was ordered to; `{then}` says how it fails to.
ASKING = """
import os, socket, struct, sys
print("ready", flush=True)
folder, number = os.environ["KINETO_IPC_SOCKET_DIR"], 0
mine = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
mine.bind(folder + "/client%d" % os.getpid())
def ask(kind, body):
    mine.sendto(struct.pack("<Q32s", len(body), kind) + body, folder + "/dynolog")
    return mine.recv(65536)[40:]
sys.stdin.readline()
assert struct.unpack("<i", ask(b"ctxt", struct.pack("<iiq", 0, os.getpid(), 0))) == (1,)
order = ask(b"req", struct.pack("<iiq", 3, 1, 0) + struct.pack("<i", os.getpid())).decode()
settings = dict(line.split("=") for line in order.splitlines())
THEN
path = settings["ACTIVITIES_LOG_FILE"].replace(".json", "_%d.json" % os.getpid())
assert ask(b"req", struct.pack("<iiq", 1, 1, 0)) == b""
open(path, "w").write(json_text)
assert ask(b"req", struct.pack("<iiq", 3, 1, 0)) == b""
sys.stdin.read()
"""
TRAINING = """
import torch
from torch import nn
torch.set_num_threads(1)
net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
def step():
    optimizer.zero_grad()
    net(torch.randn(32, 64)).mean().backward()
    optimizer.step()
step()
print("ready", flush=True)
while True:
    step()
"""


def asking(then: str = "json_text = '{}'") -> str:
    return ASKING.replace("THEN", then)


@pytest.fixture
def door(tmp_path):
    """A private folder with a short name, as sockets need it."""
    folder = tmp_path / "d"
    folder.mkdir(mode=0o700)
    return kineto_door.Door(str(folder / "dynolog"), folder)


@pytest.fixture
def asks(started, door):
    """`asks(then)` starts a program that asks for orders once dynotune listens."""

    def start(then: str = "json_text = '{}'"):
        return started(asking(then), env={"KINETO_IPC_SOCKET_DIR": str(door.folder)})

    return start


def record(program, door, limit_s=60.0):
    """Record; the program asks as soon as the door is open."""
    process = targets.find(program.pid).ranks[0].process

    def announced(_: str) -> None:
        if not begun:
            begun.append(True)
            program.child.stdin.write("\n")
            program.child.stdin.flush()

    begun: list[bool] = []
    return kineto_door.recording([process], door, announced, limit_s)


def test_recording_is_written_and_removed_when_the_program_takes_the_order(asks, door):
    program = asks("json_text = order")
    with record(program, door) as (trace,):
        order = trace.read_text()
        assert trace.parent.stat().st_mode & 0o077 == 0
        assert f"ACTIVITIES_LOG_FILE={trace.parent}/trace.json" in order
        assert "ACTIVITIES_ITERATIONS=6" in order
    assert [path.name for path in door.folder.iterdir()] == [f"client{program.pid}"]
    assert program.child.poll() is None


def test_recording_is_given_up_when_the_program_writes_nothing(asks, door):
    program = asks("sys.stdin.read()")
    with (
        pytest.raises(CannotRunHere, match="accepted the request to record, but wrote no trace"),
        record(program, door, 3.0),
    ):
        pass
    assert not (door.folder / "dynolog").exists()


def test_recording_is_given_up_when_the_program_never_asks(started, door):
    process = targets.find(started().pid).ranks[0].process
    with (
        pytest.raises(CannotRunHere, match="did not ask whether to record"),
        kineto_door.recording([process], door, lambda _: None, 0.5),
    ):
        pass


def test_recording_is_given_up_when_the_program_ends_in_the_middle(asks, door):
    program = asks("os._exit(3)")
    with pytest.raises(CannotRunHere, match="ended before its recording was written"), record(program, door):
        pass


def test_recording_orders_nothing_of_other_programs_when_they_ask_at_the_same_door(asks, started, door):
    process = targets.find(started().pid).ranks[0].process
    stranger = asks("os._exit(1 if settings else 7)")

    def announced(_: str) -> None:
        stranger.child.stdin.write("\n")
        stranger.child.stdin.flush()

    with pytest.raises(CannotRunHere), kineto_door.recording([process], door, announced, 3.0):
        pass
    assert stranger.child.wait() == 7
    assert list(door.folder.glob("dynotune-*")) == []


def test_recording_is_refused_when_another_daemon_answers(started, door):
    process = targets.find(started().pid).ranks[0].process
    with (
        kineto_door.contextlib.closing(kineto_door._listener(door.address)),
        pytest.raises(CannotRunHere, match="another process answers there"),
        kineto_door.recording([process], door, lambda _: None, 1.0),
    ):
        pass


def test_door_is_open_again_when_a_dynotune_was_killed_and_left_its_socket(asks, door):
    kineto_door._listener(door.address).close()
    assert (door.folder / "dynolog").exists()
    with record(asks(), door) as (trace,):
        assert trace.read_text() == "{}"


def test_door_names_what_is_missing_when_the_program_was_not_prepared(started):
    process = targets.find(started().pid).ranks[0].process
    found = kineto_door.door_of(process, {})
    assert isinstance(found, Unknown)
    assert "KINETO_USE_DAEMON=1" in found.reason and "--recordable" in found.reason


CUDA = frozenset({"/x/torch/lib/libtorch_cuda.so", "/usr/lib/libcuda.so.1"})
NEW = {"torch.version": "2.13.0+cu130", "torch.cuda": "13.0"}


@pytest.mark.parametrize(
    ("env", "facts", "said"),
    [
        ({}, NEW, "TEARDOWN_CUPTI=1"),
        ({"TEARDOWN_CUPTI": "0"}, NEW, "TEARDOWN_CUPTI=1"),
        ({"TEARDOWN_CUPTI": "1"}, {**NEW, "torch.version": "2.10.0"}, "may crash"),
        ({"TEARDOWN_CUPTI": "1"}, {**NEW, "torch.cuda": "12.4"}, "may crash"),
        ({"TEARDOWN_CUPTI": "1"}, {}, "may crash"),
        ({"TEARDOWN_CUPTI": "1"}, NEW, ""),
    ],
)
def test_door_is_closed_when_a_recording_would_leave_cupti_behind(started, env, facts, said):
    process = targets.find(started(env={"KINETO_USE_DAEMON": "1", **env}).pid).ranks[0].process
    found = kineto_door.door_of(process._replace(libraries=CUDA), facts)
    assert said in found.reason if isinstance(found, Unknown) else said == ""


def test_variables_are_left_alone_when_the_program_has_a_daemon(tmp_path):
    assert prepared({"KINETO_USE_DAEMON": ""}, tmp_path) == {}
    added = prepared({"KINETO_LOG_LEVEL": "1"}, tmp_path)
    assert added["KINETO_IPC_SOCKET_DIR"] == added["KINETO_ONDEMAND_TRACE_DIR"] == str(tmp_path)
    assert added["TEARDOWN_CUPTI"] == "1" and "KINETO_LOG_LEVEL" not in added


def test_command_is_as_without_dynotune_when_it_is_run_recordable(tmp_path):
    code = (
        "import os; folder = os.environ['KINETO_IPC_SOCKET_DIR']; print(folder, os.stat(folder).st_mode "
        "& 0o77)"
    )
    words = [sys.executable, "-m", "dynotune", "run", "--recordable", "--run-dir", str(tmp_path), "--"]
    done = subprocess.run(
        [*words, sys.executable, "-c", f"{code}; raise SystemExit(5)"],
        check=False,
        capture_output=True,
        text=True,
    )
    folder, open_to_others = done.stdout.split()
    assert (done.returncode, done.stderr, open_to_others) == (5, "", "0")
    assert not Path(folder).exists()


@pytest.mark.timeout(200)
def test_diagnosis_has_the_usual_findings_when_a_prepared_training_records(started, tmp_path):
    """The real profiler, prepared by `dynotune run`, whose output stays the program's own."""
    program = tmp_path / "train.py"
    program.write_text(TRAINING)
    words = [
        sys.executable,
        "-m",
        "dynotune",
        "run",
        "--recordable",
        "--run-dir",
        str(tmp_path / "runs"),
        "--",
    ]
    running = started(words=[*words, sys.executable, str(program)])
    diagnosis = diagnose_running(running.pid, look_s=2.5, with_stacks=False, record=True)
    assert diagnosis.rung == 3
    recorded = diagnosis.recorded
    assert not isinstance(recorded, Unknown), recorded
    assert not isinstance(recorded.steps, Unknown), recorded.steps
    assert recorded.steps.num_steps >= 3
    assert "A step takes" in recorded.verdict
    assert running.child.poll() is None


def test_recording_is_refused_when_the_program_was_not_prepared(started):
    with pytest.raises(CannotRunHere, match="cannot record: the program has to be started with"):
        diagnose_running(started(READY).pid, look_s=1.5, with_stacks=False, record=True)
