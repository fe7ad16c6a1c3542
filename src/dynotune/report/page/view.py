"""The view of a document: what its page shows, in the order and in the words of the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from dynotune.report.page.plots import Figure
from dynotune.report.page.table import Table
from dynotune.report.study.header import Headline
from dynotune.schema.run import Objective
from dynotune.text import words

Lines = list[tuple[str, list[str]]]
"""Commands to type: what each does, and its words as a shell takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """View of the page of any document. Templates lay a view out and compute nothing.

    Args:
        command: the words of the user's command, as a shell takes them.
        stats: a few figures with their names.
        figures, tables: by name; those without contents are left out.
        commands: the commands that repeat the measurement, or go on from it.
        warnings: sentences on what makes the answer less certain.
    """

    title: str
    command: list[str]
    headline: Headline
    stats: list[tuple[str, str]]
    figures: dict[str, Figure]
    tables: dict[str, Table]
    commands: Lines
    warnings: list[str]

    def values(self) -> dict[str, Any]:
        """Return the value of each field by its name, for a template."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def title_of(command: Sequence[str]) -> str:
    return f"dynotune: {words.plain(' '.join(command), longest=80)}"


def drawn(figures: Mapping[str, Figure | None]) -> dict[str, Figure]:
    """Return the figures that have something to show."""
    return {name: figure for name, figure in figures.items() if figure is not None}


def objective_beside(objective: Objective) -> str:
    """Return the objective, to be named where it is not the usual one; "" if it is."""
    return "" if objective == "throughput" else objective


def percent(share: float) -> str:
    """Write a share of 1 as a percentage without trailing zeros: `1%`, `2.5%`."""
    return f"{share * 100:g}%"
