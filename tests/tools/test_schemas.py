from __future__ import annotations

import json
from pathlib import Path

import pytest
from schemas import schemas

from dynotune.schema import document

from ..report import answers

FOLDER = Path(__file__).parents[2] / "docs/reference/schemas"


def test_the_schemas_are_those_of_the_structs():
    assert {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")} == schemas(), (
        "make schemas"
    )


def test_a_document_that_is_written_is_valid_by_its_schema_and_a_damaged_one_is_not():
    jsonschema = pytest.importorskip("jsonschema")
    schema, written = (
        json.loads(schemas()["comparison.json"]),
        json.loads(document.encode(answers.comparison())),
    )
    jsonschema.validate(written, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(written | {"verdict": "splendid"}, schema)
