"""Device memory over the recorded steps as one page that stands alone: stacked terms, with zoom and hover."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from dynotune.report.memory import LABELS
from dynotune.report.page.html import _data, _part, _plotly, _policy, _templates, _words
from dynotune.schema import atomic, document
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import Moment, RankMemory
from dynotune.schema.memory_account import MemoryAccount
from dynotune.text import words

__all__ = ["write"]

COLOURS = {
    "weights": "#2e7d32",
    "gradients": "#c9a227",
    "optimizer": "#8e4585",
    "buffers": "#7cb342",
    "inputs": "#00838f",
    "activations": "#1565c0",
    "temporary": "#64b5f6",
    "kept": "#4db6ac",
    "workspaces": "#78909c",
    "unknown": "#c62828",
}
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
            command=_words(words.shell(account.command)),
            ranks=[(f"memory-{at}", _name(rank), _rows(rank)) for at, rank in enumerate(account.ranks)],
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


def _name(rank: RankMemory) -> str:
    return f"GPU {rank.device}" if rank.rank is None else f"Rank {rank.rank}, GPU {rank.device}"


def _rows(rank: RankMemory) -> list[tuple[str, str]]:
    """Terms at the peak, in words."""
    if not isinstance(rank.peak, Moment):
        return []
    return [(LABELS[term.name], words.num_bytes(term.num_bytes)) for term in rank.peak.terms]


def _figure(rank: RankMemory) -> dict[str, Any] | None:
    levels = rank.levels
    if isinstance(levels, Unknown) or not levels.events:
        return None
    modules = [words.plain(module, longest=120) for module in levels.modules]
    return {
        "label": f"Live blocks of {_name(rank)} over the recorded steps",
        "events": levels.events,
        "modules": modules,
        "steps": levels.steps,
        "terms": [
            {"name": LABELS[name], "colour": COLOURS.get(name, "#9e9e9e"), "gib": [size / GIB for size in sizes]}
            for name, sizes in levels.bytes.items()
            if any(sizes) and name in LABELS
        ],
    }
