"""Explanations of findings, from their rules, and of claims."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from dynotune.doctor.claims import by_name
from dynotune.doctor.declaration import Rule
from dynotune.doctor.registry import all_rules
from dynotune.schema.claims import Claim
from dynotune.schema.errors import UsageError
from dynotune.schema.explanation import Explained, Explanation

MOST_NEAR = 3


def explain(word: str, claims: Sequence[Claim]) -> Explanation:
    """Explain a finding by its id, with the claims that bear on it; or claims by what people call them.

    Raises UsageError: no finding and no claim has this name; the hint holds the nearest names.
    """
    rules = all_rules()
    id_ = word.strip().lower().replace("_", "-")
    if id_ in rules:
        bearing = [claim for claim in claims if id_ in claim.bears_on]
        return Explanation(asked=word, finding=explained(rules[id_]), claims=bearing)
    if found := by_name(word, claims):
        return Explanation(asked=word, claims=found)
    names = [*rules, *(name for claim in claims for name in [claim.id, *claim.about])]
    raise UsageError(
        f"Nothing is known of {word!r} here.",
        hint=_nearest(word, names, [rule.id for rule in rules.values() if _speaks(rule, word)]),
    )


def _speaks(rule: Rule, word: str) -> bool:
    """Tell whether the rule's texts hold each part of the word, as a word or the beginning of one."""
    parts = re.findall(r"\w+", word.lower().replace("_", " "))
    text = f"{rule.id} {rule.title} {rule.sees} {rule.costs}".lower()
    return bool(parts) and all(re.search(rf"\b{re.escape(part)}", text) for part in parts)


def explained(rule: Rule) -> Explained:
    """Return what a rule declares, as a document holds it."""
    return Explained(
        id=rule.id,
        title=rule.title,
        scope=rule.scope,
        family=rule.family,
        sees=rule.sees,
        costs=rule.costs,
        wrong=rule.wrong_when,
        explains=list(rule.explains),
        settings=list(rule.candidates),
    )


def _nearest(word: str, names: list[str], speaking: list[str]) -> str:
    near = speaking + difflib.get_close_matches(
        word.lower(), {name.lower(): None for name in names}, n=MOST_NEAR, cutoff=0.5
    )
    near += [name for name in names if name not in near and len(word) > 2 and word.lower() in name.lower()]
    listed = "`dynotune explain` lists findings, `dynotune claims list` advice."
    return f"Did you mean {' or '.join(dict.fromkeys(near[:MOST_NEAR]))}? {listed}" if near else listed
