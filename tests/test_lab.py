"""Benchmarks and tests import `lab`, and never each other."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = ("lab/faults/programs", "lab/drivers", "lab/tuning/commands", "tests/faults/other_hand/programs")
"""Programs that stand alone: what they import lies beside them."""


def _names(folder: Path) -> set[str]:
    """The top-level names by which modules of a folder of scripts can be imported."""
    return {folder.name} | {path.stem for path in folder.glob("*.py")}


def _imports(path: Path) -> Iterator[str]:
    """Absolute imports; a relative one cannot leave the folder of its package."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def breaches(root: Path, importer: str, imported: str) -> list[str]:
    """Return the imports of a folder's modules by those of another, as `file: module`."""
    names = _names(root / imported)
    return [
        f"{path.relative_to(root)}: {module}"
        for path in sorted((root / importer).rglob("*.py"))
        if not path.relative_to(root).as_posix().startswith(PROGRAMS)
        for module in _imports(path)
        if module.partition(".")[0] in names
    ]


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("benchmarks", "tests"),
        ("tests", "benchmarks"),
        ("lab", "tests"),
        ("lab", "benchmarks"),
        ("src", "lab"),
    ],
)
def test_a_folder_does_not_import_another_when_lab_is_between_them(importer: str, imported: str) -> None:
    assert breaches(ROOT, importer, imported) == []


def test_an_import_is_named_when_a_test_imports_a_benchmark(tmp_path: Path) -> None:
    for name, text in {
        "benchmarks/speed.py": "from lab import provenance\n",
        "tests/test_speed.py": "import json\nfrom speed import main\n",
        "tests/inner/test_more.py": "def late():\n    import benchmarks.speed\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert breaches(tmp_path, "tests", "benchmarks") == [
        "tests/inner/test_more.py: benchmarks.speed",
        "tests/test_speed.py: speed",
    ]
    assert breaches(tmp_path, "benchmarks", "tests") == []


@pytest.mark.parametrize("script", [path.name for path in sorted((ROOT / "benchmarks").glob("*.py"))])
def test_benchmark_places_exist_when_a_script_is_imported(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    pytest.importorskip("torch")
    spec = spec_from_file_location(f"benchmark_{script[:-3]}", ROOT / "benchmarks" / script)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # a dataclass looks its module up there
    spec.loader.exec_module(module)
    places = {name: Path(value) for name, value in vars(module).items() if _is_place(value)}
    assert [name for name, place in places.items() if place.suffix == ".py" and not place.is_file()] == []


def _is_place(value: object) -> bool:
    return isinstance(value, (str, Path)) and str(value).startswith(str(ROOT)) and "\n" not in str(value)
