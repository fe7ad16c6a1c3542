"""Reading and writing what goes to disk: JSON with a schema name and a version, validated both ways."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dynotune.schema import atomic, redaction
from dynotune.schema.errors import CannotRunHere, RecordError, UsageError
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting

T = TypeVar("T", bound=msgspec.Struct)


class _Head(msgspec.Struct):
    schema: str = ""


def encode(document: object) -> bytes:
    """Encode `document` as indented JSON, without secrets; a `Path` becomes text."""
    return redaction.redacted(_formatted(document).decode()).encode()


def without_secrets(document: T) -> T:
    """`document` as it is kept, for whoever shows it."""
    whole = _formatted(document).decode()
    kept = redaction.redacted(whole)
    return document if kept == whole else _decoded(kept.encode(), type(document))


def _formatted(document: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document, enc_hook=_plain), indent=1)


def _decoded(raw: bytes | str, type_: type[T]) -> T:
    return msgspec.json.decode(raw, type=type_, dec_hook=_from_plain)


def _plain(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} has no place in a document")


def _from_plain(type_: type[Any], value: Any) -> Any:
    if type_ is Path and isinstance(value, str):
        return Path(value)
    raise msgspec.ValidationError(f"Expected `{type_.__name__}`, got `{type(value).__name__}`")


def write(path: Path, document: msgspec.Struct, *, to_agent: bool = False) -> None:
    """Write `document` as JSON at `path`, whole or not at all, and without secrets.

    Args:
        to_agent: it tells the agent what to do, and is written as it is: whoever makes it leaves secrets out.

    Raises:
        CannotRunHere: the disk is full or read-only; what was there before is still there.
    """
    try:
        atomic.write(path, (_formatted(document) if to_agent else encode(document)) + b"\n")
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
        return _decoded(raw, type_)
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


_REDACTED = re.compile(rf'"knob":"([^"]+)","value":"{redaction.MARK}"|((?:env|arg)\.[^\s"=]+)={redaction.MARK}')


def completed(document: T, now: RunSpec, *arms: Setting) -> T:
    """A document that is gone on with, with the secrets that it does not hold taken from what the user typed now.

    Args:
        document: its field `run` is a RunSpec.
        now: its command and settings are those that were typed now, or empty.
        arms: settings that the document compares with those of its run.

    Raises:
        UsageError: a secret is missing, or two values of one setting are, which nobody can tell apart any more.
    """
    text = msgspec.json.encode(document, enc_hook=_plain).decode()
    if redaction.MARK not in text:
        return document
    begun: RunSpec = msgspec.structs.asdict(document)["run"]
    again = "Leave --resume out to begin a new one."
    counted = Counter(one.knob for one in (*begun.settings, *arms) if one.value == redaction.MARK)
    if twice := [knob for knob, number in counted.items() if number > 1]:
        raise UsageError(f"Two values of {twice[0]} were secrets, which no record holds.", hint=again)
    for setting in now.settings:
        value = json.dumps(str(setting.value), ensure_ascii=False)[1:-1]
        for before in (f'"knob":"{setting.knob}","value":"', f"{setting.knob}="):
            text = text.replace(before + redaction.MARK, before + value)
    missing = sorted({one or other for one, other in _REDACTED.findall(text)})
    filled = _decoded(text, type(document))
    run: RunSpec = msgspec.structs.asdict(filled)["run"]
    if any(redaction.MARK in word for word in run.command):
        if now.command and redaction.words(now.command) != run.command:
            raise UsageError("It was begun with another command.", hint=again)
        missing += [] if now.command else ["the command"]
        run = msgspec.structs.replace(run, command=now.command)
    if missing:
        raise UsageError(
            f"No record holds secrets, and some are needed to go on: those of {' and '.join(missing)}.",
            hint="Type them again beside --resume: settings as when it was begun, the command after two dashes.",
        )
    if redaction.MARK in _formatted(run).decode():
        raise UsageError("A secret is missing that was part of an option, which no record holds.", hint=again)
    return msgspec.structs.replace(filled, run=run)
