"""Rooms have faces, and other rooms import from these alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import dynotune

SOURCE = Path(dynotune.__file__).parent
APART = ("agent", "runtime")
"""They stand apart: nothing imports them, and `runtime` has a face for users."""
BY_NAME = ("schema",)
"""Its modules are the words themselves."""


def _modules() -> dict[str, Path]:
    paths = sorted(path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in APART)
    parts = {path: path.relative_to(SOURCE.parent).with_suffix("").parts for path in paths}
    return {".".join(part[:-1] if part[-1] == "__init__" else part): path for path, part in parts.items()}


MODULES = _modules()
FACES = [name for name, path in MODULES.items() if path.name == "__init__.py" and name != "dynotune"]


def _room(module: str) -> str:
    return (module + ".").split(".")[1]


def _tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def _public(package: str) -> list[str]:
    """The literal `__all__` of a package."""
    for statement in _tree(package).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(statement.value)
            return names
    pytest.fail(f"{package} has no __all__")


def _imports(module: str) -> Iterator[tuple[int, str, str]]:
    """Line, module and name of each import of ours; the name is empty for `import dynotune.a.b`."""
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: a relative import"
            yield from ((node.lineno, node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)


def _breaks(module: str, target: str, name: str) -> bool:
    """Whether `from target import name` in `module` reaches past the face of another room."""
    room = _room(target)
    if target not in MODULES or f"dynotune.{room}" not in FACES or room in (_room(module), *BY_NAME):
        return False
    return target not in FACES or name not in _public(target)


@pytest.mark.parametrize("package", FACES)
def test_a_room_says_what_it_holds_and_offers_names_that_exist(package: str) -> None:
    assert ast.get_docstring(_tree(package))
    names, face = _public(package), import_module(package)
    assert len(names) == len(set(names))
    for name in names:
        inner = f"{package}.{name}"
        found = import_module(inner) if inner in MODULES else getattr(face, name)
        # A name that is a module's must be this module, whichever of the two is imported first.
        assert getattr(face, name) is found


def test_other_rooms_import_from_faces_alone() -> None:
    assert [
        f"{MODULES[module].relative_to(SOURCE)}:{line}: {target} {name}"
        for module in MODULES
        for line, target, name in _imports(module)
        if _breaks(module, target, name)
    ] == []


def test_no_module_imports_the_face_of_its_own_room() -> None:
    """It is half made while its modules are imported. `cli` imports its subcommands when they are asked
    for."""
    assert [
        f"{module}:{line}: {target}"
        for module in MODULES
        for line, target, name in _imports(module)
        if target in FACES
        and f"{target}.{name}" not in MODULES
        and MODULES[module].is_relative_to(MODULES[target].parent)
        and target != "dynotune.cli"
    ] == []
