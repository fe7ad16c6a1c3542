"""The reference of the runtime is made from its docstrings."""

from __future__ import annotations

import ast
from pathlib import Path

from runtime_page import MODULES, RUNTIME, page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "runtime.md"


def test_the_page_is_what_the_docstrings_say():
    assert PAGE.read_text() == page(), "run `make runtime-reference`"


def test_every_public_name_of_the_runtime_is_on_the_page():
    text = page()
    files = [
        RUNTIME / "__init__.py",
        *(RUNTIME / f"{name}.py" for names in MODULES.values() for name in names),
    ]
    for file in files:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                missing = [name for name in ast.literal_eval(node.value) if f"### `{name}`" not in text]
                # Types that are only names for others have no docstring.
                assert [name for name in missing if name not in ("Drop", "Compile", "Mode")] == [], file
