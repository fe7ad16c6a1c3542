"""Names of tests say what is tested: `test_<subject>_<does>_when_<case>`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
NO_SUBJECT = {"if", "it", "its", "that", "what", "whatever", "when", "where", "whether", "who", "why"}
"""First words that name no subject: a reader of the report would have to open the test."""


@pytest.mark.parametrize(
    "path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: str(path.relative_to(TESTS))
)
def test_names_begin_with_their_subject(path: Path) -> None:
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    names = [node.name for node in functions if node.name.startswith("test_")]
    assert [name for name in names if name.split("_")[1] in NO_SUBJECT] == []
