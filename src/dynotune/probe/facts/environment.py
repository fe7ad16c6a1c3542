"""Environment variables that PyTorch, CUDA and what lies below them read, why they matter, and who set them."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path

from dynotune.probe.sources.counters import PARENT, stat_fields
from dynotune.schema.facts import Facts, Unknown

_TABLE: dict[str, dict[str, str]] = tomllib.loads(files(__package__).joinpath("environment.toml").read_text("utf-8"))
NAMES, PREFIXES = _TABLE["names"], _TABLE["prefixes"]
"""Variables, and how others begin, with why they matter. The former are always reported: None says that one is not set.
"""

# Facts go into files that people share.
SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "API_KEY", "ACCESS_KEY", "PRIVATE_KEY", "_AUTH")
HIDDEN_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")

UNSEEN = "set by this shell or after"


def facts(env: Mapping[str, str]) -> Facts:
    """Return facts `env.NAME` of the variables above; None for a named one that is not set.

    `env`: the environment the command will have.
    """
    named: Facts = dict.fromkeys((f"env.{name}" for name in NAMES), None)
    return named | {f"env.{name}": _shown(env[name]) for name in reported(env)}


def _shown(value: str) -> str:
    """Return the value without a login in an address, and fit for a file: it may hold bytes that are no text."""
    text = value.encode(errors="surrogateescape").decode(errors="replace")
    return HIDDEN_LOGIN.sub("…@", text)


def reported(env: Iterable[str]) -> list[str]:
    """Return the variables of `env` that `facts` tells, secrets left out, by name."""
    others = (name for name in env if name.startswith(tuple(PREFIXES)))
    told = {name for name in others if not any(word in name.upper() for word in SECRET_WORDS)}
    return sorted(told.union(name for name in env if name in NAMES))


def origins(env: Mapping[str, str], pid: int, root: Path = Path("/")) -> Facts:
    """Return facts `env_from.NAME`: the oldest process above `pid` that was started with a variable as it is now.

    A process's `/proc/PID/environ` is what it was given, not what it set afterwards: a variable that none of them was
    given was set by the shell that started `pid`, by its start files, or later. With `or before`, a process above may
    have had it as well, but belongs to another user.

    `env`: the environment the command will have; variables as in `facts`. `pid`: of the process that will start it.
    """
    ancestry = _ancestry(pid, root)
    return {f"env_from.{name}": _origin(name, env[name], ancestry) for name in reported(env)}


def _ancestry(pid: int, root: Path) -> list[tuple[str, dict[str, str] | Unknown]]:
    """Return name and first environment of `pid`, its parent, and so on; the last one may be unreadable."""
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
        # As the interpreter decodes its own.
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
        # The first of them is who asks: given to it alone, a variable was set by the shell above.
        oldest = who if at else None
    return f"inherited from {oldest}" if oldest else UNSEEN
