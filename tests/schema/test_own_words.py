"""The redaction of secrets leaves dynotune's own words as they are."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dynotune
from dynotune.schema.redaction import redacted

SOURCE = Path(dynotune.__file__).parent
# Of the redaction itself, patterns; of the agent and the runtime, code for other processes.
APART = ("agent", "runtime", "schema/redaction.py", "claims/programs")


def messages(tree: ast.AST) -> Iterator[str]:
    """Text that is given to something as an argument, or returned: a message, never a docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            values = [*node.args, *(each.value for each in node.keywords)]
        elif isinstance(node, ast.Assign | ast.Return) and node.value is not None:
            values = [node.value]
        else:
            continue
        for value in values:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value
            elif isinstance(value, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in value.values)


@pytest.mark.parametrize(
    "path",
    [path for path in SOURCE.rglob("*.py") if not str(path.relative_to(SOURCE)).startswith(APART)],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_a_message_stays_as_it_is_when_secrets_are_taken_out(path):
    spoiled = [
        text for text in messages(ast.parse(path.read_text(encoding="utf-8"))) if redacted(text) != text
    ]
    assert not spoiled, [redacted(text) for text in spoiled]


@pytest.mark.parametrize("path", list(SOURCE.rglob("*.toml")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_text_of_a_table_stays_as_it_is_when_secrets_are_taken_out(path):
    def texts(value: Any) -> Iterator[str]:
        if isinstance(value, dict | list):
            for inner in value.values() if isinstance(value, dict) else value:
                yield from texts(inner)
        elif isinstance(value, str):
            yield value

    assert not [
        text for text in texts(tomllib.loads(path.read_text(encoding="utf-8"))) if redacted(text) != text
    ]
