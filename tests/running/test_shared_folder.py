"""Where run folders are made for a target with another root, and which folders of it are refused."""

from __future__ import annotations

import os

import pytest

from dynotune.launch import new_run_folder
from dynotune.running import process_files
from dynotune.running.shared_folder import shared_folder
from dynotune.schema.errors import CannotRunHere


@pytest.fixture
def root(tmp_path):
    """The root of a process with id 7 below `tmp_path / "proc"`."""
    (tmp_path / "root").mkdir()
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "root").symlink_to(tmp_path / "root")
    return tmp_path / "root"


def target():
    return process_files.read(os.getpid())._replace(pid=7)


def temporary(root, name="tmp", mode=0o1777):
    folder = root / name
    folder.mkdir(parents=True)
    folder.chmod(mode)
    return folder


def test_folder_is_in_our_state_when_both_see_the_same_files(tmp_path):
    with shared_folder(process_files.read(os.getpid())) as shared:
        assert shared.is_own and shared.base == tmp_path / "state" / "dynotune" / "joined"
        assert shared.of_target(shared.base / "x") == str(shared.base / "x")


def test_run_folder_is_in_the_targets_root_when_that_is_another(root, tmp_path):
    folder = temporary(root)
    with shared_folder(target(), tmp_path / "proc") as shared:
        made = new_run_folder(shared.base)
        assert [path.name for path in folder.iterdir()] == [made.name]
        assert made.stat().st_mode & 0o777 == 0o700
        assert shared.of_target(made / "plan.json") == f"/tmp/{made.name}/plan.json"


def test_run_folder_stays_where_it_was_when_the_folder_is_swapped_for_a_link(root, tmp_path):
    folder, host = temporary(root), tmp_path / "host"
    host.mkdir()
    with shared_folder(target(), tmp_path / "proc") as shared:
        folder.rename(root / "moved")
        folder.symlink_to(host)
        made = new_run_folder(shared.base)
        assert (root / "moved" / made.name).exists() and not list(host.iterdir())


def test_folder_is_passed_over_when_it_is_a_link_or_others_can_rename_in_it(root, tmp_path):
    host = tmp_path / "host"
    host.mkdir()
    (root / "tmp").symlink_to(host)
    temporary(root, "var/tmp", 0o777)
    temporary(root, "dev/shm")
    with shared_folder(target(), tmp_path / "proc") as shared:
        assert shared.seen_as == "/dev/shm"


def test_joining_is_refused_when_no_folder_is_safe(root, tmp_path):
    (root / "tmp").symlink_to(tmp_path)
    (root / "var").symlink_to(tmp_path)
    with (
        pytest.raises(CannotRunHere, match="no folder for temporary files"),
        shared_folder(target(), tmp_path / "proc"),
    ):
        pass
