"""Write places in programs as editors and terminals can open them: `train.py:31 step`."""

from __future__ import annotations

import re

from dynotune.report.blocks import Phrase, Span
from dynotune.schema.trace_summary import Place
from dynotune.text import words

LONGEST_PATH = 48
LONGEST_NAME = 200
_FUNCTION = re.compile(r"(.*?)(?:\((\d+)\)|(?<=\.py)): (.*)", flags=re.DOTALL)
# Match only at the beginning of a word: otherwise a word of n letters is read n times.
_IN_PROSE = re.compile(r"(?<![^\s(])[^\s(]+\.py(\(\d+\))?: ")


def prose(text: str, *, longest: int = 1000) -> str:
    """Return a sentence of a finding or a trace, with its places as `place` writes them."""
    return words.plain(_IN_PROSE.sub(lambda match: _function(match[0]), text[: 4 * longest]), longest=longest)


def place(where: Place) -> Phrase:
    """Write `train.py:31 step · aten::item · cudaStreamSynchronize`; "" if the place is unknown."""
    pieces = _pieces(where)
    between: list[str | Span] = [part for piece in pieces for part in (" · ", piece)]
    return tuple(between[1:]) if pieces else ""


def plain_place(where: Place) -> str:
    """Write a place as `place` does, as text without tones."""
    return " · ".join(piece.text for piece in _pieces(where))


def source_line(function: str) -> tuple[str, int, str] | None:
    """Return path, line and name of `train.py(31): step`; None if the place has no line."""
    match = _FUNCTION.fullmatch(function)
    return (match[1], int(match[2]), match[3]) if match is not None and match[2] else None


def _pieces(where: Place) -> list[Span]:
    pieces = [Span(_function(where.function), "code")] if where.function else []
    below = (name for name in (where.operator, where.call) if name)
    return pieces + [Span(words.plain(name, longest=LONGEST_NAME), "dim") for name in below]


def _function(name: str) -> str:
    """Write `file.py(31): step` as `file.py:31 step`."""
    match = _FUNCTION.fullmatch(name)
    if match is None:
        return words.plain(name, longest=LONGEST_NAME)
    path, line, function = match.groups()
    for packages in ("site-packages/", "dist-packages/"):
        path = path.rpartition(packages)[2]
    if len(path) > LONGEST_PATH:
        path = "…/" + "/".join(path.split("/")[-3:])
    shown = f"{path}:{line} {function}" if line else f"{path} {function}"
    return words.plain(shown, longest=LONGEST_NAME)
