"""Evidence on disk: whole or not at all, and refused where it was edited."""

from __future__ import annotations

import hashlib
import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynotune.claims import flipped, named, new_bundle, read, with_evidence, write
from dynotune.claims.running import judged, program_hash
from dynotune.schema.claims import Bundle, Evidence
from dynotune.schema.comparison import Comparison, Pair
from dynotune.schema.errors import RecordError
from dynotune.schema.run import RunSpec

from .. import fakes

PAIRS = [Pair(first, 1.0 + 0.001 * number, 0.5) for number, first in enumerate(["baseline", "candidate"] * 2)]


def evidence(id_="map-of-256-mb", **fields) -> Evidence:
    (claim,) = named([id_])
    return judged(claim, Evidence(id=id_, verdict="failed", program=program_hash(claim), **fields))


def compared(pairs=PAIRS) -> Evidence:
    run = fakes.of_run(
        Comparison,
        id="c",
        candidate_settings=[],
        verdict="faster",
        pairs=pairs,
        num_pairs=len(pairs),
        max_pairs=8,
    )
    return evidence("vector-not-loop", fair=[run, run])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A bundle with a check and a comparison, and its file."""
    folder = tmp_path_factory.mktemp("bundle")
    bundle = new_bundle(RunSpec(command=[sys.executable], cwd=folder, base=folder))
    bundle = with_evidence(bundle, evidence(answer={"so": False, "seen": "419, claimed 256"}))
    bundle = with_evidence(bundle, compared())
    write(folder / "bundle.json", bundle)
    return folder / "bundle.json"


def test_a_bundle_comes_back_as_it_was_written(whole):
    bundle, notes = read(whole)
    assert notes == []
    assert [(one.id, one.verdict) for one in bundle.evidence] == [
        ("map-of-256-mb", "refuted"),
        ("vector-not-loop", "holds"),
    ]
    assert bundle.facts["torch.version"]


def test_newer_evidence_takes_the_place_of_older(whole):
    bundle = with_evidence(read(whole)[0], evidence(answer={"untestable": "no torch"}))
    assert {one.id: one.verdict for one in bundle.evidence}["map-of-256-mb"] == "not testable here"
    assert len(bundle.evidence) == 2


@given(st.data())
@settings(max_examples=60)
def test_a_bundle_with_any_byte_changed_is_refused(whole, data):
    raw = bytearray(whole.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    changed = data.draw(st.integers(0, 255))
    damaged = whole.with_name("damaged.json")
    damaged.write_bytes(raw[:at] + bytes([changed]) + raw[at + 1 :])
    try:
        same = json.loads(damaged.read_bytes()) == json.loads(whole.read_bytes())
    except ValueError:
        same = False
    if not same:
        with pytest.raises(RecordError):
            read(damaged)


@pytest.mark.parametrize("size", [0, 1, 100, -3])
def test_a_bundle_that_was_cut_short_is_refused(whole, tmp_path, size):
    short = tmp_path / "short.json"
    short.write_bytes(whole.read_bytes()[:size])
    with pytest.raises(RecordError):
        read(short)


def edited(whole, tmp_path, edit):
    """Edit a bundle, and give it the checksum that belongs to it."""
    plain = json.loads(whole.read_bytes())
    edit(plain)
    signed = {name: value for name, value in plain.items() if name != "sha256"}
    text = json.dumps(signed, sort_keys=True, separators=(",", ":"))
    plain["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    file = tmp_path / "edited.json"
    file.write_text(json.dumps(plain))
    return file


@pytest.mark.parametrize(
    "edit",
    [
        lambda plain: plain["evidence"][0].update(verdict="holds"),
        lambda plain: plain["evidence"][0]["answer"].update(so=True),
        lambda plain: plain["evidence"][1].update(verdict="refuted"),
        lambda plain: plain["evidence"][1]["fair"][0].update(verdict="slower"),
        lambda plain: [pair.update(candidate_s=2.0) for pair in plain["evidence"][1]["fair"][0]["pairs"]],
        lambda plain: plain["evidence"][1]["fair"][0].update(pairs=[]),
        lambda plain: plain["evidence"][1]["fair"].pop(),
    ],
)
def test_a_verdict_that_its_values_do_not_carry_is_refused_whatever_the_checksum(whole, tmp_path, edit):
    with pytest.raises(RecordError, match="is not what its values say"):
        read(edited(whole, tmp_path, edit))


def test_words_of_a_bundle_are_those_that_its_values_give_whatever_the_file_says(whole, tmp_path):
    told = read(whole)[0].evidence[0].seen
    forged = edited(whole, tmp_path, lambda plain: plain["evidence"][0].update(seen="256, claimed 256"))
    assert read(forged)[0].evidence[0].seen == told


def test_bundle_notes_evidence_of_another_program(whole, tmp_path):
    file = edited(
        whole, tmp_path, lambda plain: plain["evidence"][0].update(program="0" * 64, verdict="holds")
    )
    assert read(file)[1] == ["map-of-256-mb: tested by another program"]
    file = edited(whole, tmp_path, lambda plain: plain["evidence"][0].update(id="no-such-claim"))
    assert read(file)[1] == ["no-such-claim: not in this ledger"]


def test_bundle_is_refused_when_a_file_is_none(tmp_path):
    for name, content in {"other.json": b'{"schema": "dynotune.run/2"}', "text.json": b"hello"}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(RecordError):
            read(tmp_path / name)
    with pytest.raises(RecordError):
        read(tmp_path / "missing.json")


def test_only_settled_verdicts_flip():
    before = [
        Evidence(id="a", verdict="holds"),
        Evidence(id="b", verdict="undecided"),
        Evidence(id="c", verdict="holds"),
    ]
    now = [
        Evidence(id="a", verdict="refuted"),
        Evidence(id="b", verdict="holds"),
        Evidence(id="c", verdict="failed"),
    ]
    changed = flipped(Bundle(version="1", facts={}, evidence=now), before)
    assert [(then.id, then.verdict, new.verdict) for then, new in changed] == [("a", "holds", "refuted")]
