"""Find the Python files that a command runs and that belong to the user."""

import ast
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from dynotune.schema import untrusted
from dynotune.schema.errors import CannotRunHere

LARGEST_BYTES = 1 << 20
"""Largest file of Python that is read, in bytes."""
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed", "lightning")
_MOST_FILES = 2000
_FOREIGN = ("site-packages", "dist-packages", ".venv", "node_modules")


def entry_of(command: Sequence[str], cwd: Path) -> Path:
    """Return the first file of the user that the command names, as a script or as `-m MODULE`.

    Raises CannotRunHere: the command names none.
    """
    for word, following in zip(command, [*command[1:], ""], strict=False):
        if word == "-m" and not following.startswith(_LAUNCHERS):
            if module := _module(following, [cwd, cwd / "src"]):
                package = module.parent / "__main__.py"
                return package if module.name == "__init__.py" and package.is_file() else module
        elif word.endswith(".py") and (cwd / word).is_file():
            return (cwd / word).resolve()
    raise CannotRunHere(
        "The recipe's command names no Python file that lies here, so there is no file to patch.",
        hint="Start it in the program's folder; the command needs `python FILE.py` or `python -m MODULE`.",
    )


def files_of(entry: Path, root: Path, cwd: Path) -> list[Path]:
    """Return the entry and the files below `root` that it imports, directly or through others.

    Imports are read from the text, so a module whose name is computed is not among them.
    """
    bases = [entry.parent, cwd, root, root / "src"]
    found, waiting = dict[Path, None](), [entry]
    while waiting and len(found) < _MOST_FILES:
        file = waiting.pop(0)
        if file in found:
            continue
        found[file] = None
        for name, level in _imports(file):
            places = [_above(file, level)] if level else bases
            module = _module(name, places)
            if module is not None and _is_own(module, root):
                waiting.append(module)
    return list(found)


def file_of(name: str, entry: Path, root: Path, cwd: Path) -> Path | None:
    """Return the file below `root` that defines the dotted name of a class or function; None if there is
    none."""
    module = _module(name.rpartition(".")[0], [entry.parent, cwd, root, root / "src"])
    return module if module is not None and _is_own(module, root) else None


def _is_own(file: Path, root: Path) -> bool:
    return file.is_relative_to(root) and not any(part in _FOREIGN for part in file.relative_to(root).parts)


def _imports(file: Path) -> Iterator[tuple[str, int]]:
    """Yield each imported module's dotted name, and how many folders above the file it is relative to."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(untrusted.read(file, LARGEST_BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from ((name, 0) for name in _with_packages(alias.name))
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield from ((name, node.level) for name in _with_packages(module))
            for alias in node.names:
                yield f"{module}.{alias.name}".lstrip("."), node.level


def _with_packages(name: str) -> Iterator[str]:
    """Yield `a`, `a.b` and `a.b.c` of `a.b.c`: importing a module runs its packages, too."""
    parts = name.split(".") if name else []
    yield from (".".join(parts[: end + 1]) for end in range(len(parts)))


def _module(name: str, places: Sequence[Path]) -> Path | None:
    if not name or not all(part.isidentifier() for part in name.split(".")):
        return None
    inner = Path(*name.split("."))
    for place in places:
        for path in (
            place / inner.with_suffix(".py"),
            place / inner / "__init__.py",
            place / inner / "__main__.py",
        ):
            if path.is_file():
                return path.resolve()
    return None


def _above(file: Path, level: int) -> Path:
    return file.parents[level - 1] if level <= len(file.parents) else file.parent
