"""Device memory over the recorded steps as one page that stands alone: stacked terms, with zoom and hover."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dynotune.report.memory_account import LOOKS, name_of
from dynotune.report.page.html import one_line, put, rendered
from dynotune.report.page.table import Table
from dynotune.schema import document
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
    command = words.shell([account.file] if account.file else account.command)
    ranks = [(f"memory-{at}", name_of(rank), _terms(rank)) for at, rank in enumerate(account.ranks)]
    put(
        path, rendered("memory", figures, command=one_line(command), ranks=ranks), hint="Name another file with --html."
    )


def _terms(rank: RankMemory) -> Table:
    terms = [] if isinstance(rank.peak, Unknown) else rank.peak.terms
    rows = [[LOOKS[term.name].label, words.num_bytes(term.num_bytes)] for term in terms]
    return Table("Terms at the peak", "Term:text | Bytes:number", rows)


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
            {"name": part.label, "colour": part.style, "gib": [size / GIB for size in levels.bytes[name]]}
            for name, part in LOOKS.items()
            if any(levels.bytes.get(name, ()))
        ],
    }
