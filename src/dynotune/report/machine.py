"""Lay out what held on the machine, which every document of a run keeps."""

from __future__ import annotations

from collections.abc import Mapping

from dynotune.report.blocks import Column, On, Section, Table
from dynotune.schema.facts import Facts, Unknown, Value, known
from dynotune.text import words


def name_of(facts: Facts) -> str:
    """Name the machine's GPUs or processor, its cores and its torch; "" if none of these is known."""
    count = known(facts, "gpu.count")
    name = known(facts, "gpu.name") or known(facts, "host.cpu")
    cores = known(facts, "host.num_cores")
    parts = [
        (f"{count} × " if isinstance(count, int) and count > 1 else "") + str(name) if name else "",
        f"{cores} core{'' if cores == 1 else 's'}" if cores else "",
        f"torch {torch}" if (torch := known(facts, "torch.version")) else "",
    ]
    return words.plain(", ".join(filter(None, parts)))


def section(facts: Mapping[str, Value | Unknown], *before: Table) -> Section:
    """Return the section of a page about the machine; `before`: tables that come first."""
    rows = [(name, _value(value)) for name, value in sorted(facts.items())]
    table = Table(
        "What held on this machine", [Column("Fact", "code"), Column("Value", "code")], rows, folded=True
    )
    return Section("Machine", [*before, table], on=On.PAGE)


def _value(value: Value | Unknown) -> str:
    if isinstance(value, Unknown):
        return f"unknown: {value.reason}"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
