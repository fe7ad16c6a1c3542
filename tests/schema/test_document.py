"""Documents: what a run was, read back as it was, without secrets; what another version wrote is refused."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.schema import document
from dynotune.schema.comparison import Comparison
from dynotune.schema.errors import RecordError
from dynotune.schema.setting import Setting

from ..fakes import of_run, spec


def test_a_run_is_read_back_as_it_was_written(tmp_path):
    run = spec(
        cwd=tmp_path,
        settings=[Setting("env.A", "1")],
        step_function="a:b",
        seed=3,
        timeout_s=1.5,
        sandbox=False,
    )
    made = of_run(Comparison, id="c", run=run, candidate_settings=[])
    document.write(tmp_path / "comparison.json", made)
    assert document.read(tmp_path / "comparison.json", Comparison) == made


def test_the_environment_of_a_run_never_reaches_its_record(tmp_path):
    run = spec(env={"TOKEN": "secret"})
    assert b"secret" not in document.encode(
        of_run(Comparison, id="c", run=run.recorded, candidate_settings=[])
    )


def test_a_run_that_goes_on_has_todays_environment_folder_and_lock_and_else_what_it_had(tmp_path):
    begun = spec(command=["train"], seed=3, caches="cold", run_to_end=True)
    now = spec(command=[], env={"A": "1"}, base=tmp_path, lock=False, seed=9)
    resumed = begun.resumed(now)
    assert (resumed.env, resumed.base, resumed.lock) == ({"A": "1"}, tmp_path, False)
    assert resumed.resumed(begun) == begun


def test_a_record_of_another_version_is_refused_with_what_to_do():
    with pytest.raises(RecordError, match=r"x is dynotune\.comparison/1, and this dynotune reads") as refused:
        document.decode(b'{"schema": "dynotune.comparison/1"}', Comparison, name="x")
    assert "Make it again" in refused.value.hint and "that wrote it" in refused.value.hint


def test_a_path_that_is_none_is_refused_as_any_wrong_field_is():
    raw = document.encode(of_run(Comparison, id="c", candidate_settings=[])).replace(b'"/runs"', b"7")
    with pytest.raises(RecordError, match="not a valid dynotune"):
        document.decode(raw, Comparison, name="x")
    assert Path("/") == document.decode(raw.replace(b": 7", b': "/"'), Comparison, name="x").run.base


OF_ANYTHING = msgspec.defstruct("OfAnything", [("schema", str, "x"), ("a", Any, None)])


@given(
    st.lists(st.binary(max_size=8), min_size=1),
    st.text(st.characters(categories=["Cs", "L", "So"]), max_size=4),
)
def test_a_command_of_any_bytes_is_read_back_as_the_same_bytes(words, text):
    command = [os.fsdecode(word) for word in words] + [text]
    made = of_run(Comparison, id="c", run=spec(command=command), candidate_settings=[])
    for indent in (0, 1):
        raw = document.encode(made, indent=indent)
        assert document.decode(raw, Comparison, name="x") == made
        assert json.loads(raw)["run"]["command"] == command
        assert (b"\n" in raw) is bool(indent)


@given(st.floats())
def test_a_number_that_json_does_not_know_is_none_beside_bytes_too(number):
    beside = [json.loads(document.encode([number, text]))[0] for text in ("text", "\udcff")]
    assert beside[0] == beside[1]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"[" * 100_000, "nests? too deeply"),
        (b"1e400", "out of range|no number"),
        (b"1" * 5000, "111… is not a number that it may hold"),
        (b"-" + b"9" * 20, "is not a number that it may hold"),
        (b'["\\ud800", NaN]', "NaN is not a number"),
        (b'"\xff"', "byte 19 is no UTF-8"),
        (b'"\\ud800', "is not a complete JSON document"),
        (b"", "malformed"),
    ],
    ids=["depth", "exponent", "digits", "64-bits", "nan", "bytes", "half", "cut"],
)
def test_json_that_python_would_stumble_over_is_refused_in_words(value, why):
    with pytest.raises(RecordError, match=why) as refused:
        document.decode(b'{"schema":"x","a":' + value + b"}", OF_ANYTHING, name="x")
    assert "recursion" not in str(refused.value) and "codec" not in str(refused.value)


@pytest.mark.parametrize("rare", [b'"\\udc80"', b"1234567890123456789"])
def test_parse_refuses_a_text_when_it_needs_care_and_has_too_many_values(monkeypatch, rare):
    monkeypatch.setattr(document, "MOST_VALUES", 100)
    many = b'{"x": [' + b"[]," * 100 + b'0], "schema": "s/1"'
    assert document.parse(many + b"}", document.Head).schema == "s/1", "msgspec skips them"
    with pytest.raises(ValueError, match="more than 100 values"):
        document.parse(many + b', "z": ' + rare + b"}", document.Head)
