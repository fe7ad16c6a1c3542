"""Two that measure on the same cores or GPU take turns."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dynotune.launch import measuring
from dynotune.launch.process import lock
from dynotune.schema.errors import CannotRunHere

from ..conftest import SOURCE, until

# Says what happens, and lets go when its stdin is closed.
HOLDS = """
import json, sys
from pathlib import Path
from dynotune.launch import measuring
folder, cpus, gpus = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
with measuring(folder, cpus=cpus, gpus=gpus, on_wait=lambda pid: print("waits for", pid, flush=True)):
    print("holds", flush=True)
    sys.stdin.read()
print("let go", flush=True)
"""


class Holder:
    def __init__(self, folder, cpus, gpus):
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDS, str(folder), cpus, gpus],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": SOURCE},
        )  # fmt: skip
        self.pid = self.process.pid

    def says(self):
        return self.process.stdout.readline().strip()

    def let_go(self):
        self.process.stdin.close()

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def holder(tmp_path):
    holders = []

    def hold(cpus="[0, 1]", gpus="[]"):
        holders.append(Holder(tmp_path, cpus, gpus))
        return holders[-1]

    yield hold
    for one in holders:
        one.kill()
        one.process.stdout.close()
        one.process.stdin.close()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("[0, 1]", "[]"), ("[1, 2]", "[]")),
        (("[0]", "[0]"), ("[1]", "[0]")),
        (("[0]", "[3]"), ("[1]", "null")),
        (("[0]", "null"), ("[1]", "null")),
        (("[0]", "null"), ("[1]", "[7]")),
    ],
)
def test_the_second_on_the_same_cores_or_gpu_waits_and_says_for_whom(first, second, holder):
    one = holder(*first)
    assert one.says() == "holds"
    two = holder(*second)
    assert two.says() == f"waits for {one.pid}"
    one.let_go()
    assert one.says() == "let go"
    assert two.says() == "holds"


@pytest.mark.parametrize("second", [("[2, 3]", "[1]"), ("[2]", "[]"), ("[]", "[]")])
def test_others_do_not_wait(second, holder):
    one = holder("[0, 1]", "[0]")
    assert one.says() == "holds"
    assert holder(*second).says() == "holds"


def test_a_killed_holder_holds_nothing(holder):
    one = holder()
    assert one.says() == "holds"
    two = holder()
    assert two.says() == f"waits for {one.pid}"
    one.kill()
    assert two.says() == "holds"


def test_one_that_waits_holds_nothing_meanwhile(holder):
    one = holder("[5]")
    assert one.says() == "holds"
    two = holder("[3, 5]")
    assert two.says() == f"waits for {one.pid}"
    assert holder("[3, 4]").says() == "holds"


def test_overlapping_sets_all_get_their_turn(holder):
    holders = [holder(cpus) for cpus in ("[0, 1]", "[1, 2]", "[2, 0]", "[0, 1, 2]", "[2, 1]")]
    for one in holders:
        one.let_go()
    for one in holders:
        until(lambda one=one: one.says() == "let go", "its turn")


def test_interrupting_the_wait_is_possible(holder):
    one = holder()
    assert one.says() == "holds"
    two = holder()
    assert two.says().startswith("waits")
    two.process.send_signal(signal.SIGINT)
    assert two.process.wait(120) != 0


def test_one_that_is_stopped_is_not_waited_for(holder, tmp_path):
    one = holder()
    assert one.says() == "holds"
    one.process.send_signal(signal.SIGSTOP)
    with (
        pytest.raises(CannotRunHere, match=f"process {one.pid}.*is suspended") as raised,
        measuring(tmp_path, cpus=[0], gpus=[], on_wait=lambda pid: None),
    ):
        pass
    assert "--no-lock" in raised.value.hint


def test_one_that_holds_for_very_long_is_not_waited_for_without_end(holder, tmp_path, monkeypatch):
    one = holder()
    assert one.says() == "holds"
    monkeypatch.setattr(lock, "_LONGEST_WAIT_S", 0.0)
    with (
        pytest.raises(CannotRunHere, match=f"process {one.pid}.*for hours"),
        measuring(tmp_path, cpus=[0], gpus=[], on_wait=lambda pid: None),
    ):
        pass


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(CannotRunHere, match="lock") as raised,
        measuring(tmp_path / "file" / "state", cpus=[0], gpus=[], on_wait=print),
    ):
        pass
    assert "--no-lock" in raised.value.hint


def test_lock_is_not_kept_by_processes_that_a_command_starts(tmp_path, run_dir, cwd, holder):
    from dynotune.launch import start

    with (
        measuring(tmp_path, cpus=[0], gpus=[], on_wait=print),
        start(
            ["ls", "-l", "/proc/self/fd"], env={"PATH": "/bin:/usr/bin"}, cwd=cwd, run_dir=run_dir
        ) as launched,
    ):
        launched.wait(120)
    assert ".lock" not in Path(run_dir, "stdout").read_text()
    assert holder("[0]").says() == "holds"
