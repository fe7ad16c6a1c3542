"""Read the text of a file, plain or gzipped, one chunk at a time."""

import zlib
from collections.abc import Iterator
from pathlib import Path

from dynotune.schema.errors import UsageError

GZIP = b"\x1f\x8b"
_LARGEST_RATIO = 100
_ALWAYS_BYTES = 1 << 30
_PACKED_BYTES = 1 << 16

Chunk = tuple[int, bytes]
"""Position in the file in bytes as stored, and text; the text is empty at the end."""


def default_limit(size_bytes: int) -> int:
    """Return the limit in bytes for the unpacked text of a gzipped file of this size, unless the user gives another.

    gzip shrinks recorded traces to between a tenth and a thirtieth, and hostile data to a thousandth: a limit of 100
    times the file's size allows any trace but no bomb. Up to 1 GiB of text is always allowed, as it takes only seconds.
    """
    return max(_LARGEST_RATIO * size_bytes, _ALWAYS_BYTES)


def chunks(path: Path, chunk_bytes: int, limit_bytes: int | None = None) -> Iterator[Chunk]:
    """Yield text of at most `chunk_bytes` at a time; a gzipped file that is cut short just ends.

    Args:
        limit_bytes: limit for the text of a gzipped file; `default_limit` if None.

    Raises:
        UsageError: the file cannot be read, its compression is damaged, or it unpacks to more than the limit.
    """
    try:
        with path.open("rb") as file:
            gzipped = file.read(len(GZIP)) == GZIP
        return _unpacked(path, chunk_bytes, limit_bytes) if gzipped else _plain(path, chunk_bytes)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def _plain(path: Path, chunk_bytes: int) -> Iterator[Chunk]:
    with path.open("rb") as file:
        while text := file.read(chunk_bytes):
            yield file.tell(), text


def _unpacked(path: Path, chunk_bytes: int, limit_bytes: int | None) -> Iterator[Chunk]:
    size_bytes = path.stat().st_size
    limit_bytes = default_limit(size_bytes) if limit_bytes is None else limit_bytes
    num_bytes = 0
    for position, text in _members(path, chunk_bytes):
        num_bytes += len(text)
        if num_bytes > limit_bytes:
            raise UsageError(
                f"{path} unpacks to more than {limit_bytes:,} bytes from {size_bytes:,}",
                hint="if it is a recorded trace nevertheless, raise the limit with --max-size",
            )
        yield position, text


def _members(path: Path, chunk_bytes: int) -> Iterator[Chunk]:
    with path.open("rb") as file:
        member = zlib.decompressobj(31)
        packed = b""
        while packed or (packed := file.read(_PACKED_BYTES)):
            if member.eof:
                # Gzip files may be joined end to end; zeros may pad the last; any other bytes after the last are not
                # text.
                packed = packed.lstrip(b"\0")
                if not packed.startswith(GZIP[:1]):
                    return
                member = zlib.decompressobj(31)
            try:
                text = member.decompress(packed, chunk_bytes)
            except zlib.error as error:
                raise UsageError(
                    f"{path} is damaged: it cannot be unpacked beyond byte {file.tell() - len(packed):,} ({error})",
                    hint="copy it again, or record it again",
                ) from error
            packed = member.unused_data if member.eof else member.unconsumed_tail
            if text:
                yield file.tell() - len(packed), text
        if not member.eof and (text := member.flush()):
            yield file.tell(), text
