"""Functions of the program, by the places at which samples and traces saw them."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import ProcessState

FUNCTION = re.compile(r"(?P<file>.+?)(\((?P<line>\d+)\)|(?<=\.py)): (?P<name>.*)", re.DOTALL)
LEAST_OF_A_FUNCTION = 0.1
"""Share of the samples: a function that was seen less claims too little to be worth seconds of a test."""
WHOLE_STEP = 0.98
"""Share of the samples: a function on the stack in more of them holds the loop, or is as good as the step."""
MOST_FUNCTIONS = 2
_NO_NAME = re.compile(r"<(?!locals>)")
_INSTALLED = re.compile(r"/(site|dist)-packages/|/lib/python3|(^|/)torch/")


class FunctionAt(NamedTuple):
    """A function of the program and a line of its code. Two places of one function have the same `key`."""

    file: str
    line: int
    name: str

    @property
    def key(self) -> tuple[str, str]:
        return self.file, self.name


def function_at(place: str) -> FunctionAt | None:
    """Return the function that a place names; None if the place has no line, or is no function of the
    program."""
    match = FUNCTION.fullmatch(place)
    if (
        match is None
        or match["line"] is None
        or _NO_NAME.match(match["name"])
        or _INSTALLED.search(match["file"])
    ):
        return None
    return FunctionAt(match["file"], int(match["line"]), match["name"])


def same_function(one: str, other: str) -> bool:
    """Tell whether two places lie in one function of the program."""
    first, second = function_at(one), function_at(other)
    return first is not None and second is not None and first.key == second.key


def functions_to_delay(findings: Iterable[Finding], process: ProcessState) -> list[str]:
    """Return the places of the functions that claim most of a step: those of loud findings, or else the one
    seen most.

    Functions that hold the loop of the steps are left out, since no step calls them.
    """
    whole = _holding_the_loop(process)
    chosen: dict[tuple[str, str], str] = {}
    for place in _of_findings(findings):
        function = function_at(place)
        if function is not None and function.key not in whole:
            chosen.setdefault(function.key, place)
    seen = (place for key, place in _seen_most(process) if key not in whole)
    return list(chosen.values())[:MOST_FUNCTIONS] or list(seen)[:1]


def _of_findings(findings: Iterable[Finding]) -> list[str]:
    loud = [finding for finding in findings if finding.kind == "speed" and finding.severity != "low"]
    claims = [(finding.share, finding) for finding in loud if not isinstance(finding.share, Unknown)]
    return [finding.where.function for _, finding in sorted(claims, key=lambda claim: -claim[0])]


def _seen_most(process: ProcessState) -> list[tuple[tuple[str, str], str]]:
    """Return key and place of each function that the sampler saw often, the one seen most first."""
    thread = next((thread for thread in process.threads if thread.of_steps), None)
    if thread is None or not thread.num:
        return []
    num = Counter[tuple[str, str]]()
    places: dict[tuple[str, str], str] = {}
    for line in sorted(thread.lines, key=lambda line: -line.num):
        if not line.inside and (function := function_at(line.function)) is not None:
            num[function.key] += line.num
            places.setdefault(function.key, line.function)
    return [(key, places[key]) for key, seen in num.most_common() if seen >= LEAST_OF_A_FUNCTION * thread.num]


def _holding_the_loop(process: ProcessState) -> set[tuple[str, str]]:
    """Return the functions that draw the steps' batches, and those that nearly all samples show on the
    stack."""
    draws = [function_at(loader.place.function) for loader in process.loaders]
    most = max((line.num for line in process.stack), default=0)
    seen = Counter[tuple[str, str]]()
    for line in process.stack:
        if (function := function_at(line.function)) is not None:
            seen[function.key] += line.num
    return {function.key for function in draws if function} | {
        key for key, num in seen.items() if num >= WHOLE_STEP * most
    }
