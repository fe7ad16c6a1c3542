"""Signals to the processes of a run: who is asked for stacks, and who is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

from dynotune.launch.process import processes
from dynotune.watch.follower import Rank
from dynotune.watch.signals import kill, stacks
from dynotune.watch.watcher import RunWatcher

from ..cli.conftest import until

# Its main thread hangs in a call that runs no Python; after a fork the child is the one that is asked.
PROGRAM = """
import ctypes, os, signal, sys, threading
from dynotune.agent.facts import stacks
used = signal.SIGRTMAX - 1
signal.signal(used, lambda *_: None)
number = stacks.listen(sys.argv[1])
if sys.argv[2] == "fork":
    if os.fork():
        os.wait()
        sys.exit()
    number = stacks.listen(sys.argv[1])
assert number != used
threading.Thread(target=threading.Event().wait, daemon=True).start()
print(os.getpid(), number, flush=True)
read = ctypes.CDLL(None).read
read(0, ctypes.create_string_buffer(1), 1)
"""


@pytest.mark.parametrize("how", ["itself", "fork"])
def test_a_program_that_hangs_says_the_line_of_each_thread_and_goes_on(tmp_path, how):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    command = [sys.executable, str(path), str(tmp_path), how]
    env = {**os.environ, "DYNOTUNE_RUN": str(tmp_path)}
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        pid, number = map(int, program.stdout.readline().split())
        hangs = re.compile(r"program\.py\(16\): <module>\nthreading\.py\(\d+\): wait")
        until(lambda: hangs.fullmatch("\n".join(stacks(pid, number, tmp_path))), "the lines")
        assert stacks(pid, signal.SIGRTMIN + 1, tmp_path) == [], "it would end a program that does not answer"
        program.communicate("x", timeout=60)
    assert program.returncode == 0
    assert stacks(pid, number, tmp_path) == []


VICTIM = """
import signal, sys
for number in (signal.SIGTERM, signal.SIGRTMIN + 5):
    signal.signal(number, lambda number, frame: print("got", number, flush=True))
print("up", flush=True)
sys.stdin.read(1)
"""


@pytest.fixture(params=["another run", "no run", "before dynotune", "this run"])
def victim(request, tmp_path, monkeypatch):
    """A process that says which signals it gets, and of which run it is."""
    runs = {
        "another run": str(tmp_path / "other"),
        "this run": str(tmp_path),
        "before dynotune": str(tmp_path),
    }
    env = {**os.environ, "DYNOTUNE_RUN": runs.get(request.param, "")}
    command = [sys.executable, "-c", VICTIM]
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "up\n"
        if request.param == "before dynotune":
            ours, read = processes.read(os.getpid()), processes.read
            late = ours._replace(start_ticks=ours.start_ticks + 10**9)
            monkeypatch.setattr(processes, "read", lambda pid: late if pid == os.getpid() else read(pid))
        yield process, request.param
        process.kill()


def test_a_signal_reaches_only_processes_of_this_run_when_a_record_names_others(tmp_path, victim):
    process, whose = victim
    (tmp_path / f"stacks-{process.pid}.txt").touch()
    stacks(process.pid, signal.SIGTERM, tmp_path)
    stacks(process.pid, signal.SIGRTMIN + 5, tmp_path)
    kill([process.pid], tmp_path)
    out, _ = process.communicate("" if whose == "this run" else "x", timeout=60)
    if whose == "this run":
        assert (out, process.returncode) == (f"got {signal.SIGRTMIN + 5}\n", -signal.SIGKILL)
    else:
        assert (out, process.returncode) == ("", 0)


@pytest.mark.parametrize("answer", ["pipe", "link", "none"])
def test_nobody_is_asked_when_the_answer_could_not_be_read(tmp_path, monkeypatch, answer):
    monkeypatch.setenv("DYNOTUNE_RUN", str(tmp_path))
    path, sent = tmp_path / f"stacks-{os.getpid()}.txt", []
    if answer == "pipe":
        os.mkfifo(path)
    elif answer == "link":
        path.symlink_to("/dev/zero")
    monkeypatch.setattr(processes, "environment_holds", lambda pid, entry: True)
    monkeypatch.setattr(processes, "send", lambda process, number: sent.append(process))
    previous = signal.signal(signal.SIGRTMIN + 5, lambda *_: None)
    try:
        assert stacks(os.getpid(), signal.SIGRTMIN + 5, tmp_path) == []
    finally:
        signal.signal(signal.SIGRTMIN + 5, previous)
    assert sent == []


@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize("stacks_by", [15, "x", None, 1e9, [15]])
def test_a_watcher_asks_for_stacks_only_when_it_started_the_run(tmp_path, monkeypatch, started, stacks_by):
    asked = []
    monkeypatch.setattr("dynotune.watch.watcher.stacks", lambda *words: asked.append(words) or [])
    watcher = RunWatcher(tmp_path, started=started)
    watcher.follower.close()
    rank = Rank("0", os.getpid())
    rank.stacks_by = stacks_by
    watcher.follower.ranks[rank.pid] = rank
    watcher._details()
    assert bool(asked) == (started and isinstance(stacks_by, int))


def test_a_joined_watcher_ends_no_command(tmp_path):
    watcher = RunWatcher(tmp_path)
    watcher.follower.close()
    with pytest.raises(ValueError, match="did not start the command"):
        watcher.end_command()
