"""Elements of HTML and SVG, whose texts are made harmless and escaped."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from dynotune.text import words

LONGEST_TEXT = 4000
NO_BREAK = "\u00a0"
QUANTITY = re.compile(r"(?<=\d) (?=(?:[nµm]?s|min|h|[KMGT]?i?B|W|k?Wh|MHz)\b)")
"""The blank between a number and its unit, at which no line of a page ends."""


def element(name: str, *children: str | Markup, **attributes: str | float | None) -> Markup:
    """Return an element.

    Args:
        children: elements, and texts, which are escaped.
        attributes: by name, with `_` for `-` and a trailing one left out (`class_`); None leaves one out, ""
            writes its name alone.
    """
    start = Markup(name) + Markup("").join(_attribute(key, value) for key, value in attributes.items())
    inside = Markup("").join(map(text, children))
    return Markup("<{}>{}</{}>").format(start, inside, Markup(name))


def text(content: str | Markup, *, longest: int = LONGEST_TEXT) -> Markup:
    """Return markup as it is, and text escaped, non-printing characters written out."""
    return content if isinstance(content, Markup) else escape(words.plain(content, longest=longest))


def unbroken(content: str) -> Markup:
    """Return text escaped, each number on one line with its unit."""
    return Markup(QUANTITY.sub(NO_BREAK, text(content)))


def join(*parts: Markup, between: str = "\n") -> Markup:
    return Markup(between).join(part for part in parts if part)


def percent(share: float) -> str:
    """Write a share of the width for SVG: `12.5%`."""
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + "%"


def _attribute(name: str, value: str | float | None) -> Markup:
    if value is None:
        return Markup("")
    key = Markup(name.rstrip("_").replace("_", "-"))
    if value == "":
        return Markup(" {}").format(key)
    shown = value if isinstance(value, Markup) else words.plain(f"{value}", longest=LONGEST_TEXT)
    return Markup(' {}="{}"').format(key, shown)
