"""Provide the values for the templates of a comparison and of a diagnosis."""

from __future__ import annotations

from typing import Any

from dynotune.report.diagnosis import NAMES, bound_in_words, cost, jitter_in_words
from dynotune.report.page import plots, tables
from dynotune.report.study.commands import again
from dynotune.report.study.header import Headline, arrow, machine
from dynotune.report.terminal import arms, objective, warnings
from dynotune.report.trace_parts import place, prose
from dynotune.schema.comparison import Comparison
from dynotune.schema.diagnosis import Diagnosis
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import one_arm
from dynotune.text import words

_LARGE = {"same": "No effect", "undecided": "Undecided", None: "No verdict"}
WORDS = {
    "words": words,
    "prose": prose,
    "place": place,
    "cost": cost,
    "one_arm": one_arm,
    "arrow": arrow,
    "parts": NAMES,
}
"""Functions and filters with which templates format values."""


def of_comparison(found: Comparison) -> dict[str, Any]:
    gained, between = words.gained(found)
    against = words.settings(found.run.settings, separator=" ") if found.run.settings else "the command as it is"
    noun = plots.noun(found)
    told = f"the command failed in the {found.failed.arm}" if found.failed else words.verdict(found)
    verdict = f"{told[0].upper()}{told[1:]}{',' if ':' in told else ''} with "
    verdict += f"{words.settings(found.candidate_settings, separator=' ')} against {against}."
    large = "Failed" if found.failed else _LARGE.get(found.verdict, gained)
    what = "saved" if found.run.objective in ("memory", "energy") else "speed-up"
    rest = f"{what} {between} at {found.confidence:.0%}, on {found.num_pairs} {noun}s" if found.ci else found.reason
    return {
        "command": found.run.command,
        "headline": Headline(large, rest, verdict, found.verdict == "faster"),
        "noun": noun,
        "sides": dict([objective(found), *arms(found.baseline, found.candidate)]),
        "figures": {"pairs": plots.pairs(found)},
        "warnings": warnings(found),
        "again": again(found),
        "machine": machine(found.facts),
    }


def of_diagnosis(found: Diagnosis) -> dict[str, Any]:
    step, none = [("A step", found)], found.bottleneck == "none"
    rest = "nothing that could be avoided holds this command up" if none else "limits this command"
    large = "No bottleneck" if none else found.bottleneck.capitalize()
    bounds = [] if isinstance(found.upper_bounds, Unknown) else found.upper_bounds
    return {
        "command": found.command,
        "headline": Headline(large, rest, prose(found.verdict).plain, not none),
        "figures": {"step": plots.shares(step, "Where a step goes")},
        "step": tables.step(step),
        "bounds": bounds,
        "bound": bound_in_words(bounds),
        "jitter": jitter_in_words(found),
        "warnings": [prose(note).plain for note in found.notes],
        "machine": machine(found.facts),
    }
