"""Pickles that somebody means harm with: they call something, or grow when they are loaded.

What a pickle calls makes the folder `ran`.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random

from .mutations import of_pickle, raw

_HEAD = 2


def of_hostile_pickle(random: Random, content: bytes, folder: Path) -> bytes:
    """Put instructions between those of the pickle, or make one that grows."""
    kind = random.random()
    if kind < 0.4:
        return of_pickle(random, content)
    if kind < 0.6:
        grown = random.choice(_GROWING)(random)
        return bytes((0x80, random.choice((2, 3, 4, 5)))) + grown + b"."
    if not (places := _places(content)):
        return raw(random, content)
    at, target = random.choice(places), str(folder / "ran")
    put = random.choice((*_calls(target), *_LIES, *(grow(random) for grow in _GROWING)))
    changed = content[:at] + put + content[at:]
    return raw(random, changed) if random.random() < 0.1 else changed


def _places(content: bytes) -> list[int]:
    """The beginnings of instructions, where another one can stand."""
    try:
        found = [at for _, _, at in pickletools.genops(content) if at is not None]
    except ValueError:
        return []
    return [at for at in found if at >= _HEAD]


def _text(value: str) -> bytes:
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def _calls(target: str) -> tuple[bytes, ...]:
    """Instructions that make a folder, in all ways in which a pickle may call something."""
    path = _text(target)
    return (
        b"cos\nmkdir\n" + path + b"\x85R",
        b"cos\nmkdir\n(" + path + b"tR",
        b"\x8c\x02os\x8c\x05mkdir\x93" + path + b"\x85R",
        b"(" + path + b"ios\nmkdir\n",
        b"(cos\nmkdir\n" + path + b"o",
        b"cos\nmkdir\n" + path + b"\x85\x81",
        b"cbuiltins\neval\n" + _text(f"__import__('os').mkdir({target!r})") + b"\x85R",
        b"cpathlib\nPath\n" + path + b"\x85Rcpathlib\nPath.mkdir\nq\x63h\x63",
        b"Pdynotune\n",
        path + b"Q",
        b"\x82\x01",
        b"\x83\x01\x00",
        b"\x84\x01\x00\x00\x00",
        b"\x97",
        b"\x98",
    )


_LIES = (
    b"\x8b" + struct.pack("<i", 2**31 - 1) + b"x",
    b"\x8b" + struct.pack("<i", -1),
    b"\x8d" + struct.pack("<Q", 1 << 62),
    b"\x8e" + struct.pack("<Q", 1 << 40),
    b"\x96" + struct.pack("<Q", 1 << 40),
    b"X" + struct.pack("<I", 2**32 - 1),
    b"T" + struct.pack("<i", -5),
    b"\x95" + struct.pack("<Q", 1 << 63),
    b"r" + struct.pack("<I", 2**32 - 1),
    b"j" + struct.pack("<I", 2**32 - 1),
    b"p99999999999999999999\n",
    b"g-1\n",
    b"I" + b"9" * 100_000 + b"\n",
    b"L" + b"9" * 100_000 + b"L\n",
    b"F1e400\n",
    b"S'\\x'\n",
    b"0" * 50,
    b"2" * 50,
    b"1",
    b"e",
    b"u",
    b"s",
    b"t",
    b"b",
)


def _nested(random: Random) -> bytes:
    num = random.choice((100, 5000, 200_000))
    return random.choice((b"]" * num + b"a" * (num - 1), b"N" + b"\x85" * num, b"}N}" * num, b"(" * num))


def _references(random: Random) -> bytes:
    """Lists of lists, each with the one before many times: small, but without end for who walks them."""
    body = b"]q\x00"
    for level in range(1, random.choice((10, 60))):
        body += b"]" + b"q" + bytes((level,)) + b"(" + (b"h" + bytes((level - 1,))) * 20 + b"e"
    return body


def _one_list_as_all(random: Random) -> bytes:
    """A snapshot whose segments, blocks and traces are one list, which holds itself."""
    keys = b"".join(_text(name) + b"h\x00" for name in ("segments", "device_traces", "blocks", "frames"))
    return b"]q\x00(" + b"h\x00" * random.choice((1, 50, 10_000)) + b"e0}(" + keys + b"u"


def _segments(random: Random) -> bytes:
    """A snapshot of many segments that are one, of blocks that are one, with sizes as large as can be."""
    size = b"\x8a\x08" + struct.pack("<q", random.choice((0, -1, 1 << 40, (1 << 56) - 1, 2**63 - 1)))
    fields = {"size": size, "address": size, "state": _text("active_allocated"), "requested_size": size}
    block = b"}q\x01(" + b"".join(_text(name) + value for name, value in fields.items()) + b"u0"
    blocks = b"]q\x02(" + b"h\x01" * random.choice((1, 2000)) + b"e0"
    segment = b"}q\x03(" + _text("address") + size + _text("total_size") + size + _text("blocks") + b"h\x02u0"
    segments = b"]q\x04(" + b"h\x03" * random.choice((1, 2000)) + b"e0"
    return (
        block
        + blocks
        + segment
        + segments
        + b"}("
        + _text("segments")
        + b"h\x04"
        + _text("device_traces")
        + b"]u"
    )


_GROWING: tuple[Callable[[Random], bytes], ...] = (_nested, _references, _one_list_as_all, _segments)
