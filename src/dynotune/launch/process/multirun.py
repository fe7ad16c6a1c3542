"""Recognise a command with which Hydra runs several jobs, one after another or elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from dynotune.schema import untrusted
from dynotune.schema.errors import UsageError

LONGEST_SCRIPT_BYTES = 1 << 20
_IMPORTS_HYDRA = re.compile(rb"^\s*(?:from\s+|import\s+(?:[\w.,\s]*,\s*)?)hydra\b", re.MULTILINE)
_MULTIRUN = ("--multirun", "-m", "hydra.mode=MULTIRUN")


def refuse_multirun(command: Sequence[str], cwd: Path) -> None:
    """Refuse a multirun of Hydra, whose jobs have other settings in one process, or run on other machines.

    Only a command that starts a script which imports Hydra is recognised: `-m` means other things elsewhere.

    Raises UsageError: the command is a multirun.
    """
    script = next((at for at, word in enumerate(command) if word.endswith(".py")), None)
    if script is None or not (words := [word for word in command[script + 1 :] if word in _MULTIRUN]):
        return
    try:
        text = untrusted.piece(cwd / command[script], 0, LONGEST_SCRIPT_BYTES)
    except OSError:
        return
    if _IMPORTS_HYDRA.search(text):
        raise UsageError(
            f"{words[0]} starts several jobs of Hydra, but a measurement needs a command that does the "
            "same in each run.",
            hint=(
                f"Leave {words[0]} out and give each key one value. To compare two values: dynotune compare "
                "arg.lr=0.2 --baseline arg.lr=0.1 -- python train.py lr={lr}"
            ),
        )
