"""Stacks of the main thread, sampled during the whole run: the program does not notice, however it ends."""

from __future__ import annotations

import pytest

from dynotune.measure.account import account
from dynotune.schema.events import AgentError, ProcessExited, StacksSampled

UNTIL_SAMPLED = """
import os, pathlib, signal
def seen():
    files = pathlib.Path(os.environ["DYNOTUNE_RUN"]).glob("*.rec")
    return sum(file.read_bytes().count(b'"stacks"') for file in files)
def work(num=1):
    before = seen()
    while os.environ["DYNOTUNE_RUN"] and seen() < before + num:
        sum(range(1000))
"""
FORKS = """
import threading, warnings
warnings.simplefilter("error")
pid = os.fork()
if not pid:
    work(0)
    os._exit(3)
print("CHILD", os.waitpid(pid, 0)[1], threading.active_count())
work()
"""


def test_stacks_are_sampled_when_the_program_forks_and_it_sees_no_thread(script, run_under_agent):
    path = script(UNTIL_SAMPLED + "work()" + FORKS)
    ran = run_under_agent([path], account=True)
    plain = run_under_agent([path], env={"DYNOTUNE_RUN": ""})
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, plain.stdout, plain.stderr)
    assert "CHILD 768 1" in ran.stdout
    sampling = [record for record in ran.records if record.all(StacksSampled)]
    assert len(sampling) == 1  # the child is not sampled
    (record,) = sampling
    assert not record.all(AgentError)
    exit_ = record.last(ProcessExited)
    found = account([record], ran.launched_s, exit_.at_s, command=["program"])
    (lines,) = [row for row in found.rows if row.activity == "own"]
    assert all("program.py(" in each.name for each in lines.details) and lines.details
    assert sum(row.took_s for row in found.rows) == pytest.approx(exit_.at_s - ran.launched_s)


@pytest.mark.parametrize(
    ("end", "code"), [("os.kill(os.getpid(), signal.SIGKILL)", -9), ("os._exit(7)", 7), ("1 / 0", 1)]
)
def test_stacks_are_kept_when_the_program_ends_suddenly(script, run_under_agent, end, code):
    ran = run_under_agent([script(UNTIL_SAMPLED + "work()\n" + end)], account=True)
    assert ran.returncode == code
    (record,) = ran.records
    frames = [frame for event in record.all(StacksSampled) for frame in event.frames]
    assert any(frame.endswith(": work") for frame in frames)


WAITS_FOR_A_SIGNAL = """
work()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
pid = os.fork()
if not pid:
    os.kill(os.getppid(), signal.SIGUSR1)
    os._exit(0)
print("GOT", signal.sigwait([signal.SIGUSR1]) == signal.SIGUSR1)
os.waitpid(pid, 0)
"""


def test_stack_clock_takes_no_signal_when_the_program_blocks_it_to_wait_for_it(script, run_under_agent):
    ran = run_under_agent([script(UNTIL_SAMPLED + WAITS_FOR_A_SIGNAL)], account=True)
    assert (ran.returncode, ran.stdout) == (0, "GOT True\n"), ran.stderr


COLLECTS = """
import gc, sys, threading
sys.setswitchinterval(1e-6)  # the program gets turns while its stack is looked at
threads, wrong = set(), 0
class Cycle:
    def __init__(self):
        self.me = self
    def __del__(self):
        threads.add(threading.get_ident())
def deep(num):
    global wrong
    if num:
        return deep(num - 1)
    before = seen()
    while seen() < before + 3:
        for _ in range(300):
            gc.enable()
            wrong += not gc.isenabled()
            Cycle()
            gc.disable()
            wrong += gc.isenabled()
        gc.enable()
        for _ in range(3000):
            Cycle()
deep(250)
print("ELSEWHERE", threads - {threading.get_ident()}, "WRONG", wrong)
"""


def test_stack_clock_frees_and_collects_nothing_when_the_program_gets_turns_meanwhile(
    script, run_under_agent
):
    ran = run_under_agent([script(UNTIL_SAMPLED + COLLECTS)], account=True)
    assert (ran.returncode, ran.stdout) == (0, "ELSEWHERE set() WRONG 0\n"), ran.stderr


FORKS_AT_ONCE = """
import threading
work()
def forks():
    for _ in range(100):
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
threads = [threading.Thread(target=forks) for _ in range(2)]
[each.start() for each in threads]
[each.join() for each in threads]
work()
print("THREADS", len(os.listdir("/proc/self/task")))
"""


def test_one_thread_samples_stacks_when_two_threads_fork_at_once(script, run_under_agent):
    ran = run_under_agent([script(UNTIL_SAMPLED + FORKS_AT_ONCE)], account=True)
    assert (ran.returncode, ran.stdout) == (0, "THREADS 2\n"), ran.stderr
    assert "Error" not in ran.stderr


MAKES_INTERPRETERS = """
work()
try:
    import _interpreters
except ImportError:
    import _xxsubinterpreters
print("THREADS", len(os.listdir("/proc/self/task")))
"""


def test_stacks_are_sampled_no_more_when_the_program_may_make_interpreters(script, run_under_agent):
    ran = run_under_agent([script(UNTIL_SAMPLED + MAKES_INTERPRETERS)], account=True)
    assert (ran.returncode, ran.stdout) == (0, "THREADS 1\n"), ran.stderr
    (record,) = ran.records
    found = account([record], ran.launched_s, record.last(ProcessExited).at_s, command=["program"])
    assert any("stacks were not sampled after" in note for note in found.notes)
