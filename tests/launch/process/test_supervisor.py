"""Whatever happens, nothing of a measured command is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dynotune.launch import Exit, start
from dynotune.launch.process import launcher, processes, supervisor
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
        # What begins a daemon ends once the daemon has begun.
        until(lambda: len(launched.tree_pids()) == 24, "24 processes")
        exit_ = launched.end(grace_s)
        assert exit_.signal == (signal.SIGTERM if grace_s else signal.SIGKILL)
        assert launched.tree_pids() == []
    assert not marked.pids()


def test_supervisor_ends_processes_that_a_command_leaves_behind(python, marked, run_dir, cwd):
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


def test_leaving_the_block_waits_no_longer_than_a_limit_for_a_supervisor(
    python, marked, run_dir, cwd, monkeypatch
):
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
    (supervisor,) = (
        process.pid for process in processes.descendants(dynotune.pid) if process.parent == dynotune.pid
    )
    os.kill(dynotune.pid, signal.SIGSTOP)
    os.kill(supervisor, signal.SIGKILL)
    dynotune.kill()
    marked.wait_until_gone()


def test_a_supervisor_told_to_end_ends_everything(python, measures, marked, run_dir):
    dynotune = measures(*python(FOREST + PAUSE))
    grown(run_dir)
    (supervisor,) = (
        process.pid for process in processes.descendants(dynotune.pid) if process.parent == dynotune.pid
    )
    os.kill(supervisor, signal.SIGTERM)
    marked.wait_until_gone()
    assert dynotune.wait(120) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_kills_its_process_group_hits_only_its_own(python, marked, run_dir, cwd, number):
    code = f"import os\nos.killpg(0, {number:d})"
    with start(python(code), env=marked.env, cwd=cwd, run_dir=run_dir) as launched:
        assert launched.wait(120).signal == number


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
    "command": ["./job"], "executable": sys.argv[1], "env": {}, "cwd": "/", "own_group": False, "view": None,
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


STOPS_BEFORE_SIGNALS_ARE_TAKEN = """
import os, signal, sys
from dynotune.launch.process import supervisor

class Inbox:
    def take(self):
        # The command has started, and stopped itself at once.
        os.waitid(os.P_ALL, 0, os.WSTOPPED | os.WNOWAIT)
        return [signal.SIGCHLD]

class Messages:
    def send(self, message):
        print(*message)

order = {
    "command": ["sh", "-c", "kill -STOP $$"], "executable": "/bin/sh", "env": {}, "cwd": "/",
    "own_group": False, "view": None, "ignored": [], "blocked": [], "nice": 0, "end_the_rest": True,
}
made = supervisor.Supervisor(order, Messages(), Inbox())
print(made.start())
os.kill(made._command, signal.SIGKILL)
"""


def test_a_start_is_told_before_a_stop_when_the_command_stops_at_once():
    words = [sys.executable, "-c", STOPS_BEFORE_SIGNALS_ARE_TAKEN]
    found = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (found.stdout.split(), found.returncode) == (["pid", "stopped", "True"], 0), found.stderr


@pytest.mark.parametrize("call", ["os.setsid()", "os.setpgid(0, 0)", "os.setpgrp()"])
def test_a_command_begins_a_session_or_a_group_when_it_asks_for_one(cwd, run_dir, call):
    code = f"import os\n{call}\nprint(os.getpgrp() == os.getpid())"
    with start([sys.executable, "-c", code], env=dict(os.environ), cwd=cwd, run_dir=run_dir) as launched:
        assert launched.wait(60) == Exit(code=0), (run_dir / "stderr").read_text()
    assert (run_dir / "stdout").read_text() == "True\n"


def test_a_command_is_a_member_of_its_group_and_session_when_it_starts(cwd, run_dir):
    code = "import os; print(os.getpid() in (os.getpgrp(), os.getsid(0)), os.getpgrp() == os.getsid(0))"
    with start([sys.executable, "-c", code], env=dict(os.environ), cwd=cwd, run_dir=run_dir) as launched:
        assert launched.wait(60) == Exit(code=0)
    assert (run_dir / "stdout").read_text() == "False False\n"


def test_processes_of_other_sessions_and_groups_are_ended_when_the_command_ends(cwd, run_dir):
    code = """
import os, signal, time
def stays(call):
    read, write = os.pipe()
    if os.fork() == 0:
        call()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork():
            os._exit(0)
        print(os.getpid(), flush=True)
        os.close(write)
        time.sleep(1000)
    os.close(write)
    os.read(read, 1)
for call in (os.setsid, os.setpgrp, lambda: None):
    stays(call)
os.setsid()
"""
    with start([sys.executable, "-c", code], env=dict(os.environ), cwd=cwd, run_dir=run_dir) as launched:
        assert launched.wait(60) == Exit(code=0)
    pids = [int(line) for line in (run_dir / "stdout").read_text().split()]
    assert len(pids) == 3 and not any(processes.read(pid) for pid in pids)


def test_processes_are_ended_when_the_supervisor_is_killed_after_the_command_began_a_session(cwd, run_dir):
    code = "import os, time\nos.setsid()\nif os.fork(): print('up', flush=True)\ntime.sleep(1000)"
    with start([sys.executable, "-c", code], env=dict(os.environ), cwd=cwd, run_dir=run_dir) as launched:
        until(lambda: "up" in (run_dir / "stdout").read_text(), "the session")
        pids = launched.tree_pids()
        os.kill(launched._supervisor.pid, signal.SIGKILL)
        with pytest.raises(CannotRunHere, match="has ended by signal 9"):
            launched.wait(60)
    left = [
        process for process in map(processes.read, pids) if process is not None and process.state not in "ZX"
    ]
    assert len(pids) == 2 and not left


def test_supervisor_does_not_wait_when_the_first_process_of_the_group_was_stopped():
    if (leader := os.fork()) == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    assert os.WIFSTOPPED(os.waitpid(leader, os.WUNTRACED)[1])
    supervisor._reap_leader(leader)
    with pytest.raises(ChildProcessError):
        os.waitpid(leader, 0)
