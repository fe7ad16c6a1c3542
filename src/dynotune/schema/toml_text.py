"""Text and numbers in the syntax of TOML.

tomli-w writes no comments, which readers of recipes need; so this module has its own writer, tested against
Python's reader. Source: https://toml.io/en/v1.0.0
"""

import math
import os
from collections.abc import Iterable, Sequence
from urllib.parse import quote_from_bytes, unquote_to_bytes

from dynotune.schema.errors import UsageError
from dynotune.schema.knob import Scalar

_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
LARGEST_INT = 2**63 - 1


def value(given: Scalar | Sequence[Scalar]) -> str:
    """Write one value or a list. Raises UsageError: text as for `quoted`, or a number that is too large for
    TOML."""
    if isinstance(given, bool):
        return "true" if given else "false"
    if isinstance(given, str):
        return quoted(given)
    if isinstance(given, int):
        if not -LARGEST_INT - 1 <= given <= LARGEST_INT:
            raise UsageError(f"{given:.3g} has more than the 64 bits of a number in a TOML file.")
        return str(given)
    if isinstance(given, float):
        if not math.isfinite(given):
            raise UsageError(f"{given} is not a number that can be written.")
        return repr(given)
    return "[" + ", ".join(map(value, given)) + "]"


def quoted(text: str) -> str:
    """Return `text` as a basic string on one line, which YAML reads as the same string.

    Unprintable characters are escaped, so that none can move a terminal's cursor or turn the direction of
    writing.

    Raises UsageError: the text has a NUL or half of a surrogate pair (a file name that is not UTF-8).
    """
    for character in text:
        if character == "\0" or 0xD800 <= ord(character) <= 0xDFFF:
            raise UsageError(
                f"{text!r} cannot be written to a file of text: it holds {character!r}.",
                hint="Use names and values of valid UTF-8, without NUL.",
            )
    return '"' + "".join(map(_escaped, text)) + '"'


def arguments(words: Sequence[str]) -> str:
    """Write a command as a list. A word that is not UTF-8, impossible in TOML, becomes `{ percent = "caf%E9"
    }`."""
    return "[" + ", ".join(map(_argument, words)) + "]"


def _argument(word: str) -> str:
    try:
        word.encode()
    except UnicodeEncodeError:
        return f'{{ percent = "{quote_from_bytes(os.fsencode(word))}" }}'
    return quoted(word)


def argument(told: object) -> object:
    """Return the word that `arguments` wrote; anything else unchanged."""
    if isinstance(told, dict) and told.keys() == {"percent"} and isinstance(told["percent"], str):
        return os.fsdecode(unquote_to_bytes(told["percent"]))
    return told


def commented(lines: Iterable[str]) -> list[str]:
    """Write each line as a comment, with unprintable characters escaped, so that no character ends the
    comment."""
    return [f"# {''.join(c if c.isprintable() else repr(c)[1:-1] for c in line)}".rstrip() for line in lines]


def _escaped(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"
