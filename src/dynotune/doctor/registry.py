"""The rules by their id, and asking all of them."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

import msgspec

from dynotune.doctor import policy
from dynotune.doctor.observation_view import Missing, Seen
from dynotune.schema.diagnosis import Finding, NotKnown
from dynotune.schema.facts import Unknown

Scope = Literal["machine", "program"]
Judge = Callable[[Seen], Iterable[Finding]]
PARTS = ("Sees", "Costs", "Wrong when")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Args:
        scope: `machine` needs facts alone; `program` needs a command that was watched.
        explains: ids of more general findings of which this one is the reason.
        sees, costs, wrong: the parts of its docstring.
    """

    id: str
    title: str
    scope: Scope
    family: str
    explains: tuple[str, ...]
    sees: str
    costs: str
    wrong: str
    judge: Judge


_rules: dict[str, Rule] = {}


def rule(scope: Scope, *, explains: Sequence[str] = ()) -> Callable[[Judge], Judge]:
    """Register a rule; its id is the function's name with dashes.

    The docstring is a title in one line, then paragraphs that begin `Sees:`, `Costs:` and `Wrong when:`.

    Raises:
        ValueError: the docstring lacks a part, or the id is taken.
    """

    def register(judge: Judge) -> Judge:
        id_ = judge.__name__.replace("_", "-")
        if id_ in _rules:
            raise ValueError(f"two rules are named {id_}")
        title, parts = _parts(id_, inspect.getdoc(judge) or "")
        family = judge.__module__.rpartition(".")[2]
        sees, costs, wrong = (parts[part] for part in PARTS)
        _rules[id_] = Rule(id_, title, scope, family, tuple(explains), sees, costs, wrong, judge)
        return judge

    return register


def all_rules() -> dict[str, Rule]:
    """All rules by their id, in the order of families and of their definition."""
    families = import_module("dynotune.doctor.rules")
    for module in pkgutil.iter_modules(families.__path__):
        import_module(f"{families.__name__}.{module.name}")
    return _rules


def examine(seen: Seen, scope: Scope | None = None) -> tuple[list[Finding], list[NotKnown]]:
    """Ask every rule, or those of one scope; findings worst first.

    A finding that explains a more general one takes its place and names it in `also`.
    """
    found: list[Finding] = []
    unknown: list[NotKnown] = []
    for asked in all_rules().values():
        if scope is not None and asked.scope != scope:
            continue
        try:
            found += asked.judge(seen)
        except Missing as missing:
            unknown.append(NotKnown(asked.id, missing.name, missing.reason))
    return sorted(_folded(found), key=_weight), unknown


def _folded(found: Sequence[Finding]) -> list[Finding]:
    """Without those that another one explains for the most part: they stand in its `also`."""
    explained: dict[str, list[str]] = {}
    for finding in found:
        order = _rules[finding.id].explains
        generals = (general.id for general in found if general.id in order and _is_most_of(finding, general))
        explained[finding.id] = sorted(generals, key=order.index)
    gone = {general for ids in explained.values() for general in ids}
    left = [finding for finding in found if finding.id not in gone]
    return [msgspec.structs.replace(finding, also=explained[finding.id]) for finding in left]


def _is_most_of(finding: Finding, general: Finding) -> bool:
    """A small part of a loss does not speak for the rest of it."""
    if isinstance(general.share, Unknown):
        return True
    return not isinstance(finding.share, Unknown) and finding.share >= policy.MOST_OF_A_LOSS * general.share


def _weight(finding: Finding) -> tuple[int, float, str]:
    share = 0.0 if isinstance(finding.share, Unknown) else finding.share
    return ("high", "medium", "low").index(finding.severity), -share, finding.id


def _parts(id_: str, doc: str) -> tuple[str, dict[str, str]]:
    title, *paragraphs = [re.sub(r"\s+", " ", text).strip() for text in re.split(r"\n\s*\n", doc)]
    parts = {}
    for paragraph in paragraphs:
        name, colon, text = paragraph.partition(":")
        if colon and name in PARTS:
            parts[name] = text.strip()
    if not title or list(parts) != list(PARTS):
        raise ValueError(f"the docstring of {id_} needs a title, then {', '.join(PARTS)}")
    return title, parts
