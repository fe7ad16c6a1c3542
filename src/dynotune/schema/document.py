"""Reading and writing what goes to disk: JSON with a schema name and a version, validated both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dynotune.schema import atomic
from dynotune.schema.errors import CannotRunHere, RecordError

T = TypeVar("T", bound=msgspec.Struct)


class _Head(msgspec.Struct):
    schema: str = ""


def encode(document: object) -> bytes:
    """Encode `document` as indented JSON; a `Path` becomes text."""
    return msgspec.json.format(msgspec.json.encode(document, enc_hook=_plain), indent=1)


def _plain(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} has no place in a document")


def _from_plain(type_: type[Any], value: Any) -> Any:
    if type_ is Path and isinstance(value, str):
        return Path(value)
    raise msgspec.ValidationError(f"Expected `{type_.__name__}`, got `{type(value).__name__}`")


def write(path: Path, document: msgspec.Struct) -> None:
    """Write `document` as JSON at `path`, whole or not at all.

    Raises:
        CannotRunHere: the disk is full or read-only; what was there before is still there.
    """
    try:
        atomic.write(path, encode(document) + b"\n")
    except OSError as error:
        raise CannotRunHere(
            f"Cannot write {path}: {error.strerror}.",
            hint="Free some space, or name another folder with --run-dir.",
        ) from error


def read(path: Path, type_: type[T]) -> T:
    """Read and validate the document at `path`.

    Raises:
        RecordError: missing, cut short, not of this schema, or of a version this dynotune does not know.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise RecordError(f"Cannot read {path}: {error.strerror}.") from error
    return decode(raw, type_, name=str(path))


def decode(raw: bytes, type_: type[T], *, name: str) -> T:
    """Validate `raw` as a document of `type_`; `name` stands in the error.

    Raises:
        RecordError: as `read`.
    """
    expected = str(msgspec.structs.fields(type_)[0].default)
    try:
        found = msgspec.json.decode(raw, type=_Head).schema
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise RecordError(f"{name} is not a complete JSON document: {error}.") from error
    check_schema(found, expected, name=name)
    try:
        return msgspec.json.decode(raw, type=type_, dec_hook=_from_plain)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise RecordError(f"{name} is not a valid {expected}: {error}.") from error


def check_schema(found: str, expected: str, *, name: str) -> None:
    """Refuse another noun, and a major version that is not ours.

    Raises:
        RecordError: with what was found and what to do.
    """
    if found == expected:
        return
    if found.rpartition("/")[0] == expected.rpartition("/")[0]:
        raise RecordError(
            f"{name} is {found}, and this dynotune reads {expected}.",
            hint="Make it again, or read it with the version of dynotune that wrote it.",
        )
    raise RecordError(f"{name} is not a {expected}" + (f" but a {found}." if found else "."))
