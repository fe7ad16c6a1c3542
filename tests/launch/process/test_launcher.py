"""Starting a captured command, and how it ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from dynotune.launch import last_lines, start
from dynotune.launch.process import run_folder
from dynotune.schema.errors import CannotRunHere, UsageError

from ..conftest import until


def run(words, *, cwd, run_dir, env=None, **more):
    with start(words, env=env or dict(os.environ), cwd=cwd, run_dir=run_dir, **more) as launched:
        return launched, launched.wait(120)


def test_the_exit_code_and_the_output_are_kept(cwd, run_dir):
    _, exit_ = run(["sh", "-c", "cat; echo out; echo err >&2; pwd; exit 3"], cwd=cwd, run_dir=run_dir)
    assert (exit_.code, exit_.signal, exit_.status) == (3, None, 3)
    assert (run_dir / "stdout").read_text() == f"out\n{cwd}\n"
    assert last_lines(run_dir, 5) == ("err",)


@pytest.fixture
def given():
    """`given(file)`: the open file is our standard input."""
    ours = os.dup(0)
    yield lambda file: os.dup2(file.fileno(), 0)
    os.dup2(ours, 0)
    os.close(ours)


def test_each_run_reads_a_file_that_we_were_given_from_its_beginning(cwd, run_dir, given, tmp_path):
    (tmp_path / "items").write_text("one\ntwo\n")
    with (tmp_path / "items").open("rb") as file:
        given(file)
        for _ in range(2):
            run(["cat"], cwd=cwd, run_dir=run_dir)
        assert os.lseek(0, 0, os.SEEK_CUR) == 0, "ours is where it was"
    assert (run_dir / "stdout").read_text() == "one\ntwo\n" * 2


def test_a_pipe_is_not_handed_on_and_nobody_waits_for_its_end(cwd, run_dir, given):
    read, write = os.pipe()
    with os.fdopen(read, "rb") as file, os.fdopen(write, "wb"):
        given(file)
        assert run_folder.input_is_pipe()
        run(["cat"], cwd=cwd, run_dir=run_dir)
    assert (run_dir / "stdout").read_text() == ""


def test_death_by_a_signal_is_told_from_an_exit_code(cwd, run_dir):
    _, exit_ = run(["sh", "-c", "kill -KILL $$"], cwd=cwd, run_dir=run_dir)
    assert (exit_.code, exit_.signal, exit_.status) == (None, signal.SIGKILL, -9)


def test_waiting_has_a_limit(cwd, run_dir):
    with start(["sleep", "1000"], env=dict(os.environ), cwd=cwd, run_dir=run_dir) as launched:
        assert launched.wait(0.0) is None
        assert launched.poll() is None
        assert launched.tree_pids() == [launched.pid]


def test_the_command_is_as_nice_as_asked_and_we_are_not(cwd, run_dir):
    ours = os.nice(0)
    run(["nice"], cwd=cwd, run_dir=run_dir, nice=5)
    assert (int((run_dir / "stdout").read_text()), os.nice(0)) == (min(19, ours + 5), ours)


def test_the_words_reach_the_command_as_they_were_typed(cwd, run_dir, target_python):
    code = "import os, sys; first = os.fsdecode(open('/proc/self/cmdline', 'rb').read().partition(b'\\0')[0])"
    code += "; print(ascii(first), ascii(sys.argv[1:]))"
    env = {**os.environ, "PATH": f"{Path(target_python).parent}:/usr/bin:/bin"}
    run(["python", "-c", code, "a b", "", "ü", "\udcff", "$HOME"], cwd=cwd, run_dir=run_dir, env=env)
    assert (run_dir / "stdout").read_text() == "'python' ['a b', '', '\\xfc', '\\udcff', '$HOME']\n"


def test_the_environment_is_the_one_asked_for(cwd, run_dir):
    run(["/usr/bin/env", "-0"], cwd=cwd, run_dir=run_dir, env={"A": "1\n2", "B": "\udcfe", "LD_AUDIT": ""})
    entries = (run_dir / "stdout").read_bytes().split(b"\0")
    assert sorted(entries) == [b"", b"A=1\n2", b"B=\xfe", f"DYNOTUNE_RUN={run_dir}".encode(), b"LD_AUDIT="]


def test_the_command_inherits_nothing_of_ours(cwd, run_dir):
    words = [
        "sh",
        "-c",
        "ls /proc/self/fd; grep -E 'Sig(Blk|Ign|Cgt)|Umask' /proc/self/status; ulimit -a; nice",
    ]
    run(words, cwd=cwd, run_dir=run_dir)
    plain = subprocess.run(words, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (run_dir / "stdout").read_text() == plain.stdout
    assert plain.stdout.startswith("0\n1\n2\n3\n")


def test_cpu_time_counts_children_and_what_has_ended(cwd, run_dir, target_python):
    code = """
import os, time
def burn():
    while time.process_time() < 0.3: pass
if os.fork() == 0:
    burn()
    os._exit(0)
os.wait()
if os.fork() == 0:
    os.setsid()
    burn()
    print("burnt", flush=True)
    time.sleep(1000)
time.sleep(1000)
"""
    with start([target_python, "-c", code], env=dict(os.environ), cwd=cwd, run_dir=run_dir) as launched:
        until(lambda: "burnt" in (run_dir / "stdout").read_text(), "CPU time used")
        living_s = launched.cpu_s()
        launched.end(0.0)
        assert living_s >= 0.55
        assert launched.cpu_s() >= living_s - 0.05


def test_run_dir_in_a_word_becomes_a_folder_of_the_run(cwd, run_dir):
    run(["sh", "-c", "echo 1 > {run_dir}/result"], cwd=cwd, run_dir=run_dir)
    assert (run_dir / "files" / "result").read_text() == "1\n"


def test_files_changed_below_the_working_directory_are_listed(cwd, run_dir):
    (cwd / "old").write_text("1")
    (cwd / "gone").write_text("1")
    launched, _ = run(
        ["sh", "-c", "echo 22 > old; rm gone; mkdir -p a/b; touch a/b/c"], cwd=cwd, run_dir=run_dir
    )
    assert launched.sandbox == "none"
    assert launched.changes.created == ("a/b/c",)
    assert launched.changed_files == ["a/b/c", "gone", "old"]


def test_a_script_without_a_first_line_runs_as_in_a_shell(cwd, run_dir):
    (cwd / "job").write_text("echo ran $1\n")
    (cwd / "job").chmod(0o755)
    run(["./job", "x"], cwd=cwd, run_dir=run_dir)
    assert (run_dir / "stdout").read_text() == "ran x\n"


def test_a_missing_interpreter_is_said(cwd, run_dir):
    (cwd / "job").write_text("#!/nowhere/python\n")
    (cwd / "job").chmod(0o755)
    with pytest.raises(UsageError, match="interpreter"):
        run(["./job"], cwd=cwd, run_dir=run_dir)


def test_a_missing_working_directory_is_said(cwd, run_dir):
    with pytest.raises(UsageError, match="working directory"):
        run(["true"], cwd=cwd / "nowhere", run_dir=run_dir)


def test_ignored_signals_stay_ignored(marked, measures, run_dir):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        # Whoever started the tests may have them ignore more.
        (ours,) = (
            line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("SigIgn")
        )
        measures("sh", "-c", "grep SigIgn /proc/self/status").wait(120)
    finally:
        signal.signal(signal.SIGHUP, before)
    for_python_alone = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
    expected = int(ours.split()[1], 16) & ~for_python_alone
    assert int((run_dir / "stdout").read_text().split()[1], 16) == expected
    assert expected & 1 << (signal.SIGHUP - 1)


def test_a_removed_run_folder_is_said(cwd, run_dir):
    shutil.rmtree(run_dir)
    with pytest.raises(CannotRunHere, match="run folder"):
        run(["true"], cwd=cwd, run_dir=run_dir)


def test_relative_paths_count_from_where_dynotune_is(cwd, run_dir, monkeypatch):
    monkeypatch.chdir(cwd.parent)
    run(["touch", "new"], cwd=cwd.relative_to(cwd.parent), run_dir=run_dir.relative_to(cwd.parent))
    assert (cwd / "new").exists()


def test_changed_files_leave_out_kept_folders(cwd, run_dir):
    (cwd / "cache").mkdir()
    launched, _ = run(["touch", "cache/x", "y"], cwd=cwd, run_dir=run_dir, keep=[cwd / "cache"])
    assert launched.changed_files == ["y"]


def test_many_words_and_a_large_environment_arrive_whole(cwd, run_dir):
    env = {"PATH": os.environ["PATH"], **{f"NAME_{index}": "x" * 1000 for index in range(500)}}
    run(["sh", "-c", "echo $#; env | grep -c ^NAME_", *["word"] * 5000], cwd=cwd, run_dir=run_dir, env=env)
    assert (run_dir / "stdout").read_text() == "4999\n500\n"
