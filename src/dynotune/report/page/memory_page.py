"""Device memory over the recorded steps as one page that stands alone: stacked terms, with zoom and hover."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from dynotune.report.memory_account import LOOKS, name_of
from dynotune.report.page.html import _data, _part, _plotly, _policy, _templates, _words
from dynotune.schema import atomic, document
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import RankMemory
from dynotune.schema.memory_account import MemoryAccount
from dynotune.text import words

__all__ = ["write"]

GIB = 2**30


def write(path: Path, account: MemoryAccount) -> None:
    """Write the page at `path`, whole or not at all.

    Raises:
        CannotRunHere: the folder cannot be written to, or plotly's script is missing.
    """
    account = document.without_secrets(account)
    figures = {f"memory-{at}": figure for at, rank in enumerate(account.ranks) if (figure := _figure(rank))}
    scripts = [_plotly(), _part("memory.js")] if figures else []
    text = (
        _templates()
        .get_template("memory.html")
        .render(
            command=_words(account.file or words.shell(account.command)),
            ranks=[
                (f"memory-{at}", name_of(rank), [] if isinstance(rank.peak, Unknown) else rank.peak.terms)
                for at, rank in enumerate(account.ranks)
            ],
            labels={name: label for name, (label, _) in LOOKS.items()},
            size=words.num_bytes,
            figures=figures,
            data=Markup(_data(figures)),
            style=Markup(_part("style.css")),
            scripts=[Markup(script) for script in scripts],
            policy=_policy(scripts),
        )
    )
    try:
        atomic.write(path, text.encode())
    except OSError as error:
        raise CannotRunHere(f"Cannot write {path}: {error.strerror}.", hint="Name another file with --html.") from error


def _figure(rank: RankMemory) -> dict[str, Any] | None:
    levels = rank.levels
    if isinstance(levels, Unknown) or not levels.events:
        return None
    return {
        "label": f"Live blocks of {name_of(rank)} over the recorded steps",
        "events": levels.events,
        "modules": [words.plain(module, longest=120) for module in levels.modules],
        "steps": levels.steps,
        "terms": [
            {"name": label, "colour": colour, "gib": [size / GIB for size in levels.bytes[name]]}
            for name, (label, colour) in LOOKS.items()
            if any(levels.bytes.get(name, ()))
        ],
    }
