"""Leftovers of a run whose dynotune and supervisor were killed together are found by a later start, nothing
else."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from dynotune.launch import start, sweep
from dynotune.launch.process import leases, processes
from dynotune.launch.process.launcher import Launched
from dynotune.launch.process.leases import Lease

from ..conftest import FOREST, until
from .test_sandbox import need_overlay

# A daemon that has nothing of ours in its environment, and a megabyte of copies.
NAMELESS = """
if os.fork() == 0:
    os.setsid()
    code = "import os, signal; print(os.getpid(), 'nameless', flush=True); signal.pause()"
    os.execve(sys.executable, [sys.executable, "-c", code], {})
open("copied", "wb").write(bytes(1 << 20))
signal.pause()
"""


def is_gone(pid):
    process = processes.read(pid)
    return process is None or process.state in "ZX"


@pytest.fixture(autouse=True)
def state(tmp_path, marked, monkeypatch):
    """The user's state folder."""
    marked.env["XDG_STATE_HOME"] = str(tmp_path / "state")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "dynotune" / "leases"


@pytest.fixture
def killed(measures, marked, run_dir):
    """`killed(sandbox)`: a run was killed together with its supervisor. Returns the id of its nameless
    daemon."""

    def kill_both(sandbox):
        dynotune = measures(sys.executable, "-c", FOREST + NAMELESS, sandbox=sandbox)
        said = until(
            lambda: [x for x in (run_dir / "stdout").read_text().split("\n") if "nameless" in x], "all up"
        )
        supervisor = next(p.pid for p in processes.descendants(dynotune.pid) if p.parent == dynotune.pid)
        for pid in (dynotune.pid, supervisor):
            os.kill(pid, signal.SIGSTOP)
        for pid in (dynotune.pid, supervisor):
            os.kill(pid, signal.SIGKILL)
        dynotune.wait()
        until(lambda: is_gone(supervisor), "supervisor gone")
        return int(said[0].split()[0])

    yield kill_both
    for line in (run_dir / "stdout").read_text().split("\n"):
        if "nameless" in line and not is_gone(int(line.split()[0])):
            os.kill(int(line.split()[0]), signal.SIGKILL)


def test_dynotune_removes_the_copies_when_the_supervisor_is_killed_after_its_report(
    cwd, run_dir, state, monkeypatch
):
    need_overlay(cwd, run_dir)
    looks = Launched._look_at_changes

    def killed_meanwhile(launched):
        looks(launched)
        os.kill(launched._supervisor.pid, signal.SIGKILL)

    monkeypatch.setattr(Launched, "_look_at_changes", killed_meanwhile)
    with start(["touch", "made"], env=dict(os.environ), cwd=cwd, run_dir=run_dir, sandbox="auto") as launched:
        assert launched.wait(120).status == 0
    assert launched.changed_files == ["made"]
    assert list(state.iterdir()) == [] and not list(run_dir.glob("dt-*"))


def test_dynotune_ends_a_daemon_by_its_view_when_the_supervisor_alone_is_killed(
    measures, marked, run_dir, cwd
):
    need_overlay(cwd, run_dir)
    dynotune = measures(sys.executable, "-c", FOREST + NAMELESS, sandbox="auto")
    said = until(lambda: re.search(r"(\d+) nameless", (run_dir / "stdout").read_text()), "all up")
    supervisor = next(p.pid for p in processes.descendants(dynotune.pid) if p.parent == dynotune.pid)
    os.kill(supervisor, signal.SIGKILL)
    dynotune.wait()
    assert is_gone(int(said[1])) and not marked.pids()


def test_a_later_start_ends_what_is_left_and_removes_the_copies(killed, marked, run_dir, cwd, state):
    need_overlay(cwd, run_dir)
    nameless = killed("auto")
    assert marked.pids()
    left = sweep()
    assert left.num_processes >= 23
    assert left.num_bytes >= 1 << 20
    assert not marked.pids()
    until(lambda: is_gone(nameless), "nameless ended")
    assert sorted(path.name for path in run_dir.iterdir()) == ["stderr", "stdout"]
    assert list(state.iterdir()) == []


def test_without_a_view_the_processes_are_found_by_their_run_folder(killed, marked, state):
    killed("none")
    assert sweep().num_processes >= 22
    assert not marked.pids()
    assert list(state.iterdir()) == []


def test_a_run_that_lives_is_left_alone_and_leaves_no_note(marked, run_dir, cwd, state):
    code = "import signal\nprint('up', flush=True)\nsignal.pause()"
    with start(
        [sys.executable, "-c", code], env=marked.env, cwd=cwd, run_dir=run_dir, sandbox="auto"
    ) as launched:
        until(lambda: "up" in (run_dir / "stdout").read_text(), "at work")
        assert sweep() == leases.Leftovers()
        assert launched.poll() is None
        assert len(list(state.iterdir())) == 1
    assert list(state.iterdir()) == []


def test_a_run_that_goes_on_in_the_folder_of_a_killed_one_is_left_alone(
    killed, measures, marked, run_dir, state
):
    killed("none")
    again = measures(sys.executable, "-c", "import signal\nsignal.pause()")
    (command,) = processes.descendants(next(p.pid for p in processes.descendants(again.pid)))
    assert sweep() == leases.Leftovers()
    assert not is_gone(command.pid)
    again.send_signal(signal.SIGINT)
    again.wait()
    assert sweep().num_processes >= 22
    assert not marked.pids()


def test_a_supervisor_that_outlives_dynotune_takes_the_note_away(measures, marked, state):
    measures(sys.executable, "-c", "import signal\nsignal.pause()", sandbox="auto").kill()
    marked.wait_until_gone()
    until(lambda: list(state.iterdir()) == [], "note taken away")


def note(state, text=None, **fields):
    """The note of a run that is dead."""
    lease = Lease()
    lease.take()
    path = state / f"{lease.token}.json"
    lease.close()
    path.write_text(json.dumps(json.loads(path.read_text()) | fields) if text is None else text)
    return lease


@pytest.mark.parametrize(
    "make",
    [
        lambda copies, elsewhere: (elsewhere, elsewhere),
        lambda copies, elsewhere: copies.symlink_to(elsewhere) or (copies, elsewhere),
    ],
    ids=["another name", "a link"],
)
def test_a_folder_that_is_no_copy_of_ours_stays(make, state, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "upper").mkdir(parents=True)
    lease = note(state)
    named, stays = make(lease.scratch_below(tmp_path), elsewhere)
    path = state / f"{lease.token}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"scratch": str(named)}))
    assert sweep() == leases.Leftovers()
    assert (stays / "upper").exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"token": 1}', '{"token": "", "scratch": "", "where": "", "run_dir": ""}']
)
def test_a_note_that_says_nothing_ends_nothing(text, state):
    note(state, text)
    assert sweep() == leases.Leftovers()


def test_copies_from_before_the_machine_was_started_anew_are_removed_and_its_processes_not_looked_for(
    state, tmp_path, marked, run_dir, cwd
):
    code = "import signal\nprint('up', flush=True)\nsignal.pause()"
    with start([sys.executable, "-c", code], env=marked.env, cwd=cwd, run_dir=run_dir):
        until(lambda: "up" in (run_dir / "stdout").read_text(), "at work")
        lease = note(state, where="another boot", run_dir=str(run_dir))
        scratch = lease.scratch_below(tmp_path)
        (scratch / "upper").mkdir(parents=True)
        path = state / f"{lease.token}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"scratch": str(scratch)}))
        assert sweep().num_processes == 0
        assert marked.pids()
    assert not scratch.exists()
    assert not path.exists()


def test_the_note_of_another_machine_stays_for_a_month(state, tmp_path):
    lease = note(state, where="another boot", scratch=str(tmp_path / "not here"))
    sweep()
    path = state / f"{lease.token}.json"
    assert path.exists()
    os.utime(path, (time.time() - 31 * 86400,) * 2)
    sweep()
    assert not path.exists()


@pytest.mark.parametrize("home", ["/dev/null", "/proc"])
def test_a_run_needs_no_room_for_its_note(home, monkeypatch, marked, run_dir, cwd):
    monkeypatch.setenv("XDG_STATE_HOME", home)
    with start(["/bin/true"], env=marked.env, cwd=cwd, run_dir=run_dir, sandbox="auto") as launched:
        assert launched.wait(120).code == 0
    assert sweep() == leases.Leftovers()


def test_a_user_without_a_home_has_no_notes(monkeypatch, marked, run_dir, cwd):
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    with start(["/bin/true"], env=marked.env, cwd=cwd, run_dir=run_dir) as launched:
        assert launched.wait(120).code == 0
    assert sweep() == leases.Leftovers()


def no_home():
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("what", ["note", "folder", "copies"])
def test_nothing_of_another_user_is_taken(what, state, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root to give files away")
    lease = note(state)
    scratch, path = lease.scratch_below(tmp_path), state / f"{lease.token}.json"
    (scratch / "upper").mkdir(parents=True)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"scratch": str(scratch)}))
    shutil.chown({"note": path, "folder": state, "copies": scratch}[what], 65534)
    assert sweep() == leases.Leftovers()
    assert scratch.exists()
