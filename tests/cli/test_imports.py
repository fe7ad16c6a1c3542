"""What importing a module costs: heavy packages are imported where they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import dynotune
from dynotune.cli import COMMANDS

SOURCE = Path(dynotune.__file__).parent
HEAVY = ("numpy", "psutil", "pynvml", "rich", "scipy")
NOT_THE_PARENT = ("agent", "runtime", "claims/programs")  # all need a program with torch around them


def imported(modules: Sequence[str], watched: Sequence[str]) -> str:
    """Which of the watched packages a bare interpreter has after it imported these modules."""
    code = f"import sys, {', '.join(modules)}\nprint(*sorted({set(watched)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def of_the_parent() -> list[str]:
    paths = [path.relative_to(SOURCE).with_suffix("") for path in sorted(SOURCE.rglob("*.py"))]
    names = [
        path.parts
        for path in paths
        if not any(path.is_relative_to(apart) for apart in NOT_THE_PARENT) and path.name != "__main__"
    ]
    return [".".join(("dynotune", *parts)).removesuffix(".__init__") for parts in names]


def at_import(body: Sequence[ast.stmt]) -> Iterator[tuple[int, str]]:
    """Line and module of each import that runs when the module is imported."""
    for statement in body:
        if isinstance(statement, ast.Import):
            yield from ((statement.lineno, alias.name) for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            yield statement.lineno, statement.module or ""
        elif not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) and not _is_for_types(
            statement
        ):
            for part in ("body", "orelse", "finalbody"):
                yield from at_import(getattr(statement, part, []))
            for handler in getattr(statement, "handlers", []):
                yield from at_import(handler.body)


def _is_for_types(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test)


@pytest.mark.parametrize("module", ["dynotune.cli", *(f"dynotune.cli.{name}" for name in COMMANDS)])
def test_a_subcommand_imports_only_what_parsing_needs(module):
    assert imported([module], HEAVY) == ""


def test_no_module_of_the_parent_brings_scipy_with_it():
    assert imported(of_the_parent(), ["scipy"]) == ""


def test_no_source_file_imports_scipy_at_its_top():
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, module in at_import(ast.parse(path.read_text(encoding="utf-8")).body)
        if module.partition(".")[0] == "scipy"
    ]
    assert found == []
