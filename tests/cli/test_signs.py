"""What is printed where the terminal's encoding lacks a sign."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

import dynotune
from dynotune.cli import signs
from dynotune.text.signs import INSTEAD

SOURCE = Path(dynotune.__file__).parent
STANDS_FOR_NO_TEXT = "\ufffd\udc80\udcff"
ROOMS = ("cli", "diagnose", "doctor", "measure", "report", "search", "text", "watch")
NOT_ASKED = ("page", "parts.py", "signs.py")


def printed(text: str, encoding: str) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    signs.let_pass(file)
    print(text, end="", file=file, flush=True)
    return file.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("ascii", "1.69x faster, 240 -> 406, 259 us, +-1%, -3%, * caf\\xe9"),
        ("latin-1", "1.69× faster, 240 -> 406, 259 µs, ±1%, -3%, * café"),
        ("utf-8", "1.69× faster, 240 → 406, 259 µs, ±1%, −3%, ● café"),
    ],
)
def test_only_signs_that_the_encoding_lacks_are_replaced(encoding, shown):
    assert printed("1.69× faster, 240 → 406, 259 µs, ±1%, −3%, ● café", encoding) == shown


def test_bytes_that_are_no_text_are_shown_as_escapes():
    assert printed("a\udcff×", "utf-8") == "a\\udcff×"


def test_every_sign_of_a_sentence_has_a_replacement():
    files = [file for room in ROOMS for file in (SOURCE / room).rglob("*.py")]
    asked = [file for file in files if not set(NOT_ASKED) & set(file.parts)]
    written = {sign for file in asked for text in texts_of(file) for sign in text if not sign.isascii()}
    assert written - set(STANDS_FOR_NO_TEXT) <= set(INSTEAD)
    assert all(sign.isascii() and "?" not in sign and "\\" not in sign for sign in INSTEAD.values())


def texts_of(file: Path) -> Iterator[str]:
    """Yield the texts of a module that are no docstrings."""
    tree = ast.parse(file.read_text("utf-8"))
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node.value
