"""Packs that somebody means harm with, whose digests are right, so that what comes after them is reached.

What gets out of its folder is called `outside`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from .mutations import HOSTILE_TEXTS, NUMBERS, changed, raw

_BLOCK = tarfile.BLOCKSIZE
_TYPES = (
    tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE,
    tarfile.CONTTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.GNUTYPE_SPARSE,
    tarfile.XHDTYPE, tarfile.XGLTYPE, b"Z",
)  # fmt: skip
_CACHES = ("inductor", "triton", "cuda", "headers", "jiterator", "packages", "nowhere", "")
_GROUPS = (
    '{"child_paths": {"a": "/x/../../outside"}}',
    '{"child_paths": {"a": 3}}',
    '{"child_paths": {"a": "%s"}}' % ("/a" * 3000),
    "[" * 100_000,
    '{"a":' * 100_000,
    "1" * 100_000,
)
_SIZES = (-1, 0, 1, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 63, 1 << 70, "12", None, 1.5)
_VARIABLES = (
    ("LD_PRELOAD", "/outside"),
    ("TORCHINDUCTOR_CACHE_DIR", "/outside"),
    ("TRITON_CACHE_MANAGER", "outside:Outside"),
    ("TORCHINDUCTOR_MAX_AUTOTUNE", "1"),
    ("TORCHINDUCTOR_X", "a\nb"),
)


@dataclass
class Member:
    """A member of the archive, as its header says and as it is."""

    name: str
    content: bytes
    type: bytes = tarfile.REGTYPE
    size: int | None = None
    link: str = ""

    def bytes(self) -> bytes:
        info = tarfile.TarInfo(self.name)
        info.type, info.linkname, info.mode = self.type, self.link, 0o4777
        info.size = len(self.content) if self.size is None else self.size
        head = info.tobuf(tarfile.GNU_FORMAT, errors="replace")
        return head + self.content + bytes(-len(self.content) % _BLOCK)


def of_pack(random: Random, content: bytes, folder: Path) -> bytes:
    """One to three changes of a pack's manifest and members, with digests made anew."""
    if random.random() < 0.15:
        return raw(random, content)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        read = [(info.name, archive.extractfile(info)) for info in archive.getmembers()]
        members = [Member(name, file.read() if file else b"") for name, file in read]
    manifest, files = json.loads(members[0].content), members[1:]
    tail, is_only_path = b"", random.random() < 0.4
    if is_only_path:
        _add(manifest, files, random.choice(_paths(folder, manifest)), b"added")
    for _ in range(0 if is_only_path else random.choice((1, 1, 2, 3))):
        tail = _change(random, manifest, files, folder) or tail
    if is_only_path or random.random() < 0.9:
        for listed, member in zip(manifest["files"], files, strict=False):
            listed["sha256"] = hashlib.sha256(member.content).hexdigest()
    if not is_only_path and random.random() < 0.15:
        manifest = changed(random, manifest)
    text = json.dumps(manifest).encode()
    if random.random() < 0.03:
        # Few bytes of the pack, and gigabytes for whoever makes an object of each value.
        unit = random.choice((b"[],", b"{},", b'"\\udc80",'))
        bomb = b'"z": 1234567890123456789, "x": [' + unit * (100_000_000 // len(unit)) + b"0],"
        text = text[:1] + bomb + text[1:]
    members[0] = Member("manifest.json", text)
    whole = b"".join(member.bytes() for member in [members[0], *files]) + bytes(2 * _BLOCK) + tail
    packed = gzip.compress(whole, 1, mtime=0)
    return raw(random, packed) if random.random() < 0.05 else packed


def _change(random: Random, manifest: dict[str, Any], files: list[Member], folder: Path) -> bytes:
    """Make one change; return what comes behind the archive."""
    listed = random.choice(manifest["files"]) if manifest["files"] else {}
    member = random.choice(files) if files else Member("files/0000000", b"x")
    match random.randrange(13):
        case 0 | 1:
            listed["path"] = random.choice(_paths(folder, manifest))
        case 2:
            listed["size_bytes"] = random.choice((*_SIZES, *NUMBERS))
        case 3:
            _add(manifest, files, random.choice(_paths(folder, manifest)), b"added")
        case 4:
            member.type, member.link = (
                random.choice(_TYPES),
                random.choice(("../outside", f"{folder}/outside")),
            )
            if random.random() < 0.5:
                member.content = b""
        case 5:
            member.size = random.choice((0, 1, len(member.content) + 1, 1 << 33, 1 << 60, -1, -(1 << 60)))
        case 6:
            random.shuffle(files)
        case 7:
            files.remove(member) if member in files else files.append(member)
        case 8:
            listed["cache"] = random.choice(_CACHES)
        case 9:
            text = random.choice(_GROUPS).encode()
            _add(manifest, files, f"g/__grp__{random.randrange(3)}.json", text)
        case 10:
            name, value = random.choice(_VARIABLES)
            manifest.setdefault("variables", {})[name] = value
        case 11:
            member.name = random.choice((f"{folder}/outside", "../outside", "x" * 200, "files/0000001"))
        case 12:
            after = gzip.compress(b"x", mtime=0), member.bytes(), b"\0" * 100 + b"x"
            return random.choice((bytes(64 << 20), random.randbytes(999), *after))
    return b""


def _add(manifest: dict[str, Any], files: list[Member], path: str, content: bytes) -> None:
    entry = {"cache": "inductor", "path": path, "size_bytes": len(content), "sha256": ""}
    manifest["files"].append(entry)
    files.append(Member(f"files/{len(files):07}", content))


def _paths(folder: Path, manifest: dict[str, Any]) -> tuple[str, ...]:
    known = manifest["files"][0]["path"] if manifest["files"] else "a"
    out = (
        "../outside",
        f"{folder}/outside",
        "a/../../outside",
        "link/outside",
        "link",
        "..",
        ".",
        "",
        "a/",
        "a//b",
    )
    near = (known, known.upper(), f"{known}/x", known.partition("/")[0], f"{known}\0", f"./{known}")
    odd = (
        "a\\..\\outside",
        "x" * 256,
        "é" * 128,
        "a/" * 600 + "b",
        "\ud800",
        "a\x1b[2J",
        "a\u202eb",
        "e\u0301",
        "é",
    )
    return (*out, *near, *odd, *HOSTILE_TEXTS)
