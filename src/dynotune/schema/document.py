"""Read and write documents on disk: JSON with a schema name and a version, validated when written and when
read.

Arguments, names of files and output are bytes. Python represents a byte that is not UTF-8 by half of a
surrogate pair, and JSON by its escape, `\\udcff` for 0xff: so a stored command can be started again
unchanged.
"""

import json
import math
import re
from pathlib import Path
from typing import Any, NoReturn, TypeVar, overload

import msgspec

from dynotune.schema import atomic, redaction, untrusted
from dynotune.schema.errors import RecordError, may_fail

T = TypeVar("T", bound=msgspec.Struct)
V = TypeVar("V")


class Head(msgspec.Struct):
    """The fields with which every document begins."""

    schema: str = ""


# Text that needs special care: msgspec does not write or read half of a surrogate pair, and reads long
# numbers without a limit.
_RARE = re.compile(rb"\\u[dD][89a-fA-F]|[0-9]{19}")
LARGEST_INT = 2**64 - 1
MOST_VALUES = 4_000_000
"""Most values of a text with such care: Python's own reader makes an object of each, also of those in fields
that no type has, while msgspec skips them."""


def encode(document: object, *, indent: int = 1) -> bytes:
    """Encode `document` as JSON without secrets, on one line if `indent` is 0; a `Path` becomes text."""
    return json_bytes(redaction.redacted(json_text(document, indent)))


def without_secrets(document: T) -> T:
    """Return a copy of `document` with secrets replaced, as in the stored document, in order to show the
    copy."""
    whole = json_text(document)
    kept = redaction.redacted(whole)
    return document if kept == whole else parse(json_bytes(kept), type(document))


def json_text(document: object, indent: int = 1) -> str:
    """Return `document` as JSON in which bytes that are not UTF-8 appear as Python represents them."""
    try:
        raw = msgspec.json.encode(document, enc_hook=_plain)
        return (msgspec.json.format(raw, indent=indent) if indent else raw).decode()
    except UnicodeEncodeError:
        plain = _without_infinity(msgspec.to_builtins(document, str_keys=True, enc_hook=_plain))
        separators = None if indent else (",", ":")
        return json.dumps(plain, indent=indent or None, separators=separators, ensure_ascii=False)


def json_bytes(text: str) -> bytes:
    """Return the text of `json_text` as bytes."""
    return text.encode(
        errors="backslashreplace"
    )  # JSON and Python have the same escape for half a surrogate pair


def _without_infinity(value: Any) -> Any:
    """Replace numbers that JSON does not know by None, as msgspec does."""
    if isinstance(value, dict):
        return {key: _without_infinity(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinity(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@overload
def parse(raw: bytes | str, type_: type[V]) -> V: ...
@overload
def parse(raw: bytes | str, type_: Any = ...) -> Any: ...
def parse(raw: bytes | str, type_: Any = Any) -> Any:
    """Parse the JSON `raw` as a value of `type_`.

    Raises ValueError: `raw` is not JSON, nests too deeply, has a number too large for any field, or needs
    care and has too many values; in plain words.
    """
    raw = raw.encode(errors="surrogatepass") if isinstance(raw, str) else raw
    try:
        if not _RARE.search(raw):
            return _decoded(raw, type_)
        if raw.count(b",") + raw.count(b"[") + raw.count(b"{") > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES:,} values")
        plain = json.loads(raw.decode(), parse_int=_int, parse_float=_float, parse_constant=_no_number)
    except (UnicodeError, RecursionError) as error:
        raise ValueError(in_words(error)) from None
    return convert(plain, type_, str_keys=True)


def _decoded(raw: bytes, type_: Any) -> Any:
    """Decode JSON. Raises UnicodeDecodeError where it is no UTF-8, with the place in `raw`.

    msgspec up to 0.22 names the place in the text of a value, and later ones name none.
    """
    try:
        return msgspec.json.decode(raw, type=type_, dec_hook=_from_plain)
    except (UnicodeDecodeError, msgspec.DecodeError):
        raw.decode()
        raise


@overload
def convert(plain: object, type_: type[V], *, str_keys: bool = ...) -> V: ...
@overload
def convert(plain: object, type_: Any, *, str_keys: bool = ...) -> Any: ...
def convert(plain: object, type_: Any, *, str_keys: bool = False) -> Any:
    """Convert plain data (dicts, lists, strings, numbers) to a value of `type_`.

    Raises ValueError: the data do not fit the type; in plain words.
    """
    try:
        return msgspec.convert(plain, type_, str_keys=str_keys, dec_hook=_from_plain)
    except (ValueError, RecursionError) as error:
        raise ValueError(in_words(error)) from None


def in_words(error: Exception) -> str:
    """Describe a parser's error for readers who do not know Python's exceptions; without a full stop."""
    match error:
        case RecursionError():
            return "its values nest too deeply"
        case UnicodeDecodeError():
            return f"byte {error.start:,} is no UTF-8"
        case UnicodeEncodeError():
            return "it has a word that is not text"
    return str(error).rstrip(".").replace("`NoneType`", "`null`")


def _int(digits: str) -> int:
    number = int(digits) if len(digits) <= len(str(-LARGEST_INT)) else math.inf
    return int(number) if -LARGEST_INT <= number <= LARGEST_INT else _no_number(digits)


def _float(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _no_number(digits)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:20]}{'…' if len(text) > 20 else ''} is not a number that it may hold")


def _plain(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} has no place in a document")


def _from_plain(type_: type[Any], value: Any) -> Any:
    if type_ is Path and isinstance(value, str):
        return Path(value)
    raise msgspec.ValidationError(f"Expected `{type_.__name__}`, got `{type(value).__name__}`")


def write(path: Path, document: msgspec.Struct, *, to_agent: bool = False) -> None:
    """Write `document` without secrets as JSON to `path`; a failure leaves no half-written file.

    Args:
        to_agent: whether the document is for the agent and is written unchanged; the caller has to leave
            secrets out.

    Raises:
        CannotRunHere: the disk is full or read-only; a previous file at `path` is unchanged.
    """
    content = json_bytes(json_text(document)) if to_agent else encode(document)
    with may_fail(f"write {path}", "Free some space, or name another folder with --run-dir."):
        atomic.write(path, content + b"\n", own_name=True)


def read(path: Path, type_: type[T]) -> T:
    """Read and validate the document at `path`.

    Raises RecordError: the file is missing, cut short, of another schema, or of a version this dynotune does
    not know.
    """
    with may_fail(f"read {path}", "", RecordError):
        raw = untrusted.read(path)
    return decode(raw, type_, name=str(path))


def decode(raw: bytes, type_: type[T], *, name: str) -> T:
    """Validate `raw` as a document of `type_`; errors mention `name`. Raises RecordError: as `read`."""
    expected = str(msgspec.structs.fields(type_)[0].default)
    try:
        found = parse(raw, Head).schema
    except ValueError as error:
        raise RecordError(f"{name} is not a complete JSON document: {error}.") from error
    check_schema(found, expected, name=name)
    try:
        return parse(raw, type_)
    except ValueError as error:
        raise RecordError(f"{name} is not a valid {expected}: {error}.") from error


def check_schema(found: str, expected: str, *, name: str) -> None:
    """Refuse a document of another schema, or of another major version than this dynotune writes.

    Raises RecordError: the message has the schema that was found, and what to do.
    """
    if found == expected:
        return
    if found.rpartition("/")[0] == expected.rpartition("/")[0]:
        raise RecordError(
            f"{name} is {found}, and this dynotune reads {expected}.",
            hint="Make it again, or read it with the version of dynotune that wrote it.",
        )
    raise RecordError(f"{name} is not a {expected}" + (f" but a {found}." if found else "."))
