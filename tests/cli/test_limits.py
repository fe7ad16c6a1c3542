"""What a machine may refuse: processes, memory, the working directory. Each ends with what it was, and none
with 70."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys

import pytest

from dynotune.cli import limits

from .conftest import CALL, MARKED, QUICK
from .test_bad_input import said

PYTHON = sys.executable
WORDS = ("compare", "env.A=1", *QUICK)


def limited(what, most):
    return lambda: resource.setrlimit(what, (most, most))


@pytest.fixture
def few_processes(user):
    """`few_processes(most, *words)`: dynotune by a user who may have so many processes, and may read all
    files."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv: the limit does not hold for root")
    may_read = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    become = ["setpriv", "--reuid=12347", "--regid=12347", "--clear-groups", *may_read]

    def types(most, *words):
        command = [*become, PYTHON, "-m", "dynotune", *words]
        limit = limited(resource.RLIMIT_NPROC, most)
        return subprocess.run(
            command, cwd=user.cwd, env=user.env, capture_output=True, text=True, preexec_fn=limit
        )

    return types


@pytest.mark.parametrize("most", [1, *(pytest.param(most, marks=pytest.mark.long) for most in (2, 3))])
def test_too_few_processes_are_named_and_are_no_interruption(most, few_processes, user):
    user.write("train.py", CALL)
    trains = (
        f"exec {PYTHON} train.py"  # what may read all files may not be asked whether it may start this one
    )
    done = few_processes(most, *WORDS, *MARKED, "--run-dir", str(user.runs), "--", "/bin/sh", "-c", trains)
    said(done, 3, "ulimit -u")
    assert "interrupted" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("most", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_run_without_room_for_its_processes_says_so(most, few_processes, user):
    done = few_processes(most, "run", "--run-dir", str(user.runs), "--", "/bin/true")
    said(done, 3, "Cannot start a process", "ulimit -u")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("mebibytes", [120, 200, 300, 500])
def test_too_little_address_space_is_named_before_anything_hangs(mebibytes, user):
    words = (*WORDS, "--run-dir", str(user.runs), "--", "/bin/false")
    done = user.types(*words, preexec_fn=limited(resource.RLIMIT_AS, mebibytes << 20))
    said(done, 3, f"{mebibytes} MiB", "ulimit -v")


def test_a_run_needs_no_more_address_space_than_its_command(user):
    done = user.types(
        "run",
        "--run-dir",
        str(user.runs),
        "--",
        "/bin/echo",
        "1",
        preexec_fn=limited(resource.RLIMIT_AS, 150 << 20),
    )
    assert (done.returncode, done.stdout) == (0, "1\n")


@pytest.mark.parametrize(
    "words", [("run", "--", "true"), (*WORDS, "--", "true"), ("doctor",), ("startup", "scan")]
)
def test_a_working_directory_that_is_gone_is_said(words, user):
    done = user.types(*words, preexec_fn=user.cwd.rmdir)
    said(done, 3, "The working directory is gone", "next: ")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MemoryError(), "memory"),
        (RuntimeError("can't start new thread"), "processes or threads"),
        (BlockingIOError(errno.EAGAIN, "again"), "processes or threads"),
        (OSError(errno.EMFILE, "many", "/dev/null"), r"open files.*/dev/null"),
        (OSError(errno.ENOSPC, "full"), "disk"),
    ],
)
def test_limits_of_the_machine_exit_with_3_and_are_no_mistake_of_ours(error, text):
    with pytest.raises(Exception, match=text) as raised:
        raise limits.of_the_machine(error)
    assert raised.value.exit_code == 3


@pytest.mark.parametrize("error", [ValueError("x"), FileNotFoundError(errno.ENOENT, "x"), RuntimeError("x")])
def test_a_mistake_stays_one(error):
    assert limits.of_the_machine(error) is None


def test_the_command_does_not_get_the_threads_that_dynotune_gives_itself(user):
    user.env.pop("OPENBLAS_NUM_THREADS", None)
    done = user.types("run", "--run-dir", str(user.runs), "--", "/usr/bin/env")
    assert "OPENBLAS_NUM_THREADS" not in done.stdout
