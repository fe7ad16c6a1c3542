"""Names of modules, functions and fields that comments, docstrings and documents give in backticks exist in
the code.

A reference is a dotted name that begins with a room or with `dynotune.`, such as `measure.live` or
`schema.run.RunSpec`, or the path of a file in a room, such as `schema/run.py`. The code is read, not
imported.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/dynotune"
ROOMS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file())
FACES = sorted(PACKAGE.rglob("__init__.py"))
SOURCES = sorted(PACKAGE.rglob("*.py"))
DATA = sorted(PACKAGE.rglob("*.toml"))
PAGES = sorted([ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])

FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
NAME = re.compile(rf"((?:dynotune(?=\.)|{'|'.join(ROOMS)})(?:\.\w+)+)(?:\(.*\))?", re.DOTALL)
PATH = re.compile(rf"(?:{'|'.join(ROOMS)})(?:/\w+)+\.(?:py|toml)")
FILE_SUFFIXES = ("html", "json", "log", "toml", "txt")
"""Last parts of names of files, such as `dynotune.toml`: not of names in the code."""
WORD = re.compile(r"[a-z]\w+")
OF_NO_MODULE = {"dynotune", "pynvml", "root"}
"""Words in the docstrings of faces: the program, a library, and a parameter that a whole room has."""
OF_THE_KERNEL = {"memory.current", "memory.events", "memory.max", "memory.stat"}
"""Files of a control group, whose names begin as a room's."""


def references(text: str) -> Iterator[str]:
    """Yield the references in backticks."""
    for span in SPAN.findall(FENCED.sub("", text)):
        if PATH.fullmatch(span):
            yield span
            continue
        match = NAME.fullmatch(span)
        if match is None or match[1] in OF_THE_KERNEL or match[1].rpartition(".")[2] in FILE_SUFFIXES:
            continue
        yield match[1]


def prose(path: Path) -> str:
    """Return a page, or the docstrings and comments of a module, or the comments of a TOML file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    if path.suffix == ".toml":
        return _joined([line for line in text.splitlines() if line.lstrip().startswith("#")])
    statements = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr)]
    docstrings = [
        one.value for one in statements if isinstance(one, ast.Constant) and isinstance(one.value, str)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return "\n\n".join([*docstrings, _joined(comments)])


def _joined(comments: list[str]) -> str:
    """Join lines of comments, so that a reference may be broken at the end of a line."""
    return "\n".join(comment.lstrip().removeprefix("#").strip() for comment in comments)


def exists(reference: str) -> bool:
    """Return whether a reference names a module, a file, or what a module defines or imports."""
    if "/" in reference:
        return (PACKAGE / reference).is_file()
    return _is_below(PACKAGE, reference.removeprefix("dynotune.").split("."))


def _is_below(place: Path, parts: list[str]) -> bool:
    """Return whether the parts lead to a name, starting from a package."""
    if not parts:
        return True
    if (place / parts[0] / "__init__.py").is_file():
        return _is_below(place / parts[0], parts[1:])
    if (place / f"{parts[0]}.py").is_file():
        return _is_defined(place / f"{parts[0]}.py", parts[1:])
    return _is_defined(place / "__init__.py", parts)


def _is_defined(module: Path, parts: list[str]) -> bool:
    if not parts:
        return True
    definitions = _definitions(module)
    if parts[0] not in definitions:
        return False
    definition = definitions[parts[0]]
    if isinstance(definition, str):  # the name of another module of ours, or of a name in it
        return _is_below(PACKAGE, [*definition.split(".")[1:], *parts[1:]])
    if isinstance(definition, ast.ClassDef):
        return len(parts) == 1 or (len(parts) == 2 and _has_member(module, definition, parts[1]))
    return len(parts) == 1


@functools.cache
def _definitions(module: Path) -> dict[str, ast.stmt | str]:
    """Return what a module defines, by name; for what it imports from us, the full name of that."""
    found: dict[str, ast.stmt | str] = {}
    package = ".".join(["dynotune", *module.parent.relative_to(PACKAGE).parts])
    waiting: list[ast.stmt] = [*ast.parse(module.read_text(encoding="utf-8")).body]
    for statement in waiting:
        if isinstance(statement, (ast.If, ast.Try, ast.With)):
            waiting += [
                one for one in ast.walk(statement) if isinstance(one, ast.stmt) and one is not statement
            ]
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found[statement.name] = statement
        elif (
            isinstance(statement, ast.ImportFrom) and (statement.module or "").partition(".")[0] == "dynotune"
        ):
            found |= {one.asname or one.name: f"{statement.module}.{one.name}" for one in statement.names}
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            found |= dict.fromkeys(_targets(statement), statement)
            if "_HOMES" in _targets(statement) and statement.value is not None:
                homes = ast.literal_eval(statement.value)
                found |= {
                    name: f"{package}.{home}.{name}"
                    for home, names in homes.items()
                    for name in names.split()
                }
    return found


def _targets(statement: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]


def _has_member(module: Path, owner: ast.ClassDef, name: str) -> bool:
    """Return whether a class or one of its bases has a method, a field, or an attribute that a method
    sets."""
    for node in ast.walk(owner):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name == name:
            return True
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node in owner.body and name in _targets(node):
            return True
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr == name:
            return True
    return any(_is_defined(module, [base.id, name]) for base in owner.bases if isinstance(base, ast.Name))


def unknown_to_face(face: Path) -> list[str]:
    """List the words in backticks in a face's docstring that name no module of the room, nor a name in one of
    these."""
    docstring = ast.get_docstring(ast.parse(face.read_text(encoding="utf-8"))) or ""
    known = {*OF_NO_MODULE, *ROOMS, *(path.name for path in face.parent.iterdir() if path.is_dir())}
    for module in face.parent.glob("*.py"):
        known |= {module.stem, *_definitions(module)}
    return [word for word in SPAN.findall(docstring) if WORD.fullmatch(word) and word not in known]


@pytest.mark.parametrize("path", [*SOURCES, *DATA, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_backticked_names_exist(path):
    assert [reference for reference in references(prose(path)) if not exists(reference)] == []


def test_references_are_found_in_docstrings_comments_and_pages(tmp_path):
    module = tmp_path / "module.py"
    module.write_text('"""About `measure.live`."""\n# As `schema.run.RunSpec`.\nX = "`trace.readers`"\n')
    page = tmp_path / "page.md"
    page.write_text(
        "See `schema/run.py` and `dynotune.step()`.\n```\n`search.tune`\n```\n`report.html`, `memory.max`\n"
    )
    assert list(references(prose(module))) == ["measure.live", "schema.run.RunSpec"]
    assert list(references(prose(page))) == ["schema/run.py", "dynotune.step"]


@pytest.mark.parametrize("face", FACES, ids=lambda path: str(path.relative_to(ROOT)))
def test_face_names_modules_that_it_has(face):
    assert unknown_to_face(face) == []


def test_a_module_that_is_gone_is_refused_in_a_face(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    face = tmp_path / "__init__.py"
    face.write_text('"""`here` makes runs, `gone` judges them, and `judge` is a function."""\n')
    (tmp_path / "here.py").write_text("def judge(): ...\n")
    assert unknown_to_face(face) == ["gone"]


@pytest.mark.parametrize(
    "name",
    [
        "measure.live",
        "schema.run.RunSpec",
        "schema.run.RunSpec.timeout_s",
        "dynotune.measure.live.Outcome",  # what a face imports
        "launch.start",  # what a face imports late
        "schema/run.py",
    ],
)
def test_references_accept_names_that_exist(name):
    assert exists(name)


@pytest.mark.parametrize(
    "name",
    [
        "measure.nowhere",
        "measure.live.readiness.nothing",
        "schema.run.RunSpec.no_field",
        "schema.run.Nothing",
        "dynotune.nothing",
        "launch.nothing",
        "schema/nothing.py",
    ],
)
def test_a_name_that_is_made_up_is_refused(name):
    assert not exists(name)
