"""A few faults of the standing attack on processes, and what it would say of one that does harm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from . import processes
from .processes import FAULTS, SCENES, World, attack, drawn

NUM_FAULTS = 2


def test_nothing_is_left_or_lost_after_a_few_faults():
    counts = attack(NUM_FAULTS, seed=41)
    assert counts.failures == []
    assert counts.tried.total() == counts.held.total()
    assert counts.held.total() >= NUM_FAULTS // 2


def test_every_fault_meets_every_kind_of_scene_that_it_fits_and_can_be_made_again():
    met = {(scene.name, fault.name) for scene, fault, _ in (drawn(at, seed=1) for at in range(20_000))}
    assert met == {(scene.name, fault.name) for scene in SCENES for fault in FAULTS if fault.fits(scene)}
    assert [drawn(at, 7)[1].name for at in range(50)] == [drawn(at, 7)[1].name for at in range(50)]


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path, SCENES[0])
    yield world
    world.end()


@pytest.mark.parametrize("place", ["tmp/dt-1", "runs/x/dt-1", "state/dynotune/leases/note.json"])
def test_processes_attack_sees_files_that_are_left(place, world):
    (world.folder / place).mkdir(parents=True)
    with pytest.raises(processes.Lost, match="left"):
        processes._check_left(world)


def test_a_process_that_is_left_is_seen(world, monkeypatch):
    monkeypatch.setattr(processes, "LONGEST_GONE_S", 0.0)
    process = world._start(["sleep", "1000"])
    while process.pid not in world.pids():  # its environment is there a moment after it
        os.sched_yield()
    with pytest.raises(processes.Lost, match="sleep"):
        processes._check_gone(world, but=b"")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    processes._check_gone(world, but=b"")


def test_a_process_is_seen_by_its_cgroup_when_it_has_no_environment_and_its_own_session(world, monkeypatch):
    if world.group is None:
        pytest.skip("no cgroup of version 2 can be made here")
    monkeypatch.setattr(processes, "LONGEST_GONE_S", 0.0)
    away = "import os\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
    away += "os.execve('/bin/sleep', ['sleep', '1000'], {})"
    world._start([sys.executable, "-c", away]).wait()
    while not any(processes._command(pid).startswith(b"sleep") for pid in world.pids()):
        os.sched_yield()
    with pytest.raises(processes.Lost, match="processes are left"):
        processes._check_gone(world, but=b"")
    world.end()
    assert not world.group.exists()


def test_a_lost_pair_and_a_mistake_are_seen(world):
    processes._check_kept({"pairs": [1]}, {"pairs": [1, 2]})
    processes._check_kept({"blocks": {"num_blocks": 4}}, {"blocks": {"num_blocks": 6}})
    with pytest.raises(processes.Lost, match="pairs"):
        processes._check_kept({"pairs": [1, 2]}, {"pairs": [2]})
    (world.folder / "said").write_text('  File "/x/dynotune/cli/run.py", line 1, in run\n')
    with pytest.raises(processes.Lost, match="mistake"):
        processes._check_said(world, 1)


def test_an_attempt_that_seems_too_long_or_to_run_backwards_is_seen():
    def attempts(began, ended):
        return {"attempts": [{"began": f"2026-01-01T{began}+00:00", "ended": f"2026-01-01T{ended}+00:00"}]}

    processes._check_attempts(attempts("10:00:00", "10:00:09"), 10.0)
    for ended in ("11:00:09", "09:00:00"):
        with pytest.raises(processes.Lost, match="an attempt of at most 10 s"):
            processes._check_attempts(attempts("10:00:00", ended), 10.0)


def test_a_mount_is_seen_when_it_is_in_another_namespace(tmp_path):
    (tmp_path / "place").mkdir()
    mounts = "mount -t tmpfs none place && echo up && read line"
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", mounts],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        if process.stdout.readline() != "up\n":
            pytest.skip("no mount can be made here")
        assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
        assert any("place" in line for line in processes.mounts_of(tmp_path))
        process.communicate("\n")
    assert processes.mounts_of(tmp_path) == []


def test_a_lock_that_is_held_a_hang_and_a_changed_project_are_seen(world, monkeypatch):
    path = world.state / "dynotune" / "boot.lock"
    path.parent.mkdir(parents=True)
    holds = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, 2); print(flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", holds, path], stdin=pipe, stdout=pipe) as holder:
        holder.stdout.readline()
        with pytest.raises(processes.Lost, match="locks"):
            processes._check_left(world)
        holder.communicate(b"\n")
    processes._check_left(world)
    before = processes._contents(world.project)
    (world.project / "made").touch()
    assert processes._contents(world.project) != before
    monkeypatch.setattr(processes, "LONGEST_S", 0.0)
    process = world._start(["sleep", "1000"])
    with pytest.raises(processes.Lost, match="it hangs"):
        world.ended(process)
    process.kill()
    process.wait()
