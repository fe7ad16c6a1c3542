"""Threads of a program, as it says where they are when it is asked."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from dynotune.watch.processes import stacks

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
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        pid, number = map(int, program.stdout.readline().split())
        hangs = re.compile(r"program\.py\(16\): <module>\nthreading\.py\(\d+\): wait")
        until(lambda: hangs.fullmatch("\n".join(stacks(pid, number, tmp_path))), "the lines")
        assert stacks(pid, signal.SIGRTMIN + 1, tmp_path) == [], "it would end a program that does not answer"
        program.communicate("x", timeout=60)
    assert program.returncode == 0
    assert stacks(pid, number, tmp_path) == []
