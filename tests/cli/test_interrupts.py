"""Ctrl-C in the middle, going on afterwards, and two dynotunes at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from .conftest import CALL, DEADLINE_S, MARKED, QUICK, until
from .test_bad_input import said

PYTHON = sys.executable
# Goes on until it is told that it may not begin again; then it hangs, so that a test can find it in the
# middle.
HANGS_LATER = "import os, pathlib\nrun = os.environ['DYNOTUNE_RUN']\n" + CALL.replace(
    "for _",
    "import time\nwhile pathlib.Path(run).name.startswith('002') and pathlib.Path('hang').exists():\n"
    "    pathlib.Path(run, 'hangs').touch()\n    time.sleep(0.05)\nfor _",
)


def carrying(mark: str) -> list[int]:
    """The processes whose environment holds `mark`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.fixture
def mark(user):
    user.env["DYNOTUNE_TEST_MARK"] = uuid.uuid4().hex
    return user.env["DYNOTUNE_TEST_MARK"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_comparison_says_how_to_go_on_when_it_is_stopped(user, mark, number, code):
    user.write("hangs.py", "import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(1e6)")
    words = ["compare", "env.A=1", "--no-lock", "--no-sandbox", "--run-dir", str(user.runs)]
    with user.start(*words, "--", PYTHON, "hangs.py") as process:
        until((user.cwd / "begun").exists, "the program begun")
        process.send_signal(number)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == code
    assert f"dynotune compare --resume {user.comparison_folder()}" in err
    until(lambda: not carrying(mark), "all processes gone")


def test_diagnosis_says_that_it_was_stopped(user):
    user.write("hangs.py", "import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(1e6)")
    words = ["diagnose", "--no-lock", "--no-sandbox", "--run-dir", str(user.runs), "--", PYTHON, "hangs.py"]
    with user.start(*words) as process:
        until((user.cwd / "begun").exists, "the program begun")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 143 and err.splitlines()[-1] == "Stopped."


@pytest.mark.long
def test_an_interrupted_comparison_leaves_no_process_and_goes_on_with_its_finished_pairs(user, mark):
    user.write("train.py", HANGS_LATER)
    (user.cwd / "hang").touch()
    quick = [*QUICK, *MARKED, "--run-dir", str(user.runs)]
    with user.start("compare", "env.A=1", *quick, "--", PYTHON, "train.py") as process:
        until(lambda: list(user.runs.glob("*/002-*/hangs")), "the second pair begun")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert out == ""
    folder = user.comparison_folder()
    assert f"dynotune compare --resume {folder}" in err
    until(lambda: not carrying(mark), "all processes gone")
    before = user.comparison()
    assert user.num_finished() == 1
    assert "Not settled: so far" in err or not before["pairs"]

    (user.cwd / "hang").unlink()
    done = user.types("compare", "--resume", str(folder), "--no-lock")
    said(done, 0, "pair  ")
    after = user.comparison()
    for kind in ("pairs", "voided"):
        assert after[kind][: len(before[kind])] == before[kind]
    assert user.num_finished() >= 2
    assert after["verdict"] is not None
    assert after["run"] == before["run"]


@pytest.fixture
def measuring(user):
    """Another dynotune that measures until the test is over."""
    user.write("hangs.py", "import os, pathlib, time\npathlib.Path('measures').touch()\ntime.sleep(1e6)")
    other = str(user.runs) + "-other"
    words = ["compare", "env.A=1", "--no-sandbox", "--run-dir", other, "--", PYTHON, "hangs.py"]
    with user.start(*words) as process:
        until((user.cwd / "measures").exists, "the other one measures")
        yield process
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_S)


def test_the_second_measuring_dynotune_waits_and_says_for_whom(user, measuring):
    user.write("train.py", "raise SystemExit(3)")
    with user.start("compare", "env.A=1", "--run-dir", str(user.runs), "--", PYTHON, "train.py") as process:
        line = process.stderr.readline()
        assert line.startswith(f"Waiting: another dynotune (process {measuring.pid})")
        assert "compare env.A=1" in line
        assert "--no-lock" in line
        measuring.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 4


def test_no_lock_does_not_wait(user, measuring):
    said(user.trains("raise SystemExit(3)"), 4)


def test_an_interrupt_while_it_waits_ends_it(user, measuring):
    with user.start("compare", "env.A=1", "--run-dir", str(user.runs), "--", PYTHON, "hangs.py") as process:
        assert process.stderr.readline().startswith("Waiting")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert "--resume" in err


def test_an_interrupt_after_the_commands_end_does_not_change_how_run_ends(user, tmp_path):
    """The record is written into a pipe: that takes as long as the test wants."""
    user.write("ends.py", "import os\nos._exit(7)")
    os.mkfifo(fifo := tmp_path / "pipe.json")
    with user.start(
        "run", "--run-dir", str(user.runs), "--json", str(fifo), "--", PYTHON, "ends.py"
    ) as process:
        # Opens once dynotune writes it: the command is over by then.
        with fifo.open("rb") as record:
            os.kill(process.pid, signal.SIGINT)
            assert b'"exit_code": 7' in record.read()
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 7


ENDS_UNDER_AN_INTERRUPT = """
import os, signal, sys, typer
from dynotune.cli import run
from dynotune.launch.process.launcher import Exit

class Late:
    # Python clears modules when it has taken its own signal handlers away.
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGINT):
        kill(pid, number)

late = Late()
run._let_interrupts_pass()
try:
    run._end_as(Exit(code=7))
except typer.Exit as ended:
    sys.exit(ended.exit_code)
"""


def test_an_interrupt_while_python_itself_ends_does_not_change_how_run_ends():
    ended = subprocess.run([PYTHON, "-c", ENDS_UNDER_AN_INTERRUPT], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (7, "")


INTERRUPTED_IN_AN_IMPORT = """
import os, runpy, signal, sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
sys.argv[1:] = ["run", "--", "true"]
runpy.run_module("dynotune", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("module", "code"),
    [("dynotune.cli", -signal.SIGINT), ("dynotune.cli.run", 130), ("dynotune.launch", 130)],
)
def test_an_interrupt_while_dynotune_is_imported_ends_it_without_a_traceback(module, code):
    script = INTERRUPTED_IN_AN_IMPORT.replace("MODULE", repr(module))
    ended = subprocess.run([PYTHON, "-c", script], capture_output=True, text=True)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
