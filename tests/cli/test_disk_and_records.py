"""Disks that are full or read-only, records that are newer or cut short."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import CALL, CALLS, MARKED
from .test_bad_input import said

PYTHON = sys.executable


@pytest.fixture
def small_disk(user):
    """A disk of a few pages below the run folder."""
    user.runs.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(user.runs)], capture_output=True
    )
    if done.returncode:
        pytest.skip("this machine lets nobody mount")
    yield user.runs
    subprocess.run(["umount", "-l", str(user.runs)], check=True)


@pytest.mark.long
def test_a_disk_that_fills_up_under_the_run_folder_is_not_the_commands_fault(user, small_disk):
    done = user.trains("import sys\nfor _ in range(10_000):\n    print('x' * 1000)\n    sys.stdout.flush()\n")
    said(done, 3, "--run-dir")


def test_a_disk_that_is_full_from_the_start_is_told_before_anything_runs(user, small_disk):
    (small_disk / "full").write_bytes(bytes(380 << 10))
    said(user.trains(CALL), 3, "No space left", "--run-dir")


def test_a_run_folder_that_cannot_be_made_is_told(user):
    user.runs.write_text("a file is in its place")
    said(user.trains(CALL), 3, "Cannot make a run folder", "--run-dir")


@pytest.mark.long
def test_a_read_only_disk_under_the_run_folder_is_told(user, small_disk):
    remounted = subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], capture_output=True)
    assert remounted.returncode == 0, remounted.stderr
    said(user.trains(CALL), 3, "Read-only", "--run-dir")


@pytest.mark.long
def test_a_limit_on_file_sizes_loses_no_finished_pair(user):
    """The disk of a run is the command's as well: what it may not write, dynotune may not."""

    def limit():
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, 1 << 10))

    user.write("train.py", CALL)
    words = [
        "compare",
        "env.A=1",
        *MARKED,
        "--no-lock",
        "--run-dir",
        str(user.runs),
        "--",
        PYTHON,
        "train.py",
    ]
    done = user.types(*words, preexec_fn=limit)
    said(done, 3, "--run-dir")


RECORDLESS = {
    "full": "dd if=/dev/zero of={runs}/full bs=1k 2> /dev/null",
    "read-only": "mount -o remount,ro {runs}",
    "a file": "umount {runs}; rmdir {runs}; echo 1 > {runs}",
}
SHOWS = "import os, sys; print(os.environ.get('A'), os.environ.get('DYNOTUNE_RUN')); sys.exit(7)"
HAS_TWO_WORKERS = """
import torch
from torch.utils.data import DataLoader
if __name__ == "__main__":
    loader = DataLoader(torch.zeros(4, 1))
    list(loader)
    print(loader.num_workers)
"""


@pytest.fixture(
    params=["full", *(pytest.param(each, marks=pytest.mark.long) for each in ("read-only", "a file"))]
)
def no_room(request, user, small_disk):
    """A folder for runs that takes none."""
    subprocess.run(["sh", "-c", RECORDLESS[request.param].format(runs=user.runs)], check=False)
    yield user.runs
    if user.runs.is_file():
        user.runs.unlink()
        user.runs.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "none", str(user.runs)], check=True)


def test_a_command_runs_where_its_record_cannot_be_kept(user, no_room):
    done = user.types("run", "--set", "env.A=1", "--run-dir", str(no_room), "--", PYTHON, "-c", SHOWS)
    assert (done.returncode, done.stdout) == (7, "1 None\n")
    (line,) = done.stderr.splitlines()
    assert "nothing is recorded" in line


@pytest.mark.long
def test_settings_inside_the_process_hold_where_its_record_cannot_be_kept(user, no_room, tmp_path):
    user.env["TMPDIR"] = str(tmp_path)
    before = sorted(tmp_path.iterdir())
    words = ["--set", "loader.num_workers=2", "--run-dir", str(no_room), "--", PYTHON, "-c", HAS_TWO_WORKERS]
    done = user.types("run", *words)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    assert [
        line for line in done.stderr.splitlines() if "nothing is recorded" in line
    ] == done.stderr.splitlines()
    assert sorted(tmp_path.iterdir()) == before


@pytest.fixture
def state(user):
    """The folder that dynotune keeps things in for this user."""
    folder = Path(user.env["XDG_STATE_HOME"]) / "dynotune"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def anothers_state(state):
    if os.geteuid() != 0:
        pytest.skip("needs root to give files away")
    (state / "runs").mkdir()
    for path in (state, state / "runs"):
        os.chown(path, 65534, 65534)
    return state


@pytest.mark.long
def test_a_command_runs_unrecorded_where_the_state_folder_is_another_users(user, anothers_state):
    done = user.types("run", "--set", "env.A=1", "--", PYTHON, "-c", SHOWS)
    assert (done.returncode, done.stdout) == (7, "1 None\n")
    (line,) = done.stderr.splitlines()
    assert "nothing is recorded" in line
    assert f"{anothers_state} belongs to another user" in line
    assert [path.name for path in anothers_state.rglob("*")] == ["runs"]


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("compare", "env.A=1"), marks=pytest.mark.long),
        pytest.param(("diagnose",), marks=pytest.mark.long),
        pytest.param(("trace",), marks=pytest.mark.long),
        pytest.param(("tune",), marks=pytest.mark.long),
        pytest.param(("startup", "time"), marks=pytest.mark.long),
        ("startup", "warm"),
        ("recipe", "verify", "recipe.toml"),
    ],
    ids=" ".join,
)
def test_nothing_is_measured_or_made_where_the_state_folder_is_another_users(user, anothers_state, words):
    user.write(
        "recipe.toml", '[recipe]\nschema = "dynotune.recipe/2"\n[settings]\n"loader.num_workers" = 2\n'
    )
    done = user.types(*words, "--", PYTHON, "-c", "open('ran', 'w')")
    assert done.returncode == 3, done.stderr
    assert f"{anothers_state} belongs to another user" in done.stderr
    assert "next: Set XDG_STATE_HOME" in done.stderr
    assert [path.name for path in anothers_state.rglob("*")] == ["runs"]
    assert not (user.cwd / "ran").exists()


def test_a_state_folder_that_others_may_write_is_closed_by_a_run(user, state):
    state.chmod(0o777)
    assert user.types("run", "--", PYTHON, "-c", "pass").returncode == 0
    assert [stat.S_IMODE(path.stat().st_mode) for path in (state, state / "runs")] == [0o700, 0o700]


@pytest.mark.parametrize(
    "limit_bytes", [*(pytest.param(each, marks=pytest.mark.long) for each in (0, 1 << 10)), 1 << 15, 1 << 17]
)
def test_a_limit_on_file_sizes_does_not_keep_a_command_from_running(limit_bytes, user):
    def limit():
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    words = ["run", "--set", "loader.num_workers=2", "--run-dir", str(user.runs), "--json", "-"]
    done = user.types(*words, "--", PYTHON, "-c", "raise SystemExit(7)", preexec_fn=limit)
    assert done.returncode == 7
    if limit_bytes < 1 << 16:
        assert "nothing is recorded" in done.stderr
        assert "not applied: loader.num_workers=2" in done.stderr


# Records


@pytest.fixture
def begun(user):
    """A comparison that was interrupted before its first pair; the name to resume it by."""
    said(user.trains("raise SystemExit(3)"), 4)
    file = user.comparison_folder() / "comparison.json"
    text = file.read_text()
    assert '"failed": {' in text
    return file


def resume(user, file):
    return user.types("compare", "--resume", file.parent.name, "--run-dir", str(user.runs))


@pytest.mark.long
def test_a_comparison_of_a_newer_version_is_not_read(user, begun):
    begun.write_text(begun.read_text().replace("dynotune.comparison/2", "dynotune.comparison/3"))
    said(resume(user, begun), 3, "dynotune.comparison/3", "next: ")


def test_a_truncated_comparison_is_told(user, begun):
    begun.write_text(begun.read_text()[:-40])
    said(resume(user, begun), 3, "not a complete JSON document")


@pytest.mark.long
def test_a_finished_comparison_answers_again(user, begun):
    done = resume(user, begun)
    said(done, 4)
    assert "exit code 3" in done.stdout


@pytest.mark.long
def test_a_comparison_that_is_not_there_is_told_with_those_that_are(user, begun):
    done = user.types("compare", "--resume", "nothing", "--run-dir", str(user.runs))
    said(done, 2, "There is no comparison nothing", begun.parent.name)


@pytest.mark.long
def test_resuming_takes_no_settings_and_no_command(user, begun):
    words = ["compare", "env.B=1", "--resume", begun.parent.name, "--run-dir", str(user.runs)]
    said(user.types(*words), 2, "takes no settings")


DAMAGES = """
import glob, os
(record,) = glob.glob(os.environ["DYNOTUNE_RUN"] + "/process-*.rec")
"""


@pytest.mark.long
def test_a_record_that_the_program_truncates_is_read_up_to_there(user):
    program = CALLS + "for _ in range(9):\n    step()\n" + DAMAGES + "os.truncate(record, 4096)\nos._exit(0)"
    done = user.trains(program)
    assert done.returncode == 3
    assert "error: " in done.stderr


@pytest.mark.long
def test_a_record_that_the_program_overwrites_is_refused(user):
    program = CALLS + "for _ in range(9):\n    step()\n" + DAMAGES
    program += "with open(record, 'r+b') as file:\n    file.write(b'GARBAGE!')\n    file.flush()\nos._exit(0)"
    said(user.trains(program), 3, "not a record of dynotune's")


@pytest.mark.long
def test_a_record_that_the_program_damages_does_not_change_how_a_run_ends(user):
    program = (
        CALLS
        + DAMAGES
        + "with open(record, 'r+b') as file:\n    file.write(b'GARBAGE!')\nprint('out', flush=True)\n"
    )
    user.write("train.py", program + "os._exit(7)")
    done = user.types("run", "--run-dir", str(user.runs), "--", PYTHON, "train.py")
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert "not a record of dynotune's" in done.stderr
