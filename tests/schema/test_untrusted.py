"""Files that anyone may have written are opened in one way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dynotune.schema import untrusted


def test_reading_returns_the_content_when_the_file_is_ordinary_and_within_its_bound(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert untrusted.read(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        untrusted.read(tmp_path / "file", 4)


@pytest.mark.parametrize("link", [True, False])
def test_opening_refuses_at_once_when_the_file_is_a_pipe_a_folder_or_a_device(tmp_path, link):
    os.mkfifo(tmp_path / "pipe")
    for path, said in (
        (tmp_path / "pipe", "ordinary"),
        (tmp_path, "directory"),
        (Path("/dev/zero"), "ordinary"),
    ):
        with pytest.raises(OSError, match=said), untrusted.opened(path, link=link):
            pass


def test_opening_refuses_a_link_when_dynotune_chose_the_name(tmp_path):
    (tmp_path / "secret").write_bytes(b"another's")
    (tmp_path / "process-1-0.rec").symlink_to("secret")
    assert untrusted.read(tmp_path / "process-1-0.rec") == b"another's"
    with pytest.raises(OSError, match="it is a link"):
        untrusted.read(tmp_path / "process-1-0.rec", link=False)


def test_a_link_to_a_device_is_refused_when_links_are_followed(tmp_path):
    (tmp_path / "model.onnx").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="not an ordinary file"):
        untrusted.read(tmp_path / "model.onnx", 5)


def test_an_open_descriptor_is_read_when_it_is_a_pipe():
    read, write = os.pipe()
    os.write(write, b"piped")
    os.close(write)
    with os.fdopen(read, "rb"):
        assert untrusted.read(Path(f"/dev/fd/{read}")) == b"piped"


def test_a_piece_holds_no_more_than_the_file_when_more_is_asked_for(tmp_path):
    (tmp_path / "file").write_bytes(b"0123456789")
    assert untrusted.piece(tmp_path / "file", 2, 3) == b"234"
    assert untrusted.piece(tmp_path / "file", -4, 1 << 40) == b"6789"
    assert untrusted.piece(tmp_path / "file", -40, 2) == b"01"
    assert untrusted.piece(tmp_path / "file", 40, 2) == b""
