"""Whatever happens, nothing of a measured command is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dynotune.launch import start
from dynotune.launch.process import launcher, processes
from dynotune.schema.errors import CannotRunHere

from ..conftest import FOREST, until

PAUSE = "import signal\nsignal.pause()\n"
RANK = """
import pathlib, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
pathlib.Path(sys.argv[1], f"rank{dist.get_rank()}").touch()
while True:
    dist.all_reduce(torch.ones(1))
"""


def grown(run_dir):
    until(lambda: "grown" in (run_dir / "stdout").read_text(), "all children up")


@pytest.fixture
def python(target_python):
    """`python(code)`: the words of a command."""
    return lambda code: [target_python, "-c", code]


@pytest.mark.parametrize("grace_s", [0.0, 0.2])
def test_ending_finds_sessions_daemons_deaf_ones_and_many(python, grace_s, marked, run_dir, cwd):
    with start(python(FOREST + PAUSE), env=marked.env, cwd=cwd, run_dir=run_dir) as launched:
        grown(run_dir)
        assert len(launched.tree_pids()) == 24
        exit_ = launched.end(grace_s)
        assert exit_.signal == (signal.SIGTERM if grace_s else signal.SIGKILL)
        assert launched.tree_pids() == []
    assert not marked.pids()


def test_what_a_command_leaves_behind_is_ended_when_it_exits(python, marked, run_dir, cwd):
    with start(python(FOREST + "os._exit(7)"), env=marked.env, cwd=cwd, run_dir=run_dir) as launched:
        assert launched.wait(120).code == 7
    assert not marked.pids()


def test_leaving_the_block_ends_the_command(python, marked, run_dir, cwd):
    with (
        pytest.raises(KeyboardInterrupt),
        start(python(FOREST + PAUSE), env=marked.env, cwd=cwd, run_dir=run_dir),
    ):
        grown(run_dir)
        raise KeyboardInterrupt
    assert not marked.pids()


@pytest.mark.parametrize("sandbox", ["none", "auto"])
def test_sigkill_of_dynotune_leaves_nothing(python, sandbox, measures, marked, run_dir):
    dynotune = measures(*python(FOREST + PAUSE), sandbox=sandbox)
    grown(run_dir)
    assert len(marked.pids()) == 26
    dynotune.kill()
    marked.wait_until_gone()
    until(lambda: sorted(path.name for path in run_dir.iterdir()) == ["stderr", "stdout"], "copies removed")


def test_sigkill_of_the_supervisor_leaves_nothing_and_is_said(python, marked, run_dir, cwd):
    with start(python(FOREST + PAUSE), env=marked.env, cwd=cwd, run_dir=run_dir) as launched:
        grown(run_dir)
        supervisor = processes.read(launched.pid).parent
        os.kill(supervisor, signal.SIGKILL)
        with pytest.raises(CannotRunHere, match="by signal 9"):
            launched.wait(120)
    assert not marked.pids()


def test_an_orphan_that_does_not_die_is_named_after_a_limit(python, marked, run_dir, cwd, monkeypatch):
    send, spared = processes.send, []

    def stuck(process, number):
        """A process that is stuck in the kernel takes a signal, and stays."""
        return process.pid in spared or send(process, number)

    monkeypatch.setattr(processes, "send", stuck)
    monkeypatch.setattr(launcher, "_UNKILLABLE_S", 0.5)
    with start(python(FOREST + PAUSE), env=marked.env, cwd=cwd, run_dir=run_dir) as launched:
        grown(run_dir)
        spared.append(next(pid for pid in launched.tree_pids() if pid != launched.pid))
        os.kill(processes.read(launched.pid).parent, signal.SIGKILL)
        with pytest.raises(CannotRunHere, match=f"do not die.*: {spared[0]}"):
            launched.wait(120)
    assert marked.pids() == set(spared)


def test_leaving_the_block_waits_no_longer_than_a_limit_for_a_supervisor(python, marked, run_dir, cwd, monkeypatch):
    monkeypatch.setattr(launcher, "_UNKILLABLE_S", 0.5)
    with (
        pytest.raises(CannotRunHere, match="do not die"),
        start(python(FOREST + PAUSE), env=marked.env, cwd=cwd, run_dir=run_dir) as launched,
    ):
        grown(run_dir)
        supervisor = processes.read(launched.pid).parent
        os.kill(supervisor, signal.SIGSTOP)
    # It goes on ending what is left, by itself.
    os.kill(supervisor, signal.SIGCONT)
    marked.wait_until_gone()


def test_the_command_dies_with_a_supervisor_whose_dynotune_is_gone_too(python, measures, marked, run_dir):
    dynotune = measures(*python("print('grown', flush=True)\n" + PAUSE))
    grown(run_dir)
    (supervisor,) = (process.pid for process in processes.descendants(dynotune.pid) if process.parent == dynotune.pid)
    os.kill(dynotune.pid, signal.SIGSTOP)
    os.kill(supervisor, signal.SIGKILL)
    dynotune.kill()
    marked.wait_until_gone()


def test_a_supervisor_told_to_end_ends_everything(python, measures, marked, run_dir):
    dynotune = measures(*python(FOREST + PAUSE))
    grown(run_dir)
    (supervisor,) = (process.pid for process in processes.descendants(dynotune.pid) if process.parent == dynotune.pid)
    os.kill(supervisor, signal.SIGTERM)
    marked.wait_until_gone()
    assert dynotune.wait(120) == 0


def test_a_command_that_kills_its_process_group_hits_only_its_own(python, marked, run_dir, cwd):
    code = "import os, signal\nos.killpg(0, signal.SIGTERM)"
    with start(python(code), env=marked.env, cwd=cwd, run_dir=run_dir) as launched:
        assert launched.wait(120).signal == signal.SIGTERM


def test_processes_that_fork_faster_than_one_looks_are_all_ended(python, marked, run_dir, cwd):
    code = """
import os, signal, time
print("grown", flush=True)
generation = 0
while True:
    if os.fork():
        if generation % 3:
            os._exit(0)
        time.sleep(0.05)
    generation += 1
    os.setsid()
"""
    with start(python(code), env=marked.env, cwd=cwd, run_dir=run_dir) as launched:
        grown(run_dir)
        launched.end(0.0)
    assert not marked.pids()


@pytest.mark.parametrize("how", [pytest.param("end", marks=pytest.mark.long), "kill dynotune"])
def test_torchrun_and_its_ranks_are_ended(how, measures, marked, run_dir, cwd, target_python):
    torchrun = Path(target_python).with_name("torchrun")
    if not torchrun.exists():
        pytest.skip("torch is not installed here")
    (cwd / "rank.py").write_text(RANK)
    dynotune = measures(str(torchrun), "--nproc-per-node", "2", "--standalone", "rank.py", "{run_dir}")
    ranks = [run_dir / "files" / f"rank{rank}" for rank in range(2)]
    until(lambda: all(path.exists() for path in ranks), "both ranks at work")
    dynotune.send_signal(signal.SIGINT if how == "end" else signal.SIGKILL)
    marked.wait_until_gone()


@pytest.mark.parametrize("hangs", ["supervisor", "command"])
def test_a_start_that_hangs_is_said_after_a_limit(hangs, marked, run_dir, cwd, monkeypatch):
    """As with a network drive that does not answer."""
    forever = "import signal\nsignal.pause()\n"
    if hangs == "command":
        # In the child, before it becomes the command.
        forever = "import signal\nfrom dynotune.launch.process import supervisor\nsupervisor._START_S = 0.5\n"
        forever += "supervisor._become_command = lambda *_, **__: signal.pause()\n"
    else:
        monkeypatch.setattr(launcher, "_START_S", 0.5)
    first, path, rest = launcher._SUPERVISOR.partition("sys.path.append(sys.argv[1])\n")
    monkeypatch.setattr(launcher, "_SUPERVISOR", first + path + forever + rest)
    with pytest.raises(CannotRunHere, match="did not start in time"):
        start([sys.executable, "-c", PAUSE], env=marked.env, cwd=cwd, run_dir=run_dir, sandbox="auto")
    assert sorted(path.name for path in run_dir.iterdir()) == ["stderr", "stdout"]
    assert not [p for p in processes.descendants(os.getpid()) if b"supervisor" in cmdline(p.pid)]


def cmdline(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes()


ENDS_BEFORE_SIGNALS_ARE_TAKEN = """
import os, signal, sys
from dynotune.launch.process import supervisor

class Inbox:
    def take(self):
        # The command has failed to start, and stays to be reaped.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        return [signal.SIGCHLD]

class Messages:
    def send(self, message):
        print(message["failed"], message["errno"])

order = {
    "command": ["./job"], "executable": sys.argv[1], "env": {}, "cwd": "/", "own_session": False, "view": None,
    "ignored": [], "blocked": [], "nice": 0, "end_the_rest": True,
}
print(supervisor.Supervisor(order, Messages(), Inbox()).start())
"""


def test_a_command_that_failed_to_start_and_was_reaped_with_the_signals_is_told(tmp_path):
    job = tmp_path / "job"
    job.write_text("#!/nowhere/python\n")
    job.chmod(0o755)
    words = [sys.executable, "-c", ENDS_BEFORE_SIGNALS_ARE_TAKEN, str(job)]
    found = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (found.stdout.split(), found.returncode) == (["exec", "2", "False"], 0), found.stderr
