"""Read a project's defaults: options from `dynotune.toml`, or from `[tool.dynotune]` of `pyproject.toml`.

The file may belong to a repository that somebody cloned. So the file sets only how long and how exactly
dynotune works, never what is run, applied, read, written or connected to.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dynotune.schema import untrusted
from dynotune.schema.errors import DynotuneError, UsageError
from dynotune.schema.home import home

LARGEST_BYTES = 1 << 18
_ACCEPTED = (
    "--budget --margin --in-process --pairs --precision --objective --warmup --steps --phase --timeout "
    "--seed "
    "--page-cache --run-to-end --nice --lock --lanes --isolate-loader --fail-on --top --stacks --shapes "
    "--blocks --max-runs --exclude --strict --compute-capability"
)
ACCEPTED = frozenset(_ACCEPTED.split())
"""Options that a project may set, in each subcommand that has the option, unless the option names a file
there."""
_REFUSED = frozenset({("watch", "--fail-on")})
"""Options that mean more in one subcommand than elsewhere: `watch --fail-on` ends the command."""
OF_RESUMED = ("--fail-on", "--lock")
"""Accepted options that also apply with --resume; a resumed measurement keeps its budget and all other
options."""


def of_project(cwd: Path, parser: Any, ours: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Return click's `default_map` for the command line `ours`, and a line that lists the defaults used from
    each file.

    Raises UsageError if a table or key is unknown, may not be set by a file, or has a value that the option
    refuses.
    """
    used: list[str] = []
    for path, raw, table in _tables(cwd):
        found = _of(parser, table, ours, (), used, path, raw)
        return found, f"From {path}: {' '.join(used)}" if used else ""
    return {}, ""


def _of(
    command: Any,
    table: Any,
    ours: Sequence[str],
    above: tuple[str, ...],
    used: list[str],
    path: Path,
    raw: str,
) -> dict[str, Any]:
    """Check a table and its tables for the subcommands in `ours`; add the options that were not typed to
    `used`."""
    subcommands = getattr(command, "commands", {})
    params = {
        opt[2:]: param for param in command.params for opt in param.opts if above and opt.startswith("--")
    }
    is_resumed = any(word.split("=")[0] == "--resume" for word in ours)
    found: dict[str, Any] = {}
    for key, value in table.items():
        flag, param = f"--{key}", params.get(key)
        try:
            if key in subcommands:
                if not isinstance(value, dict):
                    raise UsageError(
                        f"{key} is a subcommand.", hint=f"Write a table: [{'.'.join((*above, key))}]."
                    )
                if key in ours:
                    found[key] = _of(subcommands[key], value, ours, (*above, key), used, path, raw)
                continue
            if param is None:
                what = f"option of dynotune {' '.join(above)}" if above else "subcommand"
                raise UsageError(f"{key!r} is no {what}.", hint=_near(key, [*subcommands, *params]))
            taken = _value(command, param, flag, value, above)
            if is_resumed and flag not in OF_RESUMED:
                continue
            found[param.name] = taken
        except Exception as error:
            line = next((f":{at}" for at, text in enumerate(raw.splitlines(), 1) if _names(key, text)), "")
            if str(error).startswith(str(path)) or not (
                isinstance(error, DynotuneError) or hasattr(error, "format_message")
            ):
                raise
            why = error.message if isinstance(error, DynotuneError) else error.format_message()
            hint = getattr(error, "hint", "") or "Correct it there."
            raise UsageError(f"{path}{line}: {why}", hint=hint) from error
        if not any(word.split("=")[0] in (*param.opts, *param.secondary_opts) for word in ours):
            used += [flag] if value is True else [flag, str(value)]
    return found


def _value(command: Any, param: Any, flag: str, value: Any, above: tuple[str, ...]) -> Any:
    """Convert a value of the file to the option's type, with the checks for a typed value."""
    is_refused = flag not in ACCEPTED or (*above, flag) in _REFUSED
    if is_refused or "FILE" in (param.metavar or ""):
        raise UsageError(f"{flag} is not taken from a file.", hint="Type it on the command line.")
    if param.is_flag != isinstance(value, bool):
        raise UsageError(f"{flag} takes {'true or false' if param.is_flag else 'a value'}.")
    if param.is_flag:
        return value
    given = (
        [str(one) for one in (value if isinstance(value, list) else [value])]
        if param.multiple
        else str(value)
    )
    param.process_value(command.context_class(command), given)
    return given


def _near(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, known, 3)
    return f"Did you mean {' or '.join(near)}?" if near else f"There are {', '.join(sorted(known))}."


def _names(key: str, line: str) -> bool:
    return bool(re.match(rf"\s*(\[[^\]]*\b{re.escape(key)}\s*\]|[\"']?{re.escape(key)}[\"']?\s*[=.])", line))


def _tables(cwd: Path) -> Iterator[tuple[Path, str, Any]]:
    """Yield each file with its text and table, the nearest first, up to the repository's root or the home
    folder.

    Outside of a repository and the home folder, only `cwd` is searched. Above `cwd`, files and repositories
    count only if they belong to this user, to root, or to the owner of `cwd`: anybody can put files into a
    shared folder above.

    Raises UsageError if a file cannot be read.
    """
    folders, end = [cwd, *cwd.parents], home()
    owners = {os.geteuid(), 0, _owner(cwd)} - {None}
    ends = (at for at, folder in enumerate(folders) if _owner(folder / ".git") in owners or folder == end)
    for folder in folders[: next(ends, 0) + 1]:
        for path in filter(os.path.isfile, (folder / "dynotune.toml", folder / "pyproject.toml")):
            if folder != cwd and _owner(path) not in owners:
                continue
            try:
                raw = untrusted.read(path, LARGEST_BYTES).decode()
                table: Any = tomllib.loads(raw)
            except (OSError, ValueError, RecursionError) as error:
                if path.name == "dynotune.toml":
                    raise UsageError(
                        f"{path} cannot be read: {error}.", hint="Correct it, or remove it."
                    ) from error
                continue  # another program's file
            if path.name == "pyproject.toml":
                tools = table.get("tool")
                table = tools.get("dynotune") if isinstance(tools, dict) else None
            if isinstance(table, dict):
                yield path, raw, table


def _owner(path: Path) -> int | None:
    """Return the user to whom a file belongs; None if there is none, or the folder may not be looked into."""
    try:
        return path.stat().st_uid
    except OSError:
        return None
