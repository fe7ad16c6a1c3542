"""Fat binaries, cubins and libraries as bytes, built field by field; layouts and flags as nvcc 13.5 writes
them."""

from __future__ import annotations

import struct

MAGIC = 0xBA55ED50
PTX, MACHINE, LTO = 1, 2, 8
SPECIFIC, FAMILY, ZSTD, LINUX_64 = 0x100000, 0x200000, 0x8000, 0x11


def entry(
    kind: int,
    sm: int,
    *,
    flags: int = 0,
    payload: bytes = b"x" * 160,
    unpacked: int = 0,
    version: int = 0x101,
    header_bytes: int = 64,
    ptx: tuple[int, int] = (9, 0),
) -> bytes:
    """One entry; `unpacked` marks it as compressed, to that many bytes. Newer tools write longer headers."""
    payload += b"\0" * (-len(payload) % 8)
    major, minor = ptx if kind == PTX else (1, 8)
    flags |= LINUX_64 | (ZSTD if unpacked else 0)
    header = struct.pack("<HHIQ", kind, version, header_bytes, len(payload))
    header += struct.pack("<IIHHI", len(payload) if unpacked else 0, 0, minor, major, sm)
    header += struct.pack("<IIQQQ", 0, 0, flags, 0, unpacked)
    return header + b"\0" * (header_bytes - len(header)) + payload


def container(*entries: bytes, version: int = 1, body_bytes: int | None = None) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", MAGIC, version, 16, len(body) if body_bytes is None else body_bytes) + body


def elf(
    sections: dict[str, bytes],
    *,
    machine: int = 62,
    abi: int = 0,
    flags: int = 0,
    types: dict[str, int] | None = None,
) -> bytes:
    """A 64-bit ELF file with these sections and the table of their names."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*sections, ".shstrtab"))
    bodies = [*sections.items(), (".shstrtab", names)]
    content, headers, at = b"", [b"\0" * 64], 64
    for name, body in bodies:
        kind = (types or {}).get(name, 3 if name == ".shstrtab" else 1)
        place = names.index(b"\0" + name.encode() + b"\0") + 1
        headers.append(struct.pack("<IIQQQQIIQQ", place, kind, 2, 0, at, len(body), 0, 0, 8, 0))
        padded = body + b"\0" * (-len(body) % 8)
        content += padded
        at += len(padded)
    ident = b"\x7fELF" + bytes([2, 1, 1, 0x41 if machine == 190 else 0, abi]) + b"\0" * 7
    header = struct.pack(
        "<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, at, flags, 64, 56, 0, 64, len(headers), len(headers) - 1
    )
    return ident + header + content + b"".join(headers)


def library(*containers: bytes, link_input: bytes = b"") -> bytes:
    sections = {".text": b"\x90" * 24, ".nv_fatbin": b"".join(containers)}
    return elf(sections | ({"__nv_relfatbin": link_input} if link_input else {}))
