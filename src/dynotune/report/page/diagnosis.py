"""What the page of a diagnosis tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynotune.report.diagnosis import cost, jitter_in_words
from dynotune.report.page import plots, tables
from dynotune.report.page.tables import Table
from dynotune.report.study.commands import Command
from dynotune.report.study.header import Headline, machine
from dynotune.report.trace_parts import place, prose
from dynotune.report.upper_bounds import NAMES, bound_in_words
from dynotune.schema.diagnosis import Diagnosis, Finding
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import Timing
from dynotune.schema.setting import one_arm
from dynotune.text import words

MOST_FINDINGS, MOST_EVIDENCE, MOST_UNKNOWN = 40, 20, 60


def names(found: Diagnosis) -> dict[str, Any]:
    """Return what the templates of a diagnosis name."""
    sides = [("A step", found)]
    unknown = tables.not_judged(found)
    bounds = [] if isinstance(found.upper_bounds, Unknown) else found.upper_bounds
    made = {
        "step": tables.step(sides),
        "bounds": Table("What each part reaches alone", "Part:text | A step:number", [
            [NAMES[row.part], words.duration(row.step_s, column=True)] for row in bounds
        ]),
        "not_known": Table("Rules that could not judge", "Not known:text | Why:text", unknown[:MOST_UNKNOWN]),
        "facts": tables.facts(found.facts),
    }  # fmt: skip
    figure = plots.shares(sides, "Where a step goes")
    none = found.bottleneck == "none"
    rest = "nothing that could be avoided holds this command up" if none else "limits this command"
    return {
        "found": found,
        "headline": Headline(
            "No bottleneck" if none else found.bottleneck.capitalize(), rest, prose(found.verdict).plain, not none
        ),
        "stats": _stats(found),
        "figures": {"step": figure} if figure else {},
        "tables": tables.told(made),
        "findings": [_finding(one, found.command) for one in found.findings[:MOST_FINDINGS]],
        "more": max(0, len(found.findings) - MOST_FINDINGS),
        "jitter": jitter_in_words(found),
        "bound": bound_in_words(bounds),
        "warnings": [prose(note).plain for note in found.notes],
        "command": found.command,
        "commands": _next(found),
    }


def _stats(found: Diagnosis) -> list[tuple[str, str]]:
    told = [("Machine", machine(found.facts))]
    if isinstance(found.steps, Timing):
        steps = found.steps
        told[:0] = [
            ("A step", f"{words.duration(steps.step_s)}, median {words.duration(steps.median_step_s)}"),
            ("Slowest hundredth of steps", f"from {words.duration(steps.p99_step_s)}"),
            ("Samples/s", words.rate(steps.samples_per_s)),
            ("Device busy", words.share(found.busy_share)),
        ]
    return [(name, value) for name, value in told if value != words.UNKNOWN]


def _finding(one: Finding, command: Sequence[str]) -> dict[str, Any]:
    proofs = [*map(str, one_arm(one.candidates)), "--", *command]
    return {
        "id": one.id,
        "severity": one.severity,
        "cost": cost(one),
        "claim": prose(one.claim).plain,
        "where": place(one.where).plain,
        "evidence": [prose(line).plain for line in one.evidence[:MOST_EVIDENCE]],
        "also": ", ".join(one.also),
        "remedy": prose(one.remedy).plain,
        "predicted": [f"{setting}: {words.predicted(saves)}" for setting, saves in one.predicted.items()],
        "prove": [Command("Prove it", words.shell(["dynotune", "compare", *proofs]))] if one.candidates else [],
        "shell": [Command("For an administrator", [line]) for line in one.commands],
    }


def _next(found: Diagnosis) -> list[Command]:
    lines = [("Diagnose again", ["dynotune", "diagnose", "--", *found.command])]
    if found.findings:
        lines.insert(
            0, ("What the first finding means, and when it is wrong", ["dynotune", "explain", found.findings[0].id])
        )
    if any(one.candidates for one in found.findings):
        lines.insert(0, ("Find and prove what helps", ["dynotune", "tune", "--", *found.command]))
    return [Command(what, words.shell(line)) for what, line in lines]
