"""Tell whether this user or somebody else began the folder of a comparison, study or start timing.

Resuming runs the command and the settings in the folder. A folder that was begun here has a mark that only
this user can make. For any other folder, the user must type again everything that could run foreign code.
"""

import contextlib
import hashlib
import hmac
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dynotune import knobs
from dynotune.schema import atomic, document, private, redaction, untrusted
from dynotune.schema.errors import UsageError
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting
from dynotune.text import words

FILE = "origin.json"
_KEY_BYTES = 32


class _Origin(msgspec.Struct, frozen=True):
    """The arguments typed when a folder was begun, without secrets, and the mark of the user who typed
    them."""

    command: list[str]
    cwd: str
    settings: list[str]
    mark: str = ""


def mark(folder: Path, begun: msgspec.Struct) -> None:
    """Mark the new folder of the document `begun`. If the user's key cannot be stored, the folder stays
    unmarked."""
    tree = _tree(begun)
    run = tree["run"]
    origin = _Origin(
        run["command"], run["cwd"], [str(one) for one in _settings(tree) if knobs.must_be_typed(one)]
    )
    with contextlib.suppress(OSError):
        origin = msgspec.structs.replace(origin, mark=_mark_of(origin, _key()))
        atomic.write(folder / FILE, _raw(origin))


def to_type(folder: Path, begun: msgspec.Struct | bytes) -> tuple[list[str], list[Setting]]:
    """Return a document's command (empty if typed) and settings, as far as the user did not type these on
    this machine.

    `begun`: the document, or the document's JSON text. Secrets in the document are ignored.
    """
    tree = _tree(begun)
    found = [one for one in _settings(tree) if knobs.must_be_typed(one)]
    origin = _read(folder)
    if origin is None or (origin.command, origin.cwd) != (tree["run"]["command"], tree["run"]["cwd"]):
        return tree["run"]["command"], found
    return [], [one for one in found if str(one) not in origin.settings]


def was_typed(base: Path, command: Sequence[str], cwd: Path) -> bool:
    """Tell whether this user began a folder below `base` with this command in this working directory."""
    try:
        found = [_read(folder) for folder in base.iterdir() if (folder / FILE).exists()]
    except OSError:
        return False
    return any(one is not None and (one.command, one.cwd) == (list(command), str(cwd)) for one in found)


def refuse_foreign(folder: Path, begun: msgspec.Struct, now: RunSpec) -> None:
    """Refuse to resume somebody else's command or settings unless the user types command and settings again.

    `now`: the command and settings typed now, or empty. Raises UsageError: its hint shows what to type.
    """
    command, settings = to_type(folder, begun)
    typed = {redaction.redacted(str(one)) for one in now.settings}
    left = [one for one in settings if str(one) not in typed]
    if command and redaction.words(now.command) == command:
        command = []
    if not command and not left:
        return
    parts = [knobs.how_to_type(one) for one in left] + ([f"-- {words.command(command)}"] if command else [])
    raise UsageError(
        f"{folder} was not begun by you on this machine, and its settings could run foreign code.",
        hint=(
            "If you trust it, type it beside --resume (compare takes settings without --set): "
            f"{' '.join(parts)}"
        ),
    )


def _tree(begun: msgspec.Struct | bytes) -> dict[str, Any]:
    raw = begun if isinstance(begun, bytes) else document.encode(begun)
    tree: dict[str, Any] = document.parse(raw)
    return tree


def _settings(tree: dict[str, Any]) -> list[Setting]:
    """Return all settings of a document, including those in options: --try has KNOB=VALUE, --values has
    KNOB=A,B."""
    texts = [*tree.get("extra", []), *tree.get("values", [])]
    found = list(_nested(tree))
    for knob, _, value in (text.partition("=") for text in texts if "=" in text):
        found += [Setting(knob, word.strip()) for word in (value, *value.split(","))]
    return list(dict.fromkeys(found))


def _nested(tree: Any) -> Iterator[Setting]:
    if isinstance(tree, dict) and tree.keys() == {"knob", "value"}:
        yield Setting(tree["knob"], tree["value"])
    elif isinstance(tree, dict | list):
        for inner in tree.values() if isinstance(tree, dict) else tree:
            yield from _nested(inner)


def _read(folder: Path) -> _Origin | None:
    """Read the content that the mark in the folder covers; None if the mark is missing or made by another
    user."""
    try:
        origin = document.parse(untrusted.read(folder / FILE, link=False), _Origin)
        expected = _mark_of(origin, _key())
    except (OSError, ValueError):
        return None
    return origin if hmac.compare_digest(expected.encode(), origin.mark.encode()) else None


def _mark_of(origin: _Origin, key: bytes) -> str:
    return hmac.new(key, _raw(msgspec.structs.replace(origin, mark="")), hashlib.sha256).hexdigest()


def _raw(origin: _Origin) -> bytes:
    """Encode the content that a mark covers independently of documents, since the rules for secrets may
    change."""
    return json.dumps(msgspec.to_builtins(origin)).encode()


def _key() -> bytes:
    """Return the user's own key, created at the first use. Raises OSError: the key cannot be read or
    created."""
    path = private.state_folder() / "origin.key"
    private.folder(path.parent)
    with contextlib.suppress(FileExistsError):
        # Write the key atomically, because another dynotune may read it at the same time.
        made = path.with_name(f"origin.key.{os.getpid()}")
        made.unlink(missing_ok=True)  # left by a killed process, or a link that someone planted
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(os.urandom(_KEY_BYTES))
        try:
            os.link(made, path)
        finally:
            made.unlink()
    with untrusted.opened(path, link=False) as file:
        key = file.read(_KEY_BYTES + 1)
        status = os.fstat(file.fileno())
        if len(key) != _KEY_BYTES or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise OSError(f"{path} is not a key of this user")
    return key
