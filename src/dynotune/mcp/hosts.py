"""Enter the server into the configuration of a coding agent's host, leaving all other entries as they are."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dynotune.schema import atomic, untrusted
from dynotune.schema.errors import UsageError, may_fail
from dynotune.schema.home import expanded

NAME = "dynotune"
LARGEST_BYTES = 4 << 20


class Host(NamedTuple):
    """An agent's host.

    `file`: from the root to the file of its configuration. `added`: from the file's text, its name for errors
    and the server's command line to the text with the server.
    """

    file: Callable[[Path], Path]
    added: Callable[[str, str, Sequence[str]], str]


class Setup(NamedTuple):
    """A host's configuration with the server in it; `text` equals `before` if it was there already."""

    file: Path
    before: str
    text: str

    def write(self) -> None:
        """Write the file, with the mode that it had. Raises UsageError: it cannot be written."""
        with may_fail(f"write {self.file}", "Add the lines of --dry-run by hand.", UsageError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            atomic.write(self.file, self.text.encode())


def setup(host: str, root: Path, *, allow_run: bool, longest_s: float | None = None) -> Setup:
    """Return the configuration of a host with the server in it; nothing is written.

    Args:
        longest_s: most time of a job, in seconds; without it, what the server takes by itself.

    Raises UsageError: the present file cannot be read or understood, or has another server of that name; or
    the root has no name in UTF-8.
    """
    file = HOSTS[host].file(root.absolute())
    before = ""
    if file.exists():
        with may_fail(f"read {file}", "Check who may read it.", UsageError):
            before = _text(file)
    words = [*_own_command(), "mcp", "--root", str(root.absolute()), *(["--allow-run"] if allow_run else [])]
    if longest_s is not None:
        words += ["--longest", f"{longest_s:.12g}s"]
    if not _is_utf8(" ".join(words)):
        raise UsageError("The root has a name that is no UTF-8.", hint="Give it another name, or --root DIR.")
    return Setup(file, before, HOSTS[host].added(before, str(file), words))


def _text(file: Path) -> str:
    try:
        return untrusted.read(file, LARGEST_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_understood(str(file), "it is no UTF-8") from error


def _own_command() -> list[str]:
    """Return the words that start this dynotune from any folder."""
    found = shutil.which(NAME)
    return [found] if found is not None else [sys.executable, "-m", NAME]


def _in_json(before: str, name: str, words: Sequence[str]) -> str:
    try:
        found: Any = json.loads(before) if before.strip() else {}
    except (ValueError, RecursionError) as error:
        raise _not_understood(name, str(error)) from error
    if not isinstance(found, dict) or not isinstance(servers := found.setdefault("mcpServers", {}), dict):
        raise _not_understood(name, "mcpServers is no object")
    entry = {"command": words[0], "args": list(words[1:])}
    if NAME not in servers:
        servers[NAME] = entry
        text = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
        # Half of a surrogate pair, which JSON may name, has no UTF-8 of its own.
        return text if _is_utf8(text) else json.dumps(found, indent=2) + "\n"
    _check_same(servers[NAME], entry, name)
    return before


def _in_toml(before: str, name: str, words: Sequence[str]) -> str:
    try:
        found = tomllib.loads(before)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _not_understood(name, str(error)) from error
    servers = found.get("mcp_servers", {})
    entry = {"command": words[0], "args": list(words[1:])}
    if isinstance(servers, dict) and NAME in servers:
        _check_same(servers[NAME], entry, name)
        return before
    command, args = (_toml(value) for value in (words[0], list(words[1:])))
    lines = [f"[mcp_servers.{NAME}]", f"command = {command}", f"args = {args}"]
    text = before + ("\n" if before and not before.endswith("\n") else "") + ("\n" if before else "")
    text += "\n".join(lines) + "\n"
    try:
        tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:  # mcp_servers is an inline table
        raise _not_understood(name, str(error)) from error
    return text


def _toml(value: str | list[str]) -> str:
    """Write a text or a list of texts for TOML: as JSON does, without its surrogate pairs and bare DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_same(there: object, entry: dict[str, Any], name: str) -> None:
    is_same = isinstance(there, dict) and {key: there.get(key) for key in entry} == entry
    if not is_same:
        raise UsageError(
            f"{name} has another server named {NAME}.",
            hint=f"Take that entry out, or change it: {json.dumps(entry)}",
        )


def _not_understood(name: str, why: str) -> UsageError:
    return UsageError(
        f"{name} is not understood: {why}.", hint="Add the server by hand: docs/guides/agents.md"
    )


def _codex(_: Path) -> Path:
    return expanded(Path(os.environ.get("CODEX_HOME") or "~/.codex")) / "config.toml"


HOSTS = {
    "claude": Host(lambda root: root / ".mcp.json", _in_json),
    "codex": Host(_codex, _in_toml),
    "cursor": Host(lambda root: root / ".cursor" / "mcp.json", _in_json),
}
