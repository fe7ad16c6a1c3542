"""Settings that change what is started: arguments of the command, and the Python that runs it."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dynotune import knobs
from dynotune.schema.errors import UsageError
from dynotune.schema.knob import Argument, Interpreter
from dynotune.schema.setting import Setting

_PYTHON = re.compile(r"python[0-9.]*")


class Variant(NamedTuple):
    command: list[str]
    env: dict[str, str]


def variant(command: Sequence[str], env: Mapping[str, str], settings: Sequence[Setting], cwd: Path) -> Variant:
    """Return the command and its environment under `settings`; what changes neither is left to others.

    Raises UsageError: a placeholder that the command lacks, or an interpreter that is not there or cannot run it.
    """
    found = Variant(list(command), dict(env))
    for setting in settings:
        site = knobs.get(setting.knob).site
        if isinstance(site, Argument):
            found = found._replace(command=_filled(found.command, site.name, str(setting.value)))
        elif isinstance(site, Interpreter):
            found = _run_by(found, cwd / Path(str(setting.value)).expanduser())
    return found


def refuse_missing(candidate: Sequence[Setting], baseline: Sequence[Setting]) -> None:
    """Refuse arms of which one leaves a placeholder open that the other fills. Raises UsageError: it does."""
    named = [{one.knob for one in arm if one.knob.startswith("arg.")} for arm in (candidate, baseline)]
    for arm, missing in (("candidate", named[1] - named[0]), ("baseline", named[0] - named[1])):
        if missing:
            first = min(missing)
            how = f"--baseline {first}=VALUE" if arm == "baseline" else f"{first}=VALUE before the --"
            raise UsageError(f"The {arm} has no value for {{{first.removeprefix('arg.')}}}.", hint=f"Add {how}.")


def _filled(command: list[str], name: str, value: str) -> list[str]:
    placeholder = f"{{{name}}}"
    if not any(placeholder in word for word in command):
        raise UsageError(
            f"The command has no placeholder {placeholder}.",
            hint=f"Write {placeholder} where arg.{name} belongs: python train.py --{name} {placeholder}",
        )
    return [word.replace(placeholder, value) for word in command if value or word != placeholder]


def _run_by(found: Variant, python: Path) -> Variant:
    """Return the same, started by `python`, or by the script beside it that is called as the command is."""
    python = Path(os.path.normpath(python))  # a link is an environment of its own
    if not python.is_file() or not os.access(python, os.X_OK):
        raise UsageError(f"{python} is not a program that can be started.", hint="Write python=/path/to/bin/python.")
    name = Path(found.command[0]).name if found.command else ""
    first = python if _PYTHON.fullmatch(name) else python.parent / name
    if not first.is_file():
        raise UsageError(
            f"{name} cannot be run by {python}: there is no {name} beside it.",
            hint="Install it there, or begin the command with python, as in: python -m MODULE",
        )
    env = {name: value for name, value in found.env.items() if name not in ("PYTHONHOME", "VIRTUAL_ENV")}
    env["PATH"] = os.pathsep.join([str(python.parent), env.get("PATH", os.defpath)])
    return Variant([str(first), *found.command[1:]], env)
