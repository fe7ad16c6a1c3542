"""Write the difference of two versions of a file as `git apply` reads it."""

import difflib
from collections.abc import Iterator

_NO_NEWLINE = b"\n\\ No newline at end of file\n"
_PLAIN = frozenset(range(0x20, 0x7F)) - frozenset(b'"\\')
_NAMED = {7: b"a", 8: b"b", 9: b"t", 10: b"n", 11: b"v", 12: b"f", 13: b"r", 34: b'"', 92: b"\\"}


def unified(name: bytes, before: bytes, after: bytes) -> bytes:
    """Return the unified diff of a file; b"" if both versions are the same.

    Lines end at line feeds alone, as in git, so carriage returns and form feeds stay in the lines.

    Args:
        name: path of the file from the root of the patch, with slashes.
    """
    old, new = quoted(b"a/" + name), quoted(b"b/" + name)
    lines = difflib.diff_bytes(difflib.unified_diff, _lines(before), _lines(after), old, new, lineterm=b"\n")
    body = b"".join(line if line.endswith(b"\n") else line + _NO_NEWLINE for line in lines)
    return b"diff --git " + old + b" " + new + b"\n" + body if body else b""


def quoted(name: bytes) -> bytes:
    """Return a path as git writes it: in double quotes with C's escapes if a character is not plain.

    A path with a space needs no quotes in the lines `---` and `+++`, where git ends it by a tab.
    """
    if all(byte in _PLAIN for byte in name):
        return name
    return b'"' + b"".join(map(_escaped, name)) + b'"'


def _escaped(byte: int) -> bytes:
    if byte in _PLAIN:
        return bytes([byte])
    return b"\\" + (_NAMED.get(byte) or b"%03o" % byte)


def _lines(content: bytes) -> list[bytes]:
    return list(_split(content))


def _split(content: bytes) -> Iterator[bytes]:
    begin = 0
    while begin < len(content):
        end = content.find(b"\n", begin) + 1 or len(content)
        yield content[begin:end]
        begin = end
