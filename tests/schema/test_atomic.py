"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from dynotune.schema import atomic


def test_a_file_is_written_and_nothing_is_left_beside_it(tmp_path):
    atomic.write(tmp_path / "new.json", b"content")
    assert (tmp_path / "new.json").read_bytes() == b"content"
    assert [path.name for path in tmp_path.iterdir()] == ["new.json"]


def test_writing_that_fails_half_way_leaves_the_file_from_before(tmp_path, largest_file):
    (tmp_path / "out.json").write_bytes(b"before")
    largest_file(64 << 10)
    with pytest.raises(OSError, match="File too large"):
        atomic.write(tmp_path / "out.json", bytes(1 << 20))
    assert (tmp_path / "out.json").read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_file_keeps_its_mode_and_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_bytes(b"before")
    (tmp_path / "real").chmod(0o600)
    (tmp_path / "link").symlink_to("real")
    atomic.write(tmp_path / "link", b"after")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"after"
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o600


def test_write_lets_nobody_else_read_the_partial_file_when_the_target_is_private(tmp_path, monkeypatch):
    (tmp_path / "real").touch(mode=0o600)
    opened: list[int] = []
    fchmod = os.fchmod

    def seen(file: int, mode: int) -> None:
        opened.append(os.fstat(file).st_mode & 0o777)
        assert os.fstat(file).st_size == 5
        fchmod(file, mode)

    monkeypatch.setattr(os, "fchmod", seen)
    for mode in (0o600, 0o640):
        (tmp_path / "real").chmod(mode)
        atomic.write(tmp_path / "real", b"after")
        assert (tmp_path / "real").stat().st_mode & 0o777 == mode
    assert opened == [0o600, 0o600]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_write_keeps_the_owner_when_that_is_permitted(tmp_path):
    (tmp_path / "real").touch()
    os.chown(tmp_path / "real", 1234, 2345)
    atomic.write(tmp_path / "real", b"after")
    assert ((tmp_path / "real").stat().st_uid, (tmp_path / "real").stat().st_gid) == (1234, 2345)


def test_a_link_that_somebody_planted_beside_the_file_is_not_followed(tmp_path):
    (tmp_path / "victim").write_bytes(b"mine")
    (tmp_path / "out.json.partial").symlink_to("victim")
    atomic.write(tmp_path / "out.json", b"content")
    assert (tmp_path / "victim").read_bytes() == b"mine"
    assert not (tmp_path / "out.json").is_symlink()


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    atomic.write(tmp_path / "pipe", b"content")
    reader.join(timeout=60)
    assert read == [b"content"]
    assert (tmp_path / "pipe").is_fifo()


def test_an_open_descriptor_is_written_to_and_its_file_not_replaced(tmp_path):
    with (tmp_path / "out.txt").open("w+b") as file:
        atomic.write(Path(f"/dev/fd/{file.fileno()}"), b"content")
        assert file.read() == b"content"


@pytest.fixture
def mounted_file(tmp_path):
    """A file that is mounted by itself, as containers have."""
    (tmp_path / "elsewhere").write_bytes(b"before")
    (tmp_path / "project").mkdir()
    path = tmp_path / "project" / "out.json"
    path.touch()
    done = subprocess.run(["mount", "--bind", str(tmp_path / "elsewhere"), str(path)], capture_output=True)
    if done.returncode:
        pytest.skip("this machine lets nobody mount")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_file_that_cannot_be_replaced_is_written_in_place(mounted_file):
    atomic.write(mounted_file, b"after")
    assert mounted_file.read_bytes() == b"after"
    assert [path.name for path in mounted_file.parent.iterdir()] == [mounted_file.name]


def test_atomic_write_leaves_neighbouring_files_alone_whatever_their_names(tmp_path):
    (tmp_path / "out.json.partial").write_text("precious")
    atomic.probe(tmp_path / "out.json")
    atomic.write(tmp_path / "out.json", b"content")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "out.json.partial": "precious",
        "out.json": "content",
    }


def test_under_a_name_of_ours_a_link_is_replaced_and_its_file_stays(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "report.html").symlink_to("victim")
    os.mkfifo(tmp_path / "study.json")
    for name in ("report.html", "study.json", "new"):
        atomic.write(tmp_path / name, b"content", own_name=True)
        assert (tmp_path / name).read_text() == "content" and not (tmp_path / name).is_symlink()
    assert (tmp_path / "victim").read_text() == "mine"
