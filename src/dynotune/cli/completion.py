"""Complete options and arguments for the shell: each suggested word comes with a line of help."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

VARIABLE = "_DYNOTUNE_COMPLETE"
MOST_RUNS = 50
Completer = Callable[[str], list[tuple[str, str]]]


def words_asked() -> list[str]:
    """Return the words to complete, without the program's name; typer's shell scripts pass them on."""
    typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    return re.split(r"\s+", typed)[1:]


def words(names: Iterable[str]) -> Completer:
    """Suggest those of `names` that begin with the typed word."""
    return lambda incomplete: _begin(((name, "") for name in names), incomplete)


def settings(incomplete: str) -> list[tuple[str, str]]:
    """Complete the name of a knob, and its value if the catalogue lists the values."""
    from dynotune import knobs

    name, equals, _ = incomplete.partition("=")
    if not equals:
        return _begin(
            ((f"{knob.id}=", knob.doc) for knob in knobs.all_knobs() if not knob.id.endswith(".NAME")), name
        )
    values = next((knob.values for knob in knobs.all_knobs() if knob.id == name), ())
    return _begin(((f"{name}={word}", "") for word in values), incomplete)


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
