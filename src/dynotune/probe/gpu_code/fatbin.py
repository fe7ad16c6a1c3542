"""Read fat binaries: containers of the same GPU code for several architectures. Only headers are read.

A container is a header of 16 bytes (magic, version, size of the header, size of the rest) and entries. An
entry is a header of 64 bytes or more and its code, which may be compressed. Containers follow one another
with zeros between them. The layout was checked against cuobjdump of CUDA 13.5 on libraries of CUDA 11.8 to
13.5.

Source: fatbinary_section.h of the CUDA toolkit; https://github.com/n-eiling/cuda-fatbin-decompression
"""

import struct
from collections.abc import Callable, Iterator

from dynotune.schema.device_code import Code, Container, Form, Suffix

MAGIC = 0xBA55ED50
MAGIC_BYTES = struct.pack("<I", MAGIC)
VERSION, ENTRY_VERSION = 1, 0x101

UNKNOWN_KIND = 0
KINDS: dict[int, Form] = {1: "ptx", 2: "machine", 8: "lto"}
ARCHITECTURE_SPECIFIC, FAMILY_SPECIFIC = 0x100000, 0x200000
COMPRESSED = 0x1000 | 0x2000 | 0x8000
"""Flags of compression, by LZ4 or zstd depending on the toolkit's version."""

ALIGNMENT = 8
SMALLEST_ENTRY_BYTES = 64
BLOCK_BYTES = 1 << 16
"""Number of bytes that are searched at a time for the next container."""
MOST_SEARCHED_BYTES, MOST_ENTRIES = 64 << 20, 1 << 20
"""Limits for damaged files. NVIDIA's largest library has 6000 entries, and 8 bytes between containers."""

_HEADER = struct.Struct("<IHHQ")
# Kind, version, size of the header, size of the rest; compressed size, 4 unknown bytes, minor and major
# version of the language, architecture; position and length of the file's name, flags, 8 unknown bytes,
# uncompressed size.
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")

Read = Callable[[int, int], bytes]
"""Read bytes of a file by offset and number; the result is shorter at the end of the file."""
Tell = Callable[[str], None]


def containers(read: Read, begin: int, end: int, problem: Tell) -> Iterator[Container]:
    """Yield the containers between two offsets of a file, without those that have no entries.

    `problem`: receives a message about damaged or unknown data; the search continues after such data.
    """
    at, num_entries = begin, 0
    while at + _HEADER.size <= end:
        head = read(at, _HEADER.size)
        if len(head) < _HEADER.size:
            break
        if not head.startswith(MAGIC_BYTES):
            found = _next(read, at, end)
            if any(head[:ALIGNMENT]) or (found is None and at == begin):
                problem(f"at byte {at} there is no fat binary where one should be")
            if found is None:
                return
            at = found
            continue
        _, version, header_bytes, body_bytes = _HEADER.unpack(head)
        body = at + max(header_bytes, _HEADER.size)
        after = body + body_bytes
        is_cut = header_bytes < _HEADER.size or after > end
        if is_cut:
            problem(f"the fat binary at byte {at} reaches beyond the section that contains it")
            after = end
        if version != VERSION:
            problem(
                f"the fat binary at byte {at} is of version {version}, which is unknown, so it is left out"
            )
        else:
            codes, after = _entries(read, body, after, problem, is_cut=is_cut)
            if codes:
                yield tuple(codes)
            num_entries += len(codes)
        num_entries += 1
        if num_entries > MOST_ENTRIES:
            problem(f"more than {MOST_ENTRIES} entries: everything after byte {after} is left out")
            return
        # Align within the section, whatever the section's offset in the file.
        at = begin + -(-(after - begin) // ALIGNMENT) * ALIGNMENT
    if at < end and any(read(at, min(end - at, _HEADER.size))):
        problem(f"the file ends within the fat binary at byte {at}")


def _entries(read: Read, begin: int, end: int, problem: Tell, *, is_cut: bool) -> tuple[list[Code], int]:
    """Return the entries of one container, and the offset at which to search for the next container.

    `is_cut`: `end` is not the end that the container states; the next container may begin earlier.
    """
    at = begin
    codes: list[Code] = []
    while at + SMALLEST_ENTRY_BYTES <= end and len(codes) <= MOST_ENTRIES:
        head = read(at, SMALLEST_ENTRY_BYTES)
        if len(head) < SMALLEST_ENTRY_BYTES:
            problem(f"the file ends within the entry at byte {at}")
            return codes, end
        if head.startswith(MAGIC_BYTES):
            # The size in the container's header was wrong.
            return codes, at
        fields = _ENTRY.unpack(head)
        kind, version, header_bytes, stored_bytes = fields[:4]
        after = at + header_bytes + stored_bytes
        if header_bytes < SMALLEST_ENTRY_BYTES or after > end:
            problem(
                f"the entry at byte {at} is longer than its fat binary: it is left out with everything "
                "after it"
            )
            return codes, at + SMALLEST_ENTRY_BYTES if is_cut else end
        if version != ENTRY_VERSION:
            problem(
                f"the entry at byte {at} is of version {version:#x}, which is unknown, so its contents are "
                "unknown"
            )
            kind = UNKNOWN_KIND
        codes.append(_code(kind, stored_bytes, fields))
        at = after
    return codes, at if is_cut else end


def _code(kind: int, stored_bytes: int, fields: tuple[int, ...]) -> Code:
    minor, major, sm, flags, unpacked_bytes = fields[6], fields[7], fields[8], fields[11], fields[13]
    suffix: Suffix = "a" if flags & ARCHITECTURE_SPECIFIC else "f" if flags & FAMILY_SPECIFIC else ""
    form = KINDS.get(kind, "other")
    packed = bool(flags & COMPRESSED) and unpacked_bytes > 0
    return Code(
        form=form,
        sm=sm,
        suffix=suffix,
        stored_bytes=stored_bytes,
        code_bytes=unpacked_bytes if packed else stored_bytes,
        ptx_version=(major, minor) if form == "ptx" else None,
        kind=kind,
    )


def _next(read: Read, begin: int, end: int) -> int | None:
    """Return the offset of the next container; None without a next container."""
    at = begin
    while at < min(end, begin + MOST_SEARCHED_BYTES):
        wanted = min(BLOCK_BYTES, end - at)
        block = read(at, wanted)
        place = block.find(MAGIC_BYTES)
        while place >= 0 and place % ALIGNMENT:
            place = block.find(MAGIC_BYTES, place + 1)
        if place >= 0:
            return at + place
        if len(block) < wanted:
            return None
        at += wanted
    return None
