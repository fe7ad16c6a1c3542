"""Find the script that a command gives to Python, and refuse one that Python could not run."""

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from dynotune.schema.errors import UsageError

NOTEBOOK = ".ipynb"
_PYTHON = re.compile(r"python[0-9.]*")
_LONG_WITH_VALUE = "--check-hash-based-pycs"


def refuse_missing(command: Sequence[str], cwd: Path) -> None:
    """Refuse a script that is not there, or is a notebook.

    Raises UsageError: names similar files of the script's folder, or how a notebook becomes a script.
    """
    name = script_of(command)
    if not name or "{" in name:
        return
    path = cwd / name
    if path.suffix == NOTEBOOK:
        raise UsageError(f"{name} is a notebook, and not a program.", hint=how_to_start_a_notebook(name))
    try:
        if path.exists():
            return
        if path.is_symlink():
            raise UsageError(
                f"{name} is a link to {path.readlink()}, which is not there.", hint="Mend the link."
            )
    except OSError:  # a name that is too long, or a folder that only the command may read: Python says so
        return
    near = difflib.get_close_matches(path.name, _names(path.parent), n=3)
    hint = f"Near names there: {', '.join(near)}." if near else "Check the path."
    raise UsageError(
        f"There is no {name} in {cwd}." if path.parent == cwd else f"There is no {path}.", hint=hint
    )


def script_of(command: Sequence[str]) -> str:
    """Return the script that the command gives to Python; "" if it starts something else, or a module."""
    if not command or not _PYTHON.fullmatch(Path(command[0]).name):
        return ""
    words = iter(command[1:])
    for word in words:
        if word == "--":
            return next(words, "")
        if not word.startswith("-"):
            return word
        if word == "-" or (option := _option(word)) in ("m", "c"):
            return ""
        if option == word:
            next(words, None)
    return ""


def _option(word: str) -> str:
    """Return `m` or `c` if the word starts a module or code; the word itself if the next word is its value;
    else ""."""
    if word.startswith("--"):
        return word if word == _LONG_WITH_VALUE else ""
    for at, letter in enumerate(word[1:], 1):
        if letter in "mc":
            return letter
        if letter in "WX":  # the rest of the word is the value, as in -Wignore
            return "" if word[at + 1 :] else word
    return ""


def how_to_start_a_notebook(name: str) -> str:
    return f"A notebook is not a program: jupyter nbconvert --to script {name}, and start that with Python."


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names alone
    except OSError:
        return []
