"""Files that were valid, changed in one or a few places: bytes, values of JSON and of pickles, lines of TOML,
tables of SQLite, events of a record. What comes out is decided by the `random.Random` that is given, and by
nothing else.
"""

from __future__ import annotations

import copy
import gzip
import json
import pickle
import re
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

HOSTILE_TEXTS = (
    "",
    "\0",
    "\x1b[2J\x1b[31m\x1b]0;title\x07",
    "[bold red]markup[/] [link=https://evil.example]x[/link] :smile:",
    "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{7*7}}",
    "| a | b |\n|---|---|\n# heading `code` ![x](https://evil.example)",
    "'; touch /tmp/owned; $(touch /tmp/owned) `touch /tmp/owned` \\",
    "a\nRUN evil\r\nENV X=1",
    "\udcff\ud800",
    "\u202e\u2066turned",
    "../../../../etc/passwd",
    "x" * 100_000,
    "(" * 5000,
    "9" * 5000,
    "multi_tensor_apply" * 600,
    "unknown",
    "1e309",
    "-1",
    "@unset",
)
# No object of Python says these to JSON: they take the place of a string once it is written.
LITERALS = {
    "@deep": "[" * 100_000 + "]" * 100_000,
    "@nested": '{"a":' * 900 + "1" + "}" * 900,
    "@exponent": "1e400",
    "@digits": "1" * 5000,
    "@nan": "NaN",
    "@infinity": "-Infinity",
    "@half": '"\\ud800"',
}
NUMBERS = (
    0,
    -1,
    1,
    2**31,
    2**53 + 1,
    2**63,
    -(2**63),
    2**64,
    10**30,
    0.0,
    -0.0,
    -1.5,
    1e-320,
    1e18,
    1e308,
    -1e308,
)
VALUES: tuple[Any, ...] = (
    *NUMBERS,
    *HOSTILE_TEXTS,
    *LITERALS,
    None,
    True,
    False,
    [],
    {},
    [[]],
    {"": None},
    [0] * 3,
)

Change = Callable[[Random, bytes], bytes]


def raw(random: Random, content: bytes) -> bytes:
    """Flip bits, cut, leave out, repeat or put in bytes."""
    text = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 8))):
        at = random.randrange(len(text) + 1)
        length = min(random.choice((1, 1, 4, 64, 4096)), len(text) - at)
        match random.randrange(6):
            case 0 | 1:
                for place in range(at, at + min(length, 8)):
                    text[place] ^= 1 << random.randrange(8)
            case 2:
                del text[at:]
            case 3:
                del text[at : at + length]
            case 4:
                text[at:at] = text[at : at + length] * random.choice((1, 50))
            case 5:
                text[at : at + length] = random.choice(
                    (random.randbytes(length), b"\xff" * length, bytes(length))
                )
    return bytes(text)


def changed(random: Random, value: Any) -> Any:
    """`value`, of JSON's types, with one to three of its parts replaced, left out, repeated, renamed or
    exchanged."""
    for _ in range(random.choice((1, 1, 2, 3))):
        found = list(places(value))
        if not found:
            return _hostile(random)
        box, key = random.choice(found)
        match random.randrange(8):
            case 0:
                del box[key]
            case 1 if isinstance(box, list):
                box[key:key] = [box[key]] * random.choice((1, 20))
            case 1:
                box[random.choice(HOSTILE_TEXTS)] = box.pop(key)
            case 2:
                other, name = random.choice(found)
                with suppress(LookupError):
                    box[key], other[name] = other[name], box[key]
                    _without_circles(value)
            case 3 | 4 | 5:
                box[key] = _alike(random, box[key])
            case _:
                box[key] = _hostile(random)
    return value


def _hostile(random: Random) -> Any:
    """A copy: further changes must not reach the values that later files get."""
    return copy.deepcopy(random.choice(VALUES))


def _alike(random: Random, value: Any) -> Any:
    """Another value of the same type, as far as JSON tells types apart: a reader looks no further at another
    one."""
    match value:
        case bool():
            return not value
        case int():
            return random.choice(
                (*(each for each in NUMBERS if isinstance(each, int)), -value, value + 1, value * 1000)
            )
        case float():
            return random.choice((*map(float, NUMBERS), -value, value * 1000, value / 1000))
        case str():
            return random.choice((*HOSTILE_TEXTS, value + random.choice(HOSTILE_TEXTS)))
        case list():
            return random.choice(([], value * 2, value[:1], value[1:], value[::-1]))
        case dict():
            return random.choice(
                ({}, dict.fromkeys(value), {f"{key}2": inner for key, inner in value.items()})
            )
    return _hostile(random)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every list or dict within `value` with each of its keys."""
    todo = [value]
    while todo:
        box = todo.pop()
        for key in list(box) if isinstance(box, dict) else range(len(box)) if isinstance(box, list) else ():
            yield box, key
            todo.append(box[key])


def _without_circles(value: Any, above: tuple[int, ...] = ()) -> None:
    """An exchange may put a list into itself, which no JSON can say."""
    for key in (
        list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    ):
        if id(value[key]) in (*above, id(value)):
            value[key] = None
        else:
            _without_circles(value[key], (*above, id(value)))


def of_json(random: Random, content: bytes) -> bytes:
    if random.random() < 0.2:
        return raw(random, content)
    try:
        value = json.loads(content)
    except ValueError:  # changed before
        return raw(random, content)
    text = json.dumps(changed(random, value))
    for name, literal in LITERALS.items():
        text = text.replace(f'"{name}"', literal)
    return text.encode()


def of_lines(random: Random, content: bytes) -> bytes:
    """Lines of JSON."""
    lines = content.splitlines()
    at = random.randrange(len(lines))
    lines[at] = of_json(random, lines[at])
    return b"\n".join(lines) + b"\n"


def of_gzip(random: Random, content: bytes) -> bytes:
    if random.random() < 0.2:
        return raw(random, content)
    return gzip.compress(of_json(random, gzip.decompress(content)), 1)


def of_pickle(random: Random, content: bytes) -> bytes:
    if random.random() < 0.3:
        return raw(random, content)
    return pickle.dumps(changed(random, pickle.loads(content)), protocol=random.choice((2, 3, 4, 5)))


def of_toml(random: Random, content: bytes) -> bytes:
    if random.random() < 0.2:
        return raw(random, content)
    lines = content.decode().splitlines()
    for _ in range(random.choice((1, 1, 2))):
        at = random.randrange(len(lines))
        match random.randrange(5):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, random.choice(lines))
            case 2:
                lines[at] = ".".join(["a"] * random.choice((2, 90, 5000))) + " = 1"
            case _:
                wanted = random.choice((*map(repr, NUMBERS), *map(json.dumps, HOSTILE_TEXTS), *_TOML))
                lines[at] = re.sub(r"= .*", lambda found, wanted=wanted: f"= {wanted}", lines[at])
        lines = lines or [""]
    return "\n".join(lines).encode(errors="replace")


_TOML = (
    "nan",
    "inf",
    "[1]",
    "[" * 2000,
    "{ a = 1 }",
    '{ percent = "%ff%00" }',
    "1e400",
    "1" * 5000,
    "0x" + "f" * 40,
)
_TOML += ("1979-05-27T07:32:00Z", "true", "[" * 300 + "]" * 300, '["%s"]' % ("x" * 3000))


def of_sqlite(random: Random, content: bytes, folder: Path) -> bytes:
    """Tables and columns dropped, exchanged and filled with what does not belong there."""
    if random.random() < 0.2:
        return raw(random, content)
    path = folder / "being-changed.sqlite"
    path.write_bytes(content)
    with closing(sqlite3.connect(path)) as database, suppress(sqlite3.Error, OverflowError):
        for _ in range(random.choice((1, 1, 2, 4))):
            tables = [
                name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            ]
            table, other = random.choice(tables), random.choice(tables)
            column = random.choice([row[1] for row in database.execute(f'PRAGMA table_info("{table}")')])
            value = random.choice((*_OF_CELLS, *HOSTILE_TEXTS)).encode(errors="replace")
            some = f"rowid % {random.choice((1, 2, 3))} = 0"
            match random.randrange(9):
                case 0:
                    database.execute(f'DROP TABLE "{table}"')
                case 1:
                    database.execute(f'DELETE FROM "{table}" WHERE {some}')
                case 2:
                    database.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
                case 3 if table != other:
                    for before, after in ((table, "between"), (other, table), ("between", other)):
                        database.execute(f'ALTER TABLE "{before}" RENAME TO "{after}"')
                case 4:
                    database.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}"')
                case 5:
                    database.execute(f'ALTER TABLE "{table}" RENAME TO "was"')
                    database.execute(f'CREATE VIEW "{table}" AS SELECT * FROM "was"')
                case 6:
                    database.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE {some}', [value.decode()])
                case _:
                    cell = random.choice(
                        (None, 1.5, value, *(number for number in NUMBERS if abs(number) < 2**63))
                    )
                    database.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE {some}', [cell])
        database.commit()
    return path.read_bytes()


_OF_CELLS = ("12", "1.5", "text", "9223372036854775807", "-9223372036854775808", "4611686018427387904")
_HEAD, _FIRST = struct.Struct("<IHH"), 32
_EVENT = 2


def of_record(random: Random, content: bytes) -> bytes:
    """One event of a process's record, by its layout in `dynotune.agent.core.writer`; or bytes before its
    end."""
    entries, at = [], _FIRST
    while (head := _HEAD.unpack_from(content, at))[0]:
        entries.append((head[1], content[at + _HEAD.size : at + _HEAD.size + head[0]]))
        at += (_HEAD.size + head[0] + 7) & ~7
    if random.random() < 0.2:
        return raw(random, content[:at]) + bytes(64)
    events = [number for number, (kind, _) in enumerate(entries) if kind == _EVENT]
    for _ in range(random.choice((1, 1, 2))):
        number = random.choice(events)
        match random.randrange(6):
            case 0:
                entries.insert(random.randrange(len(entries)), entries[number])
            case 1:
                struct_of_step = (
                    random.choice(_TIMES),
                    random.choice((-1, 8, 2**62)),
                    random.randrange(2**64),
                )
                entries.insert(number, (1, struct.pack("<dqQd", *struct_of_step, random.choice(_TIMES))))
            case _:
                entries[number] = (_EVENT, of_json(random, entries[number][1]) or b" ")
        events = [number for number, (kind, _) in enumerate(entries) if kind == _EVENT]
    body = b"".join(
        _HEAD.pack(len(payload), kind, 0) + payload + bytes(-len(payload) % 8) for kind, payload in entries
    )
    return content[:_FIRST] + body + bytes(64)


_TIMES = (1.0, -1e9, 1e308, float("nan"), float("inf"), 1e-320, 12.5)
