"""Read what a command tells Hydra: the files that it chooses, and the values that it sets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_WORD = re.compile(r"(\+{0,2}|~)([^\s=+~-][^\s=]*)(?:=(.*))?", re.DOTALL)
_NAME = ("--config-name", "-cn")
_FOLDER = ("--config-path", "-cp")
_OTHERS = ("--config-", "-cd")
_PLAIN = re.compile(r"[\w./-]+")


@dataclass
class Overrides:
    """What the words of a command tell Hydra.

    Args:
        name, folder: of the main file; None where the program's own hold.
        doubt: why it is not known which files are read; "" if it is.
        groups: folder of files to the file that is chosen in it.
        values: keys that are set or taken away, each with the word that does it.
    """

    name: str | None = None
    folder: str | None = None
    doubt: str = ""
    groups: dict[str, str] = field(default_factory=dict)
    values: list[tuple[list[str], str]] = field(default_factory=list)

    def given(self, keys: Sequence[str]) -> str | None:
        """Return the word that sets a key, one above it or one below it; None if none does."""
        for own, word in self.values:
            num = min(len(own), len(keys))
            if own[:num] == list(keys[:num]):
                return word
        return None


def overrides_of(command: Sequence[str]) -> Overrides:
    """Return the options of Hydra that choose the main file, and `doubt` where one is not understood."""
    found = Overrides()
    for word, following in zip(command, [*command[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        value = value if equals else following
        if flag in _NAME and value:
            found.name = value
        elif flag in _FOLDER and value:
            found.folder = value
        elif flag.startswith(_OTHERS) or flag in (*_NAME, *_FOLDER):
            found.doubt = _doubt(word)
    return found


def read_words(found: Overrides, command: Sequence[str], base: Path) -> None:
    """Add the groups and values that a command gives, where `base` is the folder of the main file."""
    for word in command:
        match = _WORD.fullmatch(word)
        if match is None or not (match[3] is not None or match[1] == "~"):
            continue
        group, at, _ = match[2].partition("@")
        if not (base / group).is_dir():
            found.values.append((match[2].split("."), word))
        elif at or match[1] == "~" or not _is_choice(base / group, match[3]):
            found.doubt = _doubt(word)
        else:
            found.groups[group.strip("/")] = match[3].removesuffix(".yaml")


def _is_choice(folder: Path, name: str) -> bool:
    return bool(_PLAIN.fullmatch(name)) and (folder / f"{name.removesuffix('.yaml')}.yaml").is_file()


def _doubt(word: str) -> str:
    return f"the command gives `{word}`, which may choose other files of the configuration"
