"""Run folders, and the end of what a run printed."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys

import pytest

from dynotune.launch import error_line, in_use, last_lines, new_run_folder
from dynotune.schema import private
from dynotune.schema.errors import CannotRunHere

from ..conftest import SOURCE

TRIES = """
import sys
from pathlib import Path
from dynotune.launch import new_run_folder
from dynotune.schema.errors import CannotRunHere
try:
    new_run_folder(Path(sys.argv[1]))
except CannotRunHere as error:
    print(error, error.hint)
"""


def test_run_folder_is_private_whatever_the_umask(tmp_path):
    before = os.umask(0o777)
    try:
        folder = new_run_folder(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_names_are_unique_and_sort_by_time(tmp_path):
    names = [new_run_folder(tmp_path / "a" / "b").name for _ in range(50)]
    assert len(set(names)) == 50
    assert [name[:19] for name in names] == sorted(name[:19] for name in names)


def test_first_run_folder_stays_in_use_when_many_more_are_made(tmp_path):
    first = new_run_folder(tmp_path)
    for _ in range(40):
        new_run_folder(tmp_path)
    assert in_use([first]) == {first}


def test_a_run_whose_processes_are_left_is_in_use_by_whatever_name_it_was_begun(tmp_path):
    folder = tmp_path / "runs" / "one"
    (folder / "arm").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    env = {"DYNOTUNE_RUN": str(tmp_path / "link" / "one" / "arm")}
    with subprocess.Popen(["/bin/cat"], env=env, stdin=subprocess.PIPE) as left:
        assert in_use([folder]) == in_use([folder, tmp_path]) & {folder} == {folder}
        assert in_use([tmp_path / "link" / "one"])
        left.communicate()
    assert in_use([folder]) == set()


def test_a_folder_that_goes_while_one_looks_is_in_nobodys_use(tmp_path):
    assert in_use([tmp_path / "gone"]) == set()


def test_a_folder_whose_lock_cannot_be_asked_counts_as_in_use(tmp_path, monkeypatch):
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.EBADF, "as a network file system says of a folder")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert in_use([tmp_path]) == {tmp_path}


def test_a_file_in_the_way_is_said(tmp_path):
    (tmp_path / "runs").touch()
    with pytest.raises(CannotRunHere, match="run folder") as raised:
        new_run_folder(tmp_path / "runs")
    assert "--run-dir" in raised.value.hint


@pytest.mark.parametrize(
    ("options", "why"), [("ro", "Read-only file system"), ("size=4k", "No space left on device")]
)
def test_a_read_only_or_full_disk_is_said(options, why, tmp_path):
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare")
    script = 'mount -t tmpfs -o "$1" t "$2" && exec "$3" -c "$4" "$2"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", options, str(tmp_path), sys.executable, TRIES],
        capture_output=True, text=True, env={"PATH": os.environ["PATH"], "PYTHONPATH": SOURCE},
    )  # fmt: skip
    if "mount" in done.stderr:
        pytest.skip(f"cannot mount here: {done.stderr}")
    assert why in done.stdout
    assert "--run-dir" in done.stdout


@pytest.mark.parametrize(
    ("stdout", "stderr", "lines"),
    [
        (b"out\n", b"", ("out",)),
        (b"out\n", b"\n \n", ("out",)),
        (b"out\n", b"one\ntwo\nthree\n", ("two", "three")),
        (b"", b"", ()),
        (b"", b"10%\r20%\r30%\rdone\r\nlast", ("done", "last")),
        (b"", b"\x1b[31mred\x1b[0m\x07\n\x1b]0;title\x07plain\n", ("red", "plain")),
        (b"", b"\xff\xfe\n", ("\ufffd\ufffd",)),
    ],
)
def test_last_lines_are_what_a_person_would_have_seen(stdout, stderr, lines, tmp_path):
    (tmp_path / "stdout").write_bytes(stdout)
    (tmp_path / "stderr").write_bytes(stderr)
    assert last_lines(tmp_path, 2) == lines


def test_a_run_that_printed_nothing_has_no_last_lines(tmp_path):
    assert last_lines(tmp_path, 3) == ()


def test_only_the_end_of_a_long_output_is_read(tmp_path):
    (tmp_path / "stderr").write_bytes(b"x" * 300_000 + b"\nend\n")
    assert last_lines(tmp_path, 1) == ("end",)


THREADS_END = """\
Exception in thread Thread-3 (_pin_memory_loop):
Traceback (most recent call last):
  File "loop.py", line 3, in loop
ConnectionResetError: [Errno 104] Connection reset by peer
"""
OWN = """\
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    step()
ValueError: too large
"""
OF_A_RANK = "".join(f"[rank0]: {line}\n" for line in OWN.splitlines())
TORCHRUNS = """\
Traceback (most recent call last):
  File "torchrun", line 8, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
train.py FAILED
"""


@pytest.mark.parametrize(
    ("printed", "line"),
    [
        ("", ""),
        ("started\nno such file\n", "no such file"),
        (OWN + "bye\n", "ValueError: too large"),
        (OWN + THREADS_END, "ValueError: too large"),
        (THREADS_END, "ConnectionResetError: [Errno 104] Connection reset by peer"),
        (OF_A_RANK + TORCHRUNS, "ValueError: too large"),
    ],
)
def test_the_line_that_says_why_a_run_failed_is_its_own_tracebacks(printed, line, tmp_path):
    (tmp_path / "stderr").write_text(printed)
    assert error_line(tmp_path) == line


def test_a_folder_is_made_though_another_dynotune_takes_the_base_away_that_it_had_made(tmp_path, monkeypatch):
    """It made the base to see whether it may, and removes what is empty."""
    base, made, taken = tmp_path / "runs", private.make_missing, []

    def make_missing(path):
        made(path)
        if not taken:
            taken.append(path)
            path.rmdir()

    monkeypatch.setattr(private, "make_missing", make_missing)
    assert new_run_folder(base).parent == base
    assert taken == [base]
