"""The journal: one owner of a document, on disk before anybody sees it."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from dynotune.measure.bench import Journal
from dynotune.schema import atomic, document
from dynotune.schema.comparison import Comparison, Pair, Voided
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.study import Study, Trial

from ...fakes import of_run


@pytest.fixture
def journal(tmp_path):
    return Journal(of_run(Comparison, id="c", candidate_settings=[]), tmp_path / "comparison.json")


def on_disk(tmp_path):
    return document.read(tmp_path / "comparison.json", Comparison)


def test_journal_saves_and_returns_the_new_document_when_something_is_added(journal, tmp_path):
    pair, voided = Pair("baseline", 1.0, 2.0), Voided(2, "another program")
    assert journal.add(pair).pairs == [pair]
    assert journal.add(voided) == journal.document == on_disk(tmp_path)
    assert (on_disk(tmp_path).pairs, on_disk(tmp_path).voided) == ([pair], [voided])


def test_journal_keeps_everything_before_when_the_disk_is_full(journal, tmp_path, monkeypatch):
    before = journal.add(Pair("baseline", 1.0, 2.0))

    def full(*args, **more):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "write", full)
        with pytest.raises(CannotRunHere, match="No space left"):
            journal.add(Pair("candidate", 1.0, 2.0))
    assert journal.document == before == on_disk(tmp_path)
    assert len(journal.add(Pair("candidate", 1.0, 2.0)).pairs) == 2


def test_journal_keeps_everything_before_when_its_file_cannot_grow(journal, tmp_path, largest_file):
    before = journal.add(Pair("baseline", 1.0, 2.0))
    largest_file((tmp_path / "comparison.json").stat().st_size + 100)
    with pytest.raises(CannotRunHere, match="File too large"):
        for _ in range(100):
            before = journal.add(Pair("candidate", 1.0, 2.0))
    assert journal.document == before == on_disk(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["comparison.json"]


def test_journal_loses_nothing_when_lanes_add_at_once():
    journal = Journal(of_run(Study, id="s", budget_s=1.0))

    def lane(number):
        for block in range(50):
            journal.add(Trial(arm="", phase="prune", block=block, ended="measured", lane=number))

    threads = [threading.Thread(target=lane, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(journal.document.trials) == 200


def test_part_is_stored_with_the_whole_when_it_changes():
    whole = Journal(of_run(Study, id="s", budget_s=1.0))
    whole.update(confirmed=of_run(Comparison, id="c", candidate_settings=[]))
    part = whole.part("confirmed")
    part.add(Pair("baseline", 1.0, 2.0))
    assert part.num(Pair) == 1
    assert part.update(unit="step") == part.document == whole.document.confirmed
