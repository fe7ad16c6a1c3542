"""Folders that are one user's own."""

from __future__ import annotations

import os
import stat

import pytest

from dynotune.schema import private


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0, 0o022, 0o077, 0o777])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_private_folder_is_private_with_all_that_had_to_be_made_above_it(umask, tmp_path):
    made = private.folder(tmp_path / "a" / "b", "c", "d")
    assert made == tmp_path / "a" / "b" / "c" / "d"
    assert {mode(path) for path in (tmp_path / "a").rglob("*")} | {mode(tmp_path / "a")} == {0o700}


def test_one_that_others_may_write_is_closed_and_what_is_above_it_stays(tmp_path):
    (tmp_path / "top" / "in").mkdir(parents=True)
    for path in (tmp_path, tmp_path / "top", tmp_path / "top" / "in"):
        path.chmod(0o777)
    private.folder(tmp_path / "top", "in")
    assert [mode(path) for path in (tmp_path, tmp_path / "top", tmp_path / "top" / "in")] == [
        0o777,
        0o700,
        0o700,
    ]


def test_one_of_another_user_is_refused(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root to give files away")
    os.chown(private.folder(tmp_path / "top"), 65534, 65534)
    with pytest.raises(PermissionError, match="another user"):
        private.folder(tmp_path / "top", "in")
    assert not list((tmp_path / "top").iterdir())


def test_a_file_in_its_place_is_refused(tmp_path):
    (tmp_path / "top").touch()
    with pytest.raises(FileExistsError):
        private.folder(tmp_path / "top")
