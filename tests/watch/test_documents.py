"""Following the document of a study or a comparison, and serving it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from dynotune.report import Doing
from dynotune.schema import document
from dynotune.schema.comparison import Comparison, Pair
from dynotune.schema.errors import CannotRunHere, RecordError
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting
from dynotune.watch import DocumentSource, DocumentWatcher, Server

from .test_served import asked

BEGUN = Comparison(
    id="c",
    run=RunSpec(command=["python", "train.py"], cwd=Path("/"), env={}, base=Path("/runs")),
    candidate_settings=[Setting("loader.num_workers", "2")],
)
ONE_PAIR = replace(BEGUN, pairs=[Pair("baseline", 0.02, 0.01)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    document.write(tmp_path / "comparison.json", BEGUN)
    return tmp_path


def write_later(folder: Path, found: Comparison) -> None:
    """Write the document as at another moment, whatever the clock's steps are."""
    file = folder / "comparison.json"
    document.write(file, found)
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 10**9))


def test_watcher_reads_the_document_again_when_it_was_written(folder):
    watcher = DocumentWatcher(folder, Doing)
    assert watcher.document() is watcher.document()
    before = watcher.version
    write_later(folder, ONE_PAIR)
    assert len(watcher.document().pairs) == 1
    assert watcher.version != before
    assert not watcher.is_over


def test_watcher_keeps_the_last_document_when_the_file_cannot_be_read(folder):
    watcher = DocumentWatcher(folder, Doing)
    watcher.document()
    (folder / "comparison.json").write_text("{")
    assert watcher.document().id == "c"
    with pytest.raises(RecordError):
        DocumentWatcher(folder, Doing).document()


def test_watcher_knows_that_nobody_measures_when_no_process_uses_the_folder(folder):
    assert DocumentWatcher(folder).doing().has_ended
    assert DocumentWatcher(folder).is_over


def test_watcher_writes_nothing_into_the_folder(folder):
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    watcher = DocumentWatcher(folder)
    watcher.document(), watcher.doing()
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_watcher_refuses_a_folder_that_holds_no_document(tmp_path):
    with pytest.raises(CannotRunHere, match="not the folder of a study"):
        DocumentWatcher(tmp_path)


def test_server_tells_the_sections_once_for_a_document(folder):
    watcher = DocumentWatcher(folder, lambda: Doing("pair 1", spent_s=1.0))
    server = Server("127.0.0.1:0", DocumentSource(lambda: watcher))
    try:
        first = json.loads(asked(server, "/page.json")[1])
        assert "pair 1" in first["header"]
        assert first["story"]
        assert first["again_s"] == 2.0
        version = first["story_version"].replace(" ", "%20")
        again = json.loads(asked(server, f"/page.json?story={version}")[1])
        assert (again["story"], again["nav"]) == (None, None)
        write_later(folder, ONE_PAIR)
        later = json.loads(asked(server, f"/page.json?story={version}")[1])
        assert "2.00×" in later["story"]
        assert asked(server, "/metrics")[0] == 501
    finally:
        server.close()


def test_server_ends_at_once_when_a_page_has_got_the_answer(folder, monkeypatch):
    waited = []
    watcher = DocumentWatcher(folder, Doing)
    server = Server("127.0.0.1:0", DocumentSource(lambda: watcher))
    wait = server._end_is_told.wait  # the answer is read before the server's thread knows that it was written
    monkeypatch.setattr(server._end_is_told, "wait", lambda for_s: waited.append((for_s, wait(30))))
    asked(server, "/page.json")
    write_later(folder, replace(BEGUN, verdict="same", speedup=1.0, ci=(0.99, 1.01)))
    assert json.loads(asked(server, "/page.json")[1])["is_over"]
    server.close()
    assert waited == [(3.0, True)]


def test_server_waits_for_a_document_that_is_not_begun_yet(folder):
    found: list[DocumentWatcher] = []
    server = Server("127.0.0.1:0", DocumentSource(lambda: found[0] if found else None))
    try:
        assert asked(server, "/page.json") == (200, "{}")
        assert "Waiting for the first state" in asked(server, "/")[1]
        found.append(DocumentWatcher(folder, Doing))
        assert "Nothing is proved yet" in asked(server, "/page.json")[1]
    finally:
        server.close()
