"""Readers of files from elsewhere: what is valid is read, and what is not is refused, in a reasonable
time."""

from __future__ import annotations

import pickle
import tarfile
from random import Random

import pytest

from dynotune import api
from dynotune.schema import cache_pack, document
from dynotune.schema.errors import DynotuneError
from dynotune.schema.observation import Observation
from dynotune.schema.study import Study
from dynotune.trace.snapshot import plain_pickle

from . import mutations
from .formats import READERS, Reader, dynotune
from .readers import attack

PAYLOAD = (
    "\x1b]0;t\x07\x1b[2J\u202e\0 [red]r[/] :smile: </script><img src=x onerror=alert(1)>\"'`&{{7*7}} "
    "$(id);\r| # \udcff"
)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_the_files_that_are_mutated_are_valid(reader: Reader, tmp_path):
    reader.seeds(tmp_path)
    for number, path in enumerate(sorted(tmp_path.iterdir())):
        alone = tmp_path / str(number)
        alone.mkdir()
        reader.read(path.rename(alone / path.name))


def test_documents_are_of_every_kind_that_report_reads(tmp_path):
    next(reader for reader in READERS if reader.name == "document").seeds(tmp_path)
    assert {api.noun_of(path) for path in tmp_path.glob("*.json")} == set(api.documents._kinds())


def test_a_mutated_file_is_read_or_refused_in_words():
    counts = attack(150, seed=41)
    assert counts.failures == []
    assert counts.tried.total() == counts.refused.total() + counts.read.total() == counts.held.total() == 150
    assert set(counts.tried) == {reader.name for reader in READERS}
    assert min(counts.refused.total(), counts.read.total()) > 30


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_mutation_can_be_made_again_and_is_one(reader: Reader, tmp_path):
    reader.seeds(tmp_path)
    path = sorted(tmp_path.iterdir())[0]
    content, scratch = path.read_bytes(), tmp_path / "scratch"
    scratch.mkdir()
    first, again = ([reader.mutate(Random(seed), content, scratch) for seed in range(8)] for _ in range(2))
    # A zipped file holds when it was made.
    assert first == again or reader.name == "gzipped trace"
    assert any(made != content for made in first)


def test_a_mutation_leaves_the_values_that_later_ones_get():
    before, random = repr(mutations.VALUES), Random(5)
    for _ in range(3000):
        mutations.changed(random, {"a": [[], {}, [{}]], "b": {"c": []}})
    assert repr(mutations.VALUES) == before


def test_readers_attack_tells_how_a_read_ended_from_outside(monkeypatch):
    def ends_in_many_ways(path):
        match int(path.parent.name.split()[1]) % 5:
            case 1:
                raise DynotuneError("It is no trace.", hint="Give one.")
            case 2:
                raise DynotuneError("It is none: maximum recursion depth exceeded")
            case 3:
                [bytes(1 << 30) for _ in range(4)]
            case 4:
                raise SystemExit(0)

    reader = Reader(
        "odd", lambda folder: (folder / "x").write_bytes(b"{}") and None, ends_in_many_ways, READERS[0].mutate
    )
    monkeypatch.setitem(attack.__globals__, "READERS", (reader,))
    counts = attack(10, seed=1)
    assert [each["odd"] for each in (counts.read, counts.refused, counts.memory, counts.crashed)] == [
        2,
        2,
        2,
        4,
    ]
    assert len(counts.failures) == 6


def of_hostile(name, monkeypatch, number):
    """What the attack says of so many hostile files of that kind."""
    chosen = [reader for reader in READERS if reader.name == f"hostile {name}"]
    monkeypatch.setitem(attack.__globals__, "READERS", chosen)
    return " ".join(attack(number, seed=3).failures)


def test_readers_attack_sees_a_pack_that_gets_out_when_paths_are_not_checked(monkeypatch):
    monkeypatch.setattr(cache_pack, "path_problem", lambda path: "")
    monkeypatch.setattr(tarfile.TarFile, "_get_filter_function", lambda *_: tarfile.fully_trusted_filter)
    assert "crashed: hostile pack" in of_hostile("pack", monkeypatch, 60)


def test_readers_attack_sees_a_pickle_that_runs_when_instructions_are_not_checked(monkeypatch):
    monkeypatch.setattr(plain_pickle, "_check", lambda raw, name: len(raw))
    monkeypatch.setattr(plain_pickle, "_Unpickler", pickle.Unpickler)
    assert "an instruction of the pickle ran" in of_hostile("snapshot", monkeypatch, 60)


# Texts


def hostile(path):
    """Put the payload into every string of the document at `path` that may be any text; give what a report
    reads."""
    plain = document.parse(path.read_bytes())
    type_ = Observation if plain["schema"].startswith("dynotune.observation/") else type(api.load(path))
    for box, key in list(mutations.places(plain)):
        if isinstance(was := box[key], str):
            box[key] = PAYLOAD + was
            try:
                document.convert(plain, type_, str_keys=True)
            except ValueError:
                box[key] = was
    plain["schema"] = document.parse(path.read_bytes(), document.Head).schema
    path.write_bytes(document.encode(plain))
    return api.load(path)


def test_no_text_of_a_document_acts_on_a_terminal_or_a_page(tmp_path):
    next(reader for reader in READERS if reader.name == "document").seeds(tmp_path)
    for path in sorted(tmp_path.glob("*.json")):
        found = hostile(path)
        text = dynotune("report", path)
        assert ":smile:" in text and "[red]r[/]" in text, path.name
        assert document.parse(document.encode(found), type(found)) == found
        if isinstance(found, Study):
            page = path.with_name("report.html").read_text()
            assert "<img" not in page and "\x1b" not in page and "\u202e" not in page
