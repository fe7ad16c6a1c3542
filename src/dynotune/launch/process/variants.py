"""Apply settings that change the command line: values of placeholders, and the Python that runs the
command."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dynotune import knobs
from dynotune.schema.errors import UsageError
from dynotune.schema.home import expanded
from dynotune.schema.knob import Argument, Interpreter
from dynotune.schema.setting import Setting

_PYTHON = re.compile(r"python[0-9.]*")


class Variant(NamedTuple):
    command: list[str]
    env: dict[str, str]


def variant(
    command: Sequence[str], env: Mapping[str, str], settings: Sequence[Setting], cwd: Path
) -> Variant:
    """Return the command and its environment under `settings`; settings that concern neither are ignored.

    Raises UsageError: the command lacks a placeholder, or an interpreter does not exist or cannot run the
    command.
    """
    found = Variant(list(command), dict(env))
    for setting in settings:
        site = knobs.get(setting.knob).site
        if isinstance(site, Argument):
            found = found._replace(command=_filled(found.command, site.name, str(setting.value)))
        elif isinstance(site, Interpreter):
            found = _run_by(found, expanded(Path(str(setting.value)), below=cwd))
    return found


def refuse_missing(candidate: Sequence[Setting], baseline: Sequence[Setting]) -> None:
    """Raise UsageError if only one of candidate and baseline has a value for a placeholder."""
    named = [{one.knob for one in arm if one.knob.startswith("arg.")} for arm in (candidate, baseline)]
    for arm, missing in (("candidate", named[1] - named[0]), ("baseline", named[0] - named[1])):
        if missing:
            first = min(missing)
            how = f"--baseline {first}=VALUE" if arm == "baseline" else f"{first}=VALUE before the --"
            raise UsageError(
                f"The {arm} has no value for {{{first.removeprefix('arg.')}}}.", hint=f"Add {how}."
            )


def _filled(command: list[str], name: str, value: str) -> list[str]:
    placeholder = f"{{{name}}}"
    if not any(placeholder in word for word in command):
        raise UsageError(
            f"The command has no placeholder {placeholder}.",
            hint=f"Write {placeholder} where arg.{name} belongs: python train.py --{name} {placeholder}",
        )
    return [word.replace(placeholder, value) for word in command if value or word != placeholder]


def _run_by(found: Variant, python: Path) -> Variant:
    """Return the command, started by `python` or by the script of the same name in the folder of `python`."""
    python = Path(os.path.normpath(python))  # a link to an interpreter may be a virtual environment
    if not python.is_file() or not os.access(python, os.X_OK):
        raise UsageError(
            f"{python} is not a program that can be started.", hint="Write python=/path/to/bin/python."
        )
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
