"""Write signs that a terminal's encoding lacks with those that it has: `1.69x faster`, `240 -> 406`."""

from __future__ import annotations

import codecs
from typing import TextIO

from dynotune.text import signs

ERRORS = "dynotune-signs"
"""Name of the error handler of streams."""


def let_pass(stream: TextIO) -> None:
    """Let all text pass the stream: signs of dynotune's own by `text.signs`, any other sign as its escape.

    Names may hold what the terminal's encoding does not, and bytes that are no text.
    """
    if hasattr(stream, "reconfigure"):
        codecs.register_error(ERRORS, _instead)
        stream.reconfigure(errors=ERRORS)


def _instead(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        return codecs.backslashreplace_errors(error)
    sign = signs.INSTEAD.get(error.object[error.start])
    if sign is not None:
        return sign, error.start + 1
    one = UnicodeEncodeError(error.encoding, error.object, error.start, error.start + 1, error.reason)
    return codecs.backslashreplace_errors(one)
