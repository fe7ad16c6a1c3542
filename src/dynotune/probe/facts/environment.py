"""Report the environment variables that PyTorch, CUDA and lower layers read, why a variable matters, and who
set it."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from dynotune.probe.sources.counters import PARENT, stat_fields
from dynotune.schema.data_file import table
from dynotune.schema.facts import Facts, Unknown


class _Variables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file environment.toml."""

    names: dict[str, str]
    prefixes: dict[str, str]


_TABLE = table(__package__, "environment.toml", _Variables)
NAMES, PREFIXES = _TABLE.names, _TABLE.prefixes
"""Names and prefixes of variables, and why they matter. Named variables are always reported, as None if not
set.
"""

# Secrets are removed, because people share files of facts.
SECRET_WORDS = (
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "CREDENTIAL",
    "API_KEY",
    "ACCESS_KEY",
    "PRIVATE_KEY",
    "_AUTH",
)
HIDDEN_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")

UNSEEN = "set by this shell or after"


def facts(env: Mapping[str, str]) -> Facts:
    """Return facts `env.NAME` of the variables above; None for a named variable that is not set.

    `env`: environment that the command will have.
    """
    named: Facts = dict.fromkeys((f"env.{name}" for name in NAMES), None)
    return named | {f"env.{name}": _shown(env[name]) for name in reported(env)}


def _shown(value: str) -> str:
    """Return the value without logins in addresses, and with bytes that are no valid text replaced."""
    text = value.encode(errors="surrogateescape").decode(errors="replace")
    return HIDDEN_LOGIN.sub("…@", text)


def reported(env: Iterable[str]) -> list[str]:
    """Return the variables of `env` that `facts` reports, without secrets, by name."""
    others = (name for name in env if name.startswith(tuple(PREFIXES)))
    told = {name for name in others if not any(word in name.upper() for word in SECRET_WORDS)}
    return sorted(told.union(name for name in env if name in NAMES))


def origins(env: Mapping[str, str], pid: int, root: Path = Path("/")) -> Facts:
    """Return facts `env_from.NAME`: the oldest process above `pid` that started with the variable's present
    value.

    A process's `/proc/PID/environ` has the variables that the process started with, not variables set later.
    A variable that no process started with was set by the shell that started `pid`, or later. `or before`
    means that a process further up may have had the variable too, but belongs to another user.

    `env`: environment that the command will have; variables as for `facts`. `pid`: process that will start
        the command.
    """
    ancestry = _ancestry(pid, root)
    return {f"env_from.{name}": _origin(name, env[name], ancestry) for name in reported(env)}


def _ancestry(pid: int, root: Path) -> list[tuple[str, dict[str, str] | Unknown]]:
    """Return name and initial environment of `pid`, of its parent, and so on; the last one may be
    unreadable."""
    found: list[tuple[str, dict[str, str] | Unknown]] = []
    while pid:
        try:
            stat = stat_fields(f"{root}/proc/{pid}")
        except OSError as error:
            found.append((f"pid {pid}", Unknown(f"process {pid} cannot be read: {error.strerror}")))
            break
        if stat is None:
            break
        first = _first_environment(root / "proc" / str(pid) / "environ")
        found.append((f"pid {pid} ({stat[0]})", first))
        if isinstance(first, Unknown):
            break
        pid = int(stat[1][PARENT])
    return found


def _first_environment(file: Path) -> dict[str, str] | Unknown:
    try:
        # Decode as the interpreter decodes its own environment.
        text = file.read_bytes().decode(errors="surrogateescape")
    except OSError as error:
        return Unknown(f"{file} cannot be read: {error.strerror}")
    pairs = (entry.partition("=") for entry in text.split("\0") if entry)
    return {name: value for name, _, value in pairs}


def _origin(name: str, value: str, ancestry: list[tuple[str, dict[str, str] | Unknown]]) -> str | Unknown:
    if not ancestry:
        return Unknown("the processes above cannot be read")
    oldest = None
    for at, (who, first) in enumerate(ancestry):
        if isinstance(first, Unknown):
            return f"inherited from {oldest} or before" if oldest else first
        if first.get(name) != value:
            break
        # The first process is the caller. If it alone started with a variable, the shell above set the
        # variable.
        oldest = who if at else None
    return f"inherited from {oldest}" if oldest else UNSEEN
