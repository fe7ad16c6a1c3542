"""Write signs that a terminal's encoding lacks with those that it has: `1.69x faster`, `240 -> 406`."""

from __future__ import annotations

import codecs
from typing import TextIO

ERRORS = "dynotune-signs"
"""Name of the error handler of streams."""
# fmt: off
INSTEAD: dict[str, str] = {
    "×": "x", "→": "->", "←": "<-", "µ": "u", "±": "+-", "−": "-", "–": "-", "—": "-", "…": "...",
    "·": "-", "°": "deg ", "√": "sqrt", "½": "1/2", "‘": "'", "’": "'", "“": '"', "”": '"', "\xa0": " ",
    "●": "*", "○": "o", "■": "#", "□": "+", "◀": "<", "◇": "^", "│": "|", "─": "-", "‹": "<", "›": ">", "━": "#",
    **dict(zip("▁▂▃▄▅▆▇█", "_.-~=+*#", strict=True)),
}
# fmt: on
"""Signs that dynotune writes, each with its replacement in ASCII; parts of bars have letters of their own."""


def let_pass(stream: TextIO) -> None:
    """Let all text pass the stream: signs of dynotune's own by `INSTEAD`, any other sign as its escape.

    Names may hold what the terminal's encoding does not, and bytes that are no text.
    """
    if hasattr(stream, "reconfigure"):
        codecs.register_error(ERRORS, _instead)
        stream.reconfigure(errors=ERRORS)


def _instead(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        return codecs.backslashreplace_errors(error)
    sign = INSTEAD.get(error.object[error.start])
    if sign is not None:
        return sign, error.start + 1
    one = UnicodeEncodeError(error.encoding, error.object, error.start, error.start + 1, error.reason)
    return codecs.backslashreplace_errors(one)
