"""Signs that some terminals lack, and what is written instead of them."""

from __future__ import annotations

# fmt: off
INSTEAD: dict[str, str] = {
    "×": "x", "→": "->", "←": "<-", "µ": "u", "±": "+-", "−": "-", "–": "-", "—": "-", "…": "...",
    "·": "-", "°": "deg ", "√": "sqrt", "½": "1/2", "‘": "'", "’": "'", "“": '"', "”": '"', "\xa0": " ",
    "●": "*", "○": "o", "■": "#", "□": "+", "◀": "<", "◇": "^", "│": "|", "─": "-", "‹": "<", "›": ">",
    "━": "#", **dict(zip("▁▂▃▄▅▆▇█", "_.-~=+*#", strict=True)),
}
# fmt: on
"""Signs that dynotune writes, each with its replacement in ASCII; parts of bars have letters of their own."""


def within(text: str, encoding: str) -> str:
    """Return the text with dynotune's own signs replaced where the encoding lacks them."""
    if text.isascii():
        return text
    return "".join(sign if _has(encoding, sign) else INSTEAD.get(sign, sign) for sign in text)


def _has(encoding: str, sign: str) -> bool:
    try:
        sign.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
