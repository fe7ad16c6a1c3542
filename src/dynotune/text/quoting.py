"""Quote and bound text that anyone may have chosen, for terminals, agents, pages and shells.

Each line is quoted and bounded by itself, and only then are lines left out: so no cut takes the mark away
that shows whose text it is.
"""

import shlex
from collections.abc import Iterable, Sequence

LONGEST_LINE = 200
OF_PROGRAM = "  │ "
"""Mark before each line of a program's own text."""


def plain(text: str, *, longest: int = 1000) -> str:
    """Return `text` from an untrusted file, on one line and harmless to a terminal.

    Unprintable characters (control characters, line ends, marks that turn the direction of writing) are
    escaped; text beyond `longest` characters, escapes included, is cut.
    """
    quoted = text[:longest]
    if not quoted.isprintable():
        quoted = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in quoted)
    # An escape is up to ten times as long as its character.
    return quoted if max(len(text), len(quoted)) <= longest else quoted[: longest - 1] + "…"


def shell(arguments: Iterable[str]) -> list[str]:
    """Quote words for a shell; unprintable characters are escaped in the `$'…'` of bash and zsh."""
    return list(map(_quoted, arguments))


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(_escaped(character) for character in word) + "'"


def _escaped(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    is_byte = "\udc80" <= character <= "\udcff"
    raw = character.encode(errors="surrogateescape" if is_byte else "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in raw)


def command(arguments: Iterable[str]) -> str:
    """Write a command on one line, which a shell reads as these arguments, byte for byte."""
    return " ".join(shell(arguments))


def passage(lines: Sequence[str], *, most: int, longest: int = LONGEST_LINE, mark: str = "") -> str:
    """Return untrusted lines, quoted, in at most `most` characters beside one line that says how many were
    left out.

    If not all lines fit, the first ones fill a third of the room, and the last ones the rest.

    Args:
        longest: characters of a line before it is cut.
        mark: text before each line, such as `OF_PROGRAM`.
    """
    quoted = [mark + plain(line.rstrip(), longest=longest) for line in lines]
    if sum(map(len, quoted)) + len(quoted) <= most:
        return "\n".join(quoted)
    first = _fitting(quoted, most // 3)
    last = _fitting(reversed(quoted[len(first) :]), most - sum(len(line) + 1 for line in first))
    num_left = len(quoted) - len(first) - len(last)
    return "\n".join([*first, f"… {num_left:,} lines are left out here", *reversed(last)])


def _fitting(lines: Iterable[str], room: int) -> list[str]:
    """Return the lines from the first on that fit in `room` characters, line ends included."""
    found = []
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        found.append(line)
    return found
