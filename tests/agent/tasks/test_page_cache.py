"""Files that leave the page cache."""

from __future__ import annotations

import os

from dynotune.agent.tasks import page_cache


def test_files_of_the_working_directory_leave_the_page_cache(tmp_path, monkeypatch):
    path = tmp_path / "below" / "data.bin"
    path.parent.mkdir()
    path.write_bytes(os.urandom(1 << 20))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        file.read()
    (tmp_path / "gone").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(page_cache, "_open_files", lambda: iter(()))
    found = page_cache.drop()
    assert (found["num_files"], found["num_bytes"], found["num_refused"]) == (1, 1 << 20, 1)
    assert found["complete"]
    assert found["resident_bytes"] <= found["probed_bytes"] <= 1 << 20


def test_a_file_that_this_process_has_open_is_among_those_dropped(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(b"1")
    with path.open("rb"):
        assert str(path.resolve()) in list(page_cache._open_files())
