"""What the page of a comparison tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dynotune.report.page import plots, tables
from dynotune.report.page.tables import NOTHING, Table
from dynotune.report.study.commands import Command, again
from dynotune.report.study.header import Headline, arrow, machine
from dynotune.report.terminal import arms, objective, warnings
from dynotune.schema.comparison import ArmName, Comparison
from dynotune.schema.facts import Unknown
from dynotune.text import words

_LARGE = {"same": "No effect", "undecided": "Undecided"}


def names(found: Comparison, effects: Mapping[str, str]) -> dict[str, Any]:
    """Return what the templates of a comparison name.

    Args:
        effects: of each setting on results, as its knob says.
    """
    made = {
        "pairs": _pairs(found),
        "arms": _arms(found),
        "settings": _settings(found, effects),
        "void": Table("Void", "Pair:number | Why:text", [[str(one.pair), one.reason] for one in found.voided]),
        "set_by": Table("Variables that the program set itself", "Variable:code | Where:code | Held back:text", [
            [f"{one.name}={one.value or '@unset'}", f"{one.file}:{one.line}", "yes" if one.kept else "no"]
            for one in found.set_by
        ]),
        "facts": tables.facts(found.facts),
    }  # fmt: skip
    figure = plots.pairs(found)
    return {
        "found": found,
        "headline": _headline(found),
        "stats": _stats(found),
        "figures": {"pairs": figure} if figure else {},
        "tables": tables.told(made),
        "warnings": warnings(found),
        "command": found.run.command,
        "commands": [Command("Compare again", again(found))],
    }


def _headline(found: Comparison) -> Headline:
    gained, between = words.gained(found)
    against = words.settings(found.run.settings, separator=" ") if found.run.settings else "the command as it is"
    told = words.verdict(found)
    verdict = f"{told[0].upper()}{told[1:]}{',' if ':' in told else ''} with "
    verdict += f"{words.settings(found.candidate_settings, separator=' ')} against {against}."
    large = "Failed" if found.failed else _LARGE.get(found.verdict or "", gained if found.verdict else "No verdict")
    what = "saved" if found.run.objective in ("memory", "energy") else "speed-up"
    rest = f"{what} {between} at {found.confidence:.0%}, on {found.num_pairs} {plots.noun(found)}s"
    return Headline(large, rest if found.ci else found.reason or NOTHING, verdict, found.verdict == "faster")


def _stats(found: Comparison) -> list[tuple[str, str]]:
    label, sides = objective(found)
    void = f", {len(found.voided)} void" if found.voided else ""
    return [
        (label[0].upper() + label[1:], arrow(*sides)),
        (f"{plots.noun(found).capitalize()}s", f"{found.num_pairs} of at most {found.max_pairs}{void}"),
        ("Machine", machine(found.facts)),
    ]


def _arms(found: Comparison) -> Table:
    rows = [
        [label, *sides] for label, sides in dict([objective(found), *arms(found.baseline, found.candidate)]).items()
    ]
    return Table(
        "Medians of the runs of each arm", "Figure:text | Baseline:number | Candidate:number", rows, cards=False
    )


def _pairs(found: Comparison) -> Table:
    sides: dict[ArmName, tuple[str, str]] = {
        "baseline": ("Baseline", "baseline"),
        "candidate": ("Candidate", "candidate"),
    }
    caption = f"Each {plots.noun(found)}, a {found.unit}: the speed-up is the baseline's value over the candidate's"
    return tables.pairs(found, caption, sides, found.run.objective)


def _settings(found: Comparison, effects: Mapping[str, str]) -> Table:
    header = "Setting:code | May change:text | The program has:code | Seen at:text | Answer:fate"
    rows = []
    for setting in found.candidate_settings:
        one = found.readback.get(setting.knob)
        cells = [NOTHING, NOTHING, "– not read back"]
        if one is not None:
            has = f"unknown: {one.found.reason}" if isinstance(one.found, Unknown) else one.found
            answers = {True: "● in effect", False: "× not in effect", None: "□ unverified"}
            cells = [has, one.witness or NOTHING, answers[one.ok]]
        rows.append([str(setting), effects.get(str(setting), NOTHING), *cells])
    return Table("The candidate's settings, read back from the running program", header, rows)
