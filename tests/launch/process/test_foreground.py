"""A command in the foreground: as if dynotune were not there."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios

import pytest

from dynotune.launch.process import processes

from ..conftest import RUNS, until

# Counts the signals it gets, obeys lines on its terminal.
COUNTS = """
import collections, os, signal, sys
seen = collections.Counter()
for name in ("SIGINT", "SIGTERM", "SIGWINCH", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
    number = getattr(signal, name)
    def note(number, frame):
        seen[signal.Signals(number).name] += 1
        print("<", *(f"{name}={num}" for name, num in sorted(seen.items())), ">", flush=True)
    signal.signal(number, note)
print("tty", os.isatty(0), os.isatty(1), os.isatty(2), "pid", os.getpid(), flush=True)
for line in sys.stdin:
    print("read", line.strip(), flush=True)
    if line.strip() == "quit":
        sys.exit(5)
"""

# The shell of a terminal, with one job: says what becomes of it, and brings it back when told.
SHELL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
report, orders = int(sys.argv[1]), int(sys.argv[2])
def say(text):
    os.write(report, (text + "\\n").encode())
job = os.fork()
if job == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    for number in (signal.SIGTTOU, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.execv(sys.argv[3], sys.argv[3:])
say(f"job {job}")
while True:
    _, status = os.waitpid(job, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        break
    os.tcsetpgrp(0, os.getpid())
    say("stopped")
    os.read(orders, 1)
    os.tcsetpgrp(0, job)
    os.killpg(job, signal.SIGCONT)
say(f"exit {os.WEXITSTATUS(status)}" if os.WIFEXITED(status) else f"signal {os.WTERMSIG(status)}")
"""


def run(run_dir, *command, **more):
    words = [sys.executable, "-c", RUNS, str(run_dir), *command]
    return subprocess.run(words, capture_output=True, timeout=120, **more)


class Terminal:
    """A terminal with a shell that runs one command under dynotune."""

    def __init__(self, marked, run_dir, cwd, command):
        self.master, slave = pty.openpty()
        self._report, report = os.pipe()
        orders, self._orders = os.pipe()
        job = [sys.executable, "-c", RUNS, str(run_dir), *command]
        self.shell = subprocess.Popen(
            [sys.executable, "-c", SHELL, str(report), str(orders), *job],
            stdin=slave, stdout=slave, stderr=slave, cwd=cwd, env=marked.env,
            start_new_session=True, pass_fds=[report, orders],
        )  # fmt: skip
        for descriptor in (slave, report, orders):
            os.close(descriptor)
        for descriptor in (self.master, self._report):
            os.set_blocking(descriptor, False)
        self.shown = self.reported = ""
        self.dynotune = int(self.reports("job ").split()[-1])

    def shows(self, text):
        def look():
            self.shown += self._read(self.master)
            return text in self.shown

        until(look, f"{text!r} on the terminal, which shows {self.shown!r}")
        return self.shown

    def reports(self, text):
        def look():
            self.reported += self._read(self._report)
            return text in self.reported and self.reported.endswith("\n")

        until(look, f"{text!r} from the shell")
        return self.reported

    def type(self, keys):
        os.write(self.master, keys)

    def bring_back(self):
        os.write(self._orders, b"f")

    def close(self):
        self.shell.kill()
        self.shell.wait()
        for descriptor in (self.master, self._report, self._orders):
            os.close(descriptor)

    @staticmethod
    def _read(descriptor):
        try:
            return os.read(descriptor, 65536).decode()
        except (BlockingIOError, OSError):
            return ""


@pytest.fixture
def terminal(marked, run_dir, cwd, target_python):
    opened = []

    def open_(*command):
        opened.append(Terminal(marked, run_dir, cwd, command or [target_python, "-c", COUNTS]))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


def test_exit_code_output_and_stdin_are_the_commands_own(run_dir):
    done = run(run_dir, "sh", "-c", "cat; echo err >&2; exit 42", input=b"in\n")
    assert (done.returncode, done.stdout, done.stderr) == (42, b"in\n", b"err\n")
    assert list(run_dir.iterdir()) == []


@pytest.mark.parametrize("first", ["#!/bin/sh\n", ""])
def test_a_script_is_named_as_it_was_typed(first, run_dir, cwd):
    (cwd / "script").write_text(first + 'echo "$0" "$@"\n')
    (cwd / "script").chmod(0o755)
    assert run(run_dir, "./script", "a", cwd=cwd).stdout == b"./script a\n"


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGINT, signal.SIGUSR1]
)
def test_death_by_a_signal_is_passed_on(number, run_dir):
    assert run(run_dir, "sh", "-c", f"kill -{int(number)} $$").returncode == -number


def test_a_closed_pipe_ends_the_command_as_it_would_without_us(run_dir):
    script = f'{sys.executable} -c "$RUNS" {run_dir} yes | head -n 1; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(
        ["bash", "-c", script], env={**os.environ, "RUNS": RUNS}, capture_output=True, timeout=120
    )
    assert done.stdout == b"y\n141\n"


@pytest.mark.parametrize("before", ["", "trap '' HUP INT QUIT;", "umask 027; ulimit -n 77; nice -n 3"])
def test_the_command_finds_what_it_would_find_without_us(before, run_dir):
    inner = "ls /proc/self/fd; grep -E 'Sig(Blk|Ign|Cgt)|Umask' /proc/self/status; ulimit -a; nice; cat <&8"
    plain = ["sh", "-c", inner]
    ours = [sys.executable, "-c", RUNS, str(run_dir), *plain]

    def under(words):
        return subprocess.run(
            ["bash", "-c", f'exec 8< <(echo given); {before} "$@"', "bash", *words],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    found = under(ours).stdout
    assert found == under(plain).stdout
    assert "given" in found


def test_the_command_shares_our_process_group_and_session(run_dir, target_python):
    done = run(run_dir, "ps", "-o", "pgid=,sess=", "-p", str(os.getpid()))
    assert done.stdout.split() == [str(os.getpgrp()).encode(), str(os.getsid(0)).encode()]
    code = "import os; print(os.getpgrp(), os.getsid(0))"
    assert run(run_dir, target_python, "-c", code).stdout.split() == done.stdout.split()


def test_background_processes_go_on_after_a_normal_end(marked, run_dir):
    assert run(run_dir, "sh", "-c", "sleep 1000 >&- 2>&- & exit 0", env=marked.env).returncode == 0
    assert len(marked.pids()) == 1


def test_sigkill_of_dynotune_leaves_nothing(marked, run_dir):
    words = [
        sys.executable,
        "-c",
        RUNS,
        str(run_dir),
        "sh",
        "-c",
        "setsid sleep 1000 & sleep 1000 & echo up; wait",
    ]
    with subprocess.Popen(words, env=marked.env, stdout=subprocess.PIPE) as dynotune:
        assert dynotune.stdout.readline() == b"up\n"
        dynotune.kill()
        marked.wait_until_gone()


def test_the_command_has_the_terminal(terminal):
    one = terminal()
    one.shows("tty True True True")
    one.type(b"quit\n")
    one.reports("exit 5")


def test_a_key_on_the_terminal_sends_one_signal(terminal):
    one = terminal()
    one.shows("tty ")
    for num in range(1, 6):
        one.type(b"\x03")
        one.shows(f"< SIGINT={num} >")
    # Handed on after whatever was to be handed on before it.
    os.kill(one.dynotune, signal.SIGUSR1)
    one.shows("< SIGINT=5 SIGUSR1=1 >")
    one.type(b"\x1c")
    one.shows("< SIGINT=5 SIGQUIT=1 SIGUSR1=1 >")
    fcntl.ioctl(one.master, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 44, 0, 0))
    one.shows("SIGWINCH=1")
    os.kill(one.dynotune, signal.SIGUSR2)
    one.shows("< SIGINT=5 SIGQUIT=1 SIGUSR1=1 SIGUSR2=1 SIGWINCH=1 >")
    one.type(b"quit\n")
    one.reports("exit 5")


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGQUIT]
)
def test_a_signal_for_dynotune_alone_is_handed_on_once(number, terminal):
    one = terminal()
    one.shows("tty ")
    os.kill(one.dynotune, number)
    one.shows(f"< {number.name}=1 >")
    os.kill(one.dynotune, signal.SIGUSR1)
    one.shows("SIGUSR1=1")
    assert f"{number.name}=2" not in one.shown


def test_a_signal_for_the_whole_group_is_not_doubled(terminal):
    one = terminal()
    one.shows("tty ")
    os.killpg(one.dynotune, signal.SIGTERM)
    one.shows("< SIGTERM=1 >")
    os.kill(one.dynotune, signal.SIGUSR1)
    one.shows("< SIGTERM=1 SIGUSR1=1 >")


def test_ctrl_c_ends_a_command_that_does_not_catch_it(terminal):
    one = terminal("sh", "-c", "echo up; exec sleep 1000")
    one.shows("up")
    one.type(b"\x03")
    one.reports(f"signal {int(signal.SIGINT)}")


def test_ctrl_z_stops_us_with_the_command_and_the_shell_brings_both_back(terminal):
    one = terminal()
    one.shows("tty ")
    for num in range(1, 4):
        one.type(b"\x1a")
        until(lambda num=num: one.reports("stopped").count("stopped") == num, "stopped again")
        one.bring_back()
        one.type(f"line{num}\n".encode())
        one.shows(f"read line{num}")
    one.type(b"quit\n")
    one.reports("exit 5")


def test_a_command_that_ignores_ctrl_z_goes_on(terminal):
    one = terminal("sh", "-c", "trap '' TSTP; echo up; read x; echo got $x")
    one.shows("up")
    one.type(b"\x1a")
    one.type(b"more\n")
    one.shows("got more")
    assert "stopped" not in one.reports("exit 0")


def test_continuing_the_command_alone_brings_us_back(terminal):
    one = terminal()
    pid = int(one.shows("pid ").split("pid ")[1].split()[0])
    os.kill(pid, signal.SIGSTOP)
    one.reports("stopped")
    os.kill(pid, signal.SIGCONT)
    one.bring_back()
    one.type(b"quit\n")
    one.reports("exit 5")


def test_a_command_killed_while_it_is_stopped_ends_us_with_it(marked, run_dir):
    words = [sys.executable, "-c", RUNS, str(run_dir), "sh", "-c", "echo $$; exec sleep 1000"]
    with subprocess.Popen(words, env=marked.env, stdout=subprocess.PIPE, start_new_session=True) as dynotune:
        command = int(dynotune.stdout.readline())
        os.kill(command, signal.SIGSTOP)
        until(lambda: processes.read(dynotune.pid).state == "T", "dynotune stopped with its command")
        os.kill(command, signal.SIGKILL)
        try:
            assert dynotune.wait(60) == -signal.SIGKILL
        finally:
            dynotune.kill()


def test_a_hangup_that_the_kernel_tells_only_the_session_leader_reaches_the_command_once(
    marked, run_dir, cwd
):
    master, slave = pty.openpty()
    leader = "import fcntl, os, sys, termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    leader += "os.execv(sys.argv[1], sys.argv[1:])"
    command = ["sh", "-c", "trap 'echo hup >> seen; exit 6' HUP; echo up > up; while :; do sleep 0.05; done"]
    words = [sys.executable, "-c", leader, sys.executable, "-c", RUNS, str(run_dir), *command]
    with subprocess.Popen(
        words, stdin=slave, stdout=slave, stderr=slave, cwd=cwd, env=marked.env, start_new_session=True
    ) as dynotune:
        os.close(slave)
        until((cwd / "up").exists, "the command at work")
        os.close(master)
        assert dynotune.wait(120) == 6
    assert (cwd / "seen").read_text() == "hup\n"
