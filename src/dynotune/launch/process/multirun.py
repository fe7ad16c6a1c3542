"""Recognise a command with which Hydra runs several jobs, one after another or elsewhere."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from pathlib import Path

from dynotune.launch.process.script import script_of
from dynotune.schema import untrusted
from dynotune.schema.errors import UsageError

LONGEST_SCRIPT_BYTES = 1 << 20
_NAMED = ("--multirun", "hydra.mode=MULTIRUN")
_SHORT = "-m"


def refuse_multirun(command: Sequence[str], cwd: Path) -> None:
    """Refuse a multirun of Hydra, whose jobs have other settings in one process, or run on other machines.

    Only a command that gives Python a script with `hydra.main` is recognised: `-m` means other things
    elsewhere.

    Raises UsageError: the command is a multirun.
    """
    script = script_of(command)
    if not script or not (word := _multirun(command[command.index(script, 1) + 1 :])):
        return
    try:
        text = untrusted.piece(cwd / script, 0, LONGEST_SCRIPT_BYTES)
    except OSError:
        return
    if _has_hydra_main(text):
        raise UsageError(
            f"{word} starts several jobs of Hydra, and a measurement needs one command that repeats.",
            hint=(
                f"Leave {word} out and give each key one value. To compare two values: dynotune compare "
                "arg.lr=0.2 --baseline arg.lr=0.1 -- python train.py lr={lr}"
            ),
        )


def _multirun(arguments: Sequence[str]) -> str:
    """Return the word that asks Hydra for a multirun; "" without one.

    Hydra's `-m` takes no value, so a word behind it is an override, which has a `=` or a `~`, or an option.
    """
    for word, after in zip(arguments, [*arguments, ""][1:], strict=True):
        if word in _NAMED or (word == _SHORT and (not after or "=" in after or after[0] in "-~")):
            return word
    return ""


def _has_hydra_main(text: bytes) -> bool:
    """Return whether the script imports Hydra's `main` or reads it: `@hydra.main(…)`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the script's own strings
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    modules = {"hydra"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {name.asname for name in node.names if name.name == "hydra" and name.asname}
    return any(
        (isinstance(node, ast.ImportFrom) and node.module == "hydra" and _imports_main(node))
        or (
            isinstance(node, ast.Attribute)
            and node.attr == "main"
            and isinstance(node.value, ast.Name)
            and node.value.id in modules
        )
        for node in ast.walk(tree)
    )


def _imports_main(node: ast.ImportFrom) -> bool:
    return any(name.name == "main" for name in node.names)
