"""From a process id to the program: shells, launchers and workers lead to it, and what is no program is
refused."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dynotune.running import targets
from dynotune.schema.errors import CannotRunHere, UsageError

from .conftest import READY, eventually

WORKER = "open('/proc/self/comm', 'w').write('pt_data_worker')"
TWO_CHILDREN = """
import os, subprocess, sys
children = [
    subprocess.Popen(
        [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "RANK": str(rank)},
    )
    for rank in (1, 0)
]
for child in children:
    child.stdout.readline()
print("ready", *(child.pid for child in children), flush=True)
sys.stdin.read()
"""


def test_target_is_the_process_itself_when_it_is_python(started):
    program = started()
    target = targets.find(program.pid)
    assert [rank.process.pid for rank in target.ranks] == [program.pid]
    assert target.pids == [program.pid]
    assert target.notes == ()


def test_target_is_the_python_below_when_the_process_is_a_shell(started):
    program = started(words=["sh", "-c", f'{sys.executable} -c "{READY}"; true'])
    target = targets.find(program.pid)
    (rank,) = target.ranks
    assert rank.process.parent == program.pid
    assert f"Process {program.pid} (sh) is not the program itself." in target.notes[0]


def test_target_has_all_ranks_in_order_when_the_process_is_torchrun(started, tmp_path):
    launcher = tmp_path / "torchrun"
    launcher.write_text(TWO_CHILDREN)
    program = started(words=[sys.executable, str(launcher)], is_ready=False)
    first, second = map(int, program.ready().split())
    target = targets.find(program.pid)
    assert [(rank.number, rank.process.pid) for rank in target.ranks] == [(0, second), (1, first)]
    assert [one.pid for one in target.others] == [program.pid]


def test_command_is_of_the_parent_when_multiprocessing_started_the_ranks(started, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(
        "import multiprocessing, os, sys\n"
        "def rank(pipe):\n    pipe.send(1)\n    pipe.recv()\n"
        "if __name__ == '__main__':\n"
        "    pipes = [multiprocessing.Pipe() for _ in range(2)]\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    [context.Process(target=rank, args=(far,)).start() for _, far in pipes]\n"
        "    [near.recv() for near, _ in pipes]\n"
        "    print('ready', flush=True)\n    sys.stdin.read()\n"
    )
    target = targets.find(started(words=[sys.executable, str(program)]).pid)
    assert len(target.ranks) == 2
    assert target.command == (sys.executable, str(program))


def test_target_is_the_program_of_the_loader_when_the_process_is_a_worker(started):
    code = f"""
import os, sys
read, write = os.pipe()
child = os.fork()
if not child:
    {WORKER}
    os.write(write, b"1")
    sys.stdin.read()
    os._exit(0)
os.read(read, 1)
print("ready", child, flush=True)
sys.stdin.read()
"""
    program = started(code, is_ready=False)
    worker = int(program.ready())
    target = targets.find(worker)
    (rank,) = target.ranks
    assert (rank.process.pid, [one.pid for one in rank.workers]) == (program.pid, [worker])
    assert f"Process {worker} is a loader worker of process {program.pid}" in target.notes[0]


def test_target_is_the_command_when_the_process_is_a_dynotune_that_runs_it(started, tmp_path):
    words = [sys.executable, "-m", "dynotune", "run", "--run-dir", str(tmp_path / "runs"), "--"]
    program = started(words=[*words, sys.executable, "-c", READY])
    (rank,) = targets.find(program.pid).ranks
    assert rank.process.pid != program.pid
    assert rank.process.arguments[-1] == READY


def test_target_is_refused_when_the_process_has_ended():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    with pytest.raises(CannotRunHere, match=f"There is no process {child.pid}"):
        targets.find(child.pid)


def test_target_is_refused_when_the_process_is_a_zombie(started):
    program = started("print('ready')")
    assert eventually(lambda: targets.process_files.read(program.pid) is None)
    with pytest.raises(CannotRunHere, match="it has ended"):
        targets.find(program.pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts programs of other users")
def test_target_is_refused_when_the_process_is_of_another_user(started):
    program = started(words=["/bin/sh", "-c", "echo ready; cat"], user=65534)
    with pytest.raises(CannotRunHere, match="belongs to another user") as refused:
        targets.find(program.pid)
    assert "Run dynotune as that user" in refused.value.hint


def test_target_is_refused_when_nothing_below_it_is_python(started):
    program = started(words=["sh", "-c", "echo ready; cat; true"])
    with pytest.raises(CannotRunHere, match=r"\(sh\) is not a Python process and has no"):
        targets.find(program.pid)


def test_target_is_refused_when_it_is_this_dynotune():
    with pytest.raises(UsageError, match="is this dynotune"):
        targets.find(os.getpid())


def test_target_is_refused_when_it_is_a_dynotune_without_a_program(started, tmp_path):
    other = tmp_path / "dynotune"
    other.write_text(READY)
    program = started(words=[sys.executable, str(other)])
    with pytest.raises(CannotRunHere, match="is a dynotune process, and no program runs below it"):
        targets.find(program.pid)


def test_target_name_is_quoted_when_the_program_chose_a_hostile_one(started):
    program = started("open('/proc/self/comm', 'wb').write(b'\\x1b[31m) R 1\\n'); " + READY)
    (rank,) = targets.find(program.pid).ranks
    assert rank.process.pid == program.pid
    assert targets.quoted(rank.process) == "\\x1b[31m) R 1\\n"[: len(targets.quoted(rank.process))]
    assert targets.quoted(rank.process).isprintable()
