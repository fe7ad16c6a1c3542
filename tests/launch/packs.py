"""Packs, made by us and by those who mean harm."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import msgspec

from dynotune.launch.caches import pack as cache_pack
from dynotune.launch.caches.contents import Place
from dynotune.schema.cache_pack import Conditions, Manifest, Packed, PackedFile

CONDITIONS = Conditions(
    gpus=["NVIDIA H200 (9.0)"],
    driver="580.1",
    cuda="13.0",
    torch="2.11.0+cu130",
    triton="3.6.0",
    python="3.12",
    platform="Linux x86_64",
    cpu="a processor",
    cpu_flags=["avx", "avx2", "avx512f", "sse"],
    compiler="g++ 13",
    torch_folder="/venv/torch",
    python_include="/usr/include/python3.12",
)


def place(name: str, path: Path) -> Place:
    return Place(name, path)


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def pack(target: Path, folder: Path, **more: Any) -> Packed:
    return cache_pack.pack(target, [place("inductor", folder)], CONDITIONS, env={}, **more)


def listed(path: str, content: bytes = b"x", **more: Any) -> PackedFile:
    digest = hashlib.sha256(content).hexdigest()
    return PackedFile(
        **{"cache": "inductor", "path": path, "size_bytes": len(content), "sha256": digest, **more}
    )


def manifest(*files: PackedFile, **more: Any) -> Manifest:
    return Manifest(
        created="2026-01-01T00:00:00Z", dynotune="0", conditions=CONDITIONS, files=list(files), **more
    )


def member(name: str, content: bytes = b"x", /, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def by_hand(
    target: Path, document: Manifest | bytes, *members: tuple[tarfile.TarInfo, bytes], tail: bytes = b""
) -> Path:
    """A pack of whatever members behind that manifest."""
    raw = document if isinstance(document, bytes) else msgspec.json.encode(document)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, content in (member("manifest.json", raw), *members):
            archive.addfile(info, io.BytesIO(content))
    target.write_bytes(gzip.compress(buffer.getvalue() + tail, 1))
    return target
