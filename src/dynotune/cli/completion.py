"""Complete options and arguments for the shell: each suggested word comes with a line of help."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

VARIABLE = "_DYNOTUNE_COMPLETE"
MOST_RUNS = 50
KINDS = {"bool": ["true", "false"], "int": ["1", "2", "4", "8"]}
"""Values of a knob by its type, where the catalogue lists none."""
Completer = Callable[[str], list[tuple[str, str]]]


def words_asked() -> list[str]:
    """Return the words to complete, without the program's name; typer's shell scripts pass them on.

    bash breaks words at `=`, so that `loader.num_workers=4` comes as three words; they are joined again, and
    the number of the word to complete is corrected.
    """
    typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = re.split(r"\s+", typed)
    if is_broken_at_equals():
        _join_at_equals(words)
    return words[1:]


def is_broken_at_equals() -> bool:
    """Tell whether bash asks for a word behind an `=`."""
    words = os.environ.get("COMP_WORDS", "").split("\n")
    return "=" in words


def _join_at_equals(words: list[str]) -> None:
    """Join the words around each `=` in place, and correct COMP_WORDS and COMP_CWORD for typer."""
    at = int(os.environ.get("COMP_CWORD", "0") or 0)
    while "=" in words:
        index = words.index("=")
        after = words[index + 1] if index + 1 < len(words) and index + 1 <= at else ""
        num_joined = 2 + bool(after or index + 1 <= at)
        words[index - 1 : index - 1 + num_joined] = [f"{words[index - 1]}={after}"]
        at -= num_joined - 1 if index <= at else 0
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = "\n".join(words), str(max(at, 0))


def behind_equals(offered: str) -> str:
    """Return of each word that bash is offered what stands behind `=`, if the word to complete has one."""
    words = os.environ["COMP_WORDS"].split("\n")
    before, equals, _ = words[-1].rpartition("=")
    return "".join(f"{line.removeprefix(before + equals)}\n" for line in offered.splitlines())


def words(names: Iterable[str]) -> Completer:
    """Suggest those of `names` that begin with the typed word."""
    return lambda incomplete: _begin(((name, "") for name in names), incomplete)


def settings(incomplete: str) -> list[tuple[str, str]]:
    """Complete the name of a knob, and its value if the catalogue lists the values."""
    from dynotune import knobs

    name, equals, _ = incomplete.partition("=")
    if not equals:
        ids = [(f"{knob.id}=", knob.doc) for knob in knobs.all_knobs() if not knob.id.endswith(".NAME")]
        return _begin([*ids, *(_variables() if name.startswith("env.") else [])], name)
    known = next((knob for knob in knobs.all_knobs() if knob.id == name), None)
    values = known.values if known is not None else ()
    listed = [_spelled(value) for value in values] or ([] if known is None else KINDS.get(known.type, []))
    return _begin(((f"{name}={word}", "") for word in listed), incomplete)


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _variables() -> list[tuple[str, str]]:
    """Return `env.NAME=` of the variables that are set here, and of those that advice speaks of."""
    from dynotune.claims import all_claims

    compared = [word for claim in all_claims() if claim.compare for word in claim.compare.settings]
    advised = {word.partition("=")[0] for word in compared if word.startswith("env.")}
    here = {f"env.{name}" for name in os.environ if name.isupper()}
    return [(f"{name}=", "an environment variable") for name in sorted(advised | here)]


def explained(incomplete: str) -> list[tuple[str, str]]:
    """Complete the id of a finding or of a claim."""
    from dynotune.claims import all_claims
    from dynotune.doctor import all_rules

    rules = ((rule.id, rule.title) for rule in all_rules().values())
    return _begin([*rules, *((claim.id, "") for claim in all_claims())], incomplete)


def runs(incomplete: str) -> list[tuple[str, str]]:
    """Complete the name of a run, the newest first."""
    return _begin(((path.name, "") for path in _newest()), incomplete)


def run_folders(incomplete: str) -> list[tuple[str, str]]:
    """Complete the folder of a run, the newest first."""
    return _begin(((str(path), "") for path in _newest()), incomplete)


def _newest() -> list[Path]:
    from dynotune.schema import private

    return sorted((private.state_folder() / "runs").glob("*"), reverse=True)[:MOST_RUNS]


def _begin(words: Iterable[tuple[str, str]], incomplete: str) -> list[tuple[str, str]]:
    return [(word, told) for word, told in words if word.startswith(incomplete)]
