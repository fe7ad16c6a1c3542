"""Count what a reader of the code must keep apart: names with several meanings, circles, seams, sentences
used as data.

    python tools/concepts.py [CHECKOUT]

Counts are of src/dynotune. `docs/decisions/0033-concepts-counted.md` has them from before the redesign, and
now.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORDS = ("Arm", "Block", "Candidate", "Judgement", "Watcher")
"""Words of the field that had several meanings."""
_READS_TEXT = {
    "endswith",
    "find",
    "index",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "split",
    "startswith",
}
_DEFINES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def parsed(checkout: Path) -> dict[str, ast.Module]:
    """Return the syntax tree of each module below src/dynotune, by its path there."""
    package = checkout / "src" / "dynotune"
    return {
        str(path.relative_to(package)): ast.parse(path.read_text()) for path in sorted(package.rglob("*.py"))
    }


def meanings(trees: dict[str, ast.Module], word: str) -> list[str]:
    """Return the modules that define a public class, or a public name of a type, called `word`."""
    found = []
    for path, tree in trees.items():
        classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        names = [
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        ]
        found += [path] * (word in classes) + [path] * (word in names)
    return found


def seams(trees: dict[str, ast.Module]) -> list[str]:
    """Return the modules with a constant between definitions that does not need the definitions above it."""
    return [path for path, tree in trees.items() if any(_is_seam(tree, node) for node in tree.body)]


def _is_seam(tree: ast.Module, node: ast.stmt) -> bool:
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    if (
        not isinstance(node, ast.Assign | ast.AnnAssign)
        or not isinstance(target, ast.Name)
        or node.value is None
    ):
        return False
    at = tree.body.index(node)
    above = {one.name for one in tree.body[:at] if isinstance(one, _DEFINES)}
    used = {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
    goes_on = any(isinstance(one, _DEFINES) for one in tree.body[at + 1 :])
    return target.id.lstrip("_").isupper() and bool(above) and not used & above and goes_on


def circles(trees: dict[str, ast.Module]) -> list[list[str]]:
    """Return the groups of modules that import each other, for types or at run time; faces are left out."""
    paths = {
        path.removesuffix(".py").replace("/", "."): path for path in trees if not path.endswith("__init__.py")
    }
    ahead = {name: set(_imported(name, trees[path])) & paths.keys() for name, path in paths.items()}
    reached = {name: _reached(name, ahead) for name in ahead}
    groups = {tuple(sorted(one for one in reached[name] if name in reached[one])) for name in ahead}
    return [list(group) for group in sorted(groups) if len(group) > 1]


def _imported(name: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            parts = name.split(".")[: -node.level] if node.level else []
            module = ".".join(
                [*parts, *filter(None, [(node.module or "").removeprefix("dynotune").lstrip(".")])]
            )
            yield module
            yield from (f"{module}.{alias.name}".lstrip(".") for alias in node.names)


def _reached(name: str, ahead: dict[str, set[str]]) -> set[str]:
    found, waiting = set[str](), [name]
    while waiting:
        new = ahead[waiting.pop()] - found
        found |= new
        waiting.extend(new)
    return found


def sentences(trees: dict[str, ast.Module]) -> list[str]:
    """Return the places where a text of several words is searched for, or compared: `module:line: text`.

    Some search what torch or the kernel wrote, or are names of one room. A reader has to tell them apart.
    """
    return [f"{path}:{node.lineno}: {text}" for path, tree in trees.items() for node, text in _searched(tree)]


def _searched(tree: ast.Module) -> Iterator[tuple[ast.expr, str]]:
    for node in ast.walk(tree):
        texts: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            texts = [node.left, *node.comparators]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _READS_TEXT
        ):
            texts = node.args[:1]
        for text in texts:
            if isinstance(text, ast.Constant) and isinstance(text.value, str) and " " in text.value.strip():
                yield text, text.value


def main() -> None:
    """Print each count, and what is counted."""
    trees = parsed(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    counts: dict[str, list[str]] = {f"meanings of {word}": meanings(trees, word) for word in WORDS}
    counts |= {"circles": [" ".join(group) for group in circles(trees)], "seams": seams(trees)}
    counts |= {"sentences searched for": sentences(trees)}
    for name, found in counts.items():
        print(f"{name}: {len(found)}", *(f"  {one}" for one in found), sep="\n")


if __name__ == "__main__":
    main()
