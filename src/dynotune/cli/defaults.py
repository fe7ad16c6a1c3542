"""A project's defaults: options from `dynotune.toml`, or from `[tool.dynotune]` of `pyproject.toml`.

The file may be of a repository that somebody cloned. So it sets only how long and how exactly dynotune works:
never what is run, applied, read, written or connected to.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NoReturn

from dynotune.schema.errors import DynotuneError, UsageError

FILE, PROJECT = "dynotune.toml", "pyproject.toml"
LARGEST_BYTES = 1 << 18
_ACCEPTED = (
    "--budget --margin --in-process --pairs --precision --objective --warmup --steps --phase --timeout --seed "
    "--page-cache --run-to-end --nice --lock --lanes --isolate-loader --fail-on --top --stacks --shapes "
    "--blocks --max-runs --exclude --strict --compute-capability"
)
ACCEPTED = frozenset(_ACCEPTED.split())
"""Options that a file may set, in each subcommand that has them, unless they name a file there."""


class Defaults:
    """Defaults of one file. `file`: as messages name it."""

    def __init__(self, file: Path, table: dict[str, Any], raw: str, *, above: tuple[str, ...] = ()) -> None:
        self.file, self._table, self._raw, self._above = file, table, raw, above
        self.options: dict[str, str] = {}
        """By name of the parameter, as it would be typed."""

    def map_for(self, root: Any, asked: str) -> dict[str, Any]:
        """Return click's `default_map` for the subcommand `asked` of `root`.

        Raises UsageError: a table or key is unknown, may not be set by a file, or has a value that the option refuses.
        """
        for key in self._table:
            if key not in root.commands:
                self._refuse((key,), "subcommand", root.commands)
        return {asked: self._of(root.commands[asked], (asked,), self._table.get(asked, {}))}

    def _of(self, command: Any, path: tuple[str, ...], table: Any) -> dict[str, Any]:
        if not isinstance(table, dict):
            raise self._error(path, f"{path[-1]} is a subcommand", f"Write a table: [{'.'.join(path)}].")
        subcommands = getattr(command, "commands", {})
        params = {flag[2:]: param for param in command.params for flag in param.opts if flag.startswith("--")}
        found: dict[str, Any] = {}
        for key, value in table.items():
            place = (*path, key)
            if key in subcommands:
                found[key] = self._of(subcommands[key], place, value)
            elif key not in params:
                self._refuse(place, f"option of dynotune {' '.join(path)}", [*subcommands, *params])
            else:
                found[params[key].name] = self._value(command, params[key], place, value)
        return found

    def _value(self, command: Any, param: Any, place: tuple[str, ...], value: Any) -> Any:
        flag = f"--{place[-1]}"
        if flag not in ACCEPTED or "FILE" in (param.metavar or ""):
            raise self._error(place, f"{flag} is not taken from a file", "Type it on the command line.")
        if param.is_flag != isinstance(value, bool) or isinstance(value, dict):
            kind = "true or false" if param.is_flag else "a value, and a list if the option may be repeated"
            raise self._error(place, f"{flag} takes {kind}", f"See dynotune {' '.join(place[:-1])} --help.")
        values = value if isinstance(value, list) else [value]
        given: Any = value if param.is_flag else [str(one) for one in values]
        if not param.is_flag and not param.multiple:
            if isinstance(value, list):
                raise self._error(place, f"{flag} takes one value", "Leave the brackets out.")
            (given,) = given
        try:
            _ = param.is_flag or param.process_value(command.context_class(command), given)
        except DynotuneError as error:
            raise self._error(place, error.message.removesuffix("."), error.hint) from error
        except Exception as error:
            if not hasattr(error, "format_message"):
                raise
            raise self._error(place, error.format_message().removesuffix("."), "Correct it there.") from error
        typed = value if isinstance(value, bool) else " ".join(map(str, values))
        self.options[param.name] = f"{flag} {typed}" if not param.is_flag else flag if value else f"{flag}=false"
        return given

    def _refuse(self, place: tuple[str, ...], what: str, known: Collection[str]) -> NoReturn:
        near = difflib.get_close_matches(place[-1], known, 3)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"There are {', '.join(sorted(known))}."
        raise self._error(place, f"{place[-1]!r} is no {what}", hint)

    def _error(self, place: tuple[str, ...], why: str, hint: str) -> UsageError:
        line = _line((*self._above, *place), self._raw)
        return UsageError(f"{self.file}{f':{line}' if line else ''}: {why}.", hint=hint)


def find(cwd: Path) -> Defaults | None:
    """Return the defaults of the nearest file, in `cwd` or above it, up to the repository's root or the home folder.

    Raises UsageError: the file cannot be read.
    """
    for folder in _folders(cwd):
        for name, above in ((FILE, ()), (PROJECT, ("tool", "dynotune"))):
            path = folder / name
            try:
                if not path.is_file():
                    continue
                with path.open("rb") as opened:
                    raw = opened.read(LARGEST_BYTES + 1)
                if len(raw) > LARGEST_BYTES and name == PROJECT:
                    continue
                table: Any = tomllib.loads(_bounded(raw).decode())
            except (OSError, ValueError, RecursionError) as error:
                if name == PROJECT:
                    continue  # another program's file: whoever needs it says so
                raise UsageError(f"{path} cannot be read: {error}.", hint="Correct it, or remove it.") from error
            for key in above:
                table = table.get(key) if isinstance(table, dict) else None
            if isinstance(table, dict):
                return Defaults(path, table, raw.decode(), above=above)
    return None


def _bounded(raw: bytes) -> bytes:
    if len(raw) > LARGEST_BYTES:
        raise ValueError(f"it has more than {LARGEST_BYTES >> 10} KiB")
    return raw


def _folders(cwd: Path) -> Iterator[Path]:
    """Yield the folders to look into: only `cwd` if it is neither in a repository nor below the home folder."""
    all_ = [cwd, *cwd.parents]
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - the other raises without a home
    ends = (at for at, folder in enumerate(all_) if (folder / ".git").exists() or folder == home)
    yield from all_[: next(ends, 0) + 1]


def _line(place: tuple[str, ...], raw: str) -> int | None:
    """Return the line of a key or of a table, counted from 1; None if it is written in another way."""
    *table, key = place
    inside: list[str] = []
    for number, line in enumerate(raw.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
            inside = [part.strip(" \"'") for part in header[1].split(".")]
            if inside == [*table, key]:
                return number
        elif inside == table and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
            return number
    return None
