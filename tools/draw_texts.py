"""Draws texts at random for a reader who has never seen the project: `draw_texts.py told --seed 3`.

`told` is what users read: messages in the code, texts of findings and knobs, documents. `code` is docstrings
and comments. A reader counts the texts that he understands at once; the goal is 57 of 60. Draw with another
seed each time.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FEWEST_WORDS = 6
_WORD = re.compile(r"[A-Za-z]{2,}")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


class Drawn(NamedTuple):
    """A text, and its file and line relative to the project."""

    place: str
    text: str


def docstrings_and_comments() -> list[Drawn]:
    return [text for path in sorted((ROOT / "src").rglob("*.py")) for text in _of_code(path)]


def told_to_users() -> list[Drawn]:
    found = [text for path in sorted((ROOT / "src").rglob("*.py")) for text in _messages(path)]
    found += [text for path in sorted((ROOT / "src").rglob("*.toml")) for text in _of_toml(path)]
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return found + [text for path in documents if "decisions" not in path.parts for text in _paragraphs(path)]


def _of_code(path: Path) -> Iterator[Drawn]:
    source = path.read_text("utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and _is_prose(text):
                yield Drawn(_place(path, node.body[0].lineno), text)
    yield from _comments(path, source)


def _comments(path: Path, source: str) -> Iterator[Drawn]:
    """Yield comments; lines that follow each other are one."""
    block: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or re.match(r"#!|# (noqa|type:|fmt:)", token.string):
            continue
        is_own_line = token.line.lstrip().startswith("#")
        if block and (token.start[0] != last + 1 or not is_own_line):
            yield from _if_prose(path, last, block)
            block = []
        block.append(token.string.lstrip("# "))
        last = token.start[0]
    yield from _if_prose(path, last, block)


def _if_prose(path: Path, line: int, block: list[str]) -> Iterator[Drawn]:
    if _is_prose(text := " ".join(block)):
        yield Drawn(_place(path, line), text)


def _messages(path: Path) -> Iterator[Drawn]:
    tree = ast.parse(path.read_text("utf-8"))
    # Docstrings, also those of constants.
    of_docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inner: set[int] = set()
    for node in ast.walk(tree):
        if id(node) in of_docs or id(node) in inner:
            continue
        if isinstance(node, ast.JoinedStr):
            inner.update(map(id, ast.walk(node)))
            parts = [part.value if isinstance(part, ast.Constant) else "{…}" for part in node.values]
            text = "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if _is_prose(text) and text.count(" ") >= FEWEST_WORDS and not re.search(r"[\\|]\w|\(\?", text):
            yield Drawn(_place(path, node.lineno), text)


def _of_toml(path: Path) -> Iterator[Drawn]:
    def walk(value: object, name: str) -> Iterator[Drawn]:
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from walk(inner, f"{name}.{key}" if name else str(key))
        elif (
            isinstance(value, str) and _is_prose(value) and not name.endswith(("source", "example", "python"))
        ):
            yield Drawn(f"{path.relative_to(ROOT)} [{name}]", value)

    yield from walk(tomllib.loads(path.read_text("utf-8")), "")


def _paragraphs(path: Path) -> Iterator[Drawn]:
    text = _FENCE.sub("", path.read_text("utf-8"))
    for part in re.split(r"\n\s*\n", text):
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`])", " ".join(part.split())):
            if _is_prose(sentence) and "|" not in sentence and not sentence.startswith(("#", "!")):
                yield Drawn(str(path.relative_to(ROOT)), sentence)


def _is_prose(text: str) -> bool:
    return len(_WORD.findall(text)) >= FEWEST_WORDS


def _place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("told", "code"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=60)
    asked = parser.parse_args()
    texts = docstrings_and_comments() if asked.kind == "code" else told_to_users()
    for count, drawn in enumerate(random.Random(asked.seed).sample(texts, asked.number), start=1):
        print(f"{count}. {drawn.place}\n{drawn.text}\n")


if __name__ == "__main__":
    main()
