"""Explain a finding by its id, or claims by their common names."""

import difflib
import re
from collections.abc import Callable, Sequence

from dynotune.doctor.claims import by_name
from dynotune.doctor.declaration import Rule
from dynotune.doctor.registry import all_rules
from dynotune.schema.claims import Claim
from dynotune.schema.errors import UsageError
from dynotune.schema.explanation import Explained, Explanation

MOST_NEAR = 3
MOST_LISTED = 12
_MEANT = {
    "oom": "memory",
    "out of memory": "memory",
    "cuda out of memory": "memory",
    "ddp": "distributeddataparallel",
    "batch size": "batch",
    "slow start": "start",
    "latency": "jitter",
}
"""Words that people type, and the word of the rules' texts that means the same."""


def explain(word: str, claims: Sequence[Claim]) -> Explanation:
    """Explain a finding by its id, with the claims that bear on it, or explain claims by their common names.

    A word that several findings speak of lists these findings.

    Raises UsageError: no finding and no claim has this name or speaks of it; the hint lists names like it.
    """
    rules = all_rules()
    id_ = word.strip().lower().replace("_", "-")
    speaking = [rule.id for rule in sorted(rules.values(), key=_is_aside(word)) if _speaks(rule, word)]
    # "latency" means jitter, and is a part of the names of claims about something else.
    named = by_name(word, claims, in_part=not (speaking and _plain(word) in _MEANT))
    if len(speaking) == 1 and not named and word.isalpha():
        id_ = speaking[0]  # a plain word that only one finding mentions
    if id_ in rules:
        bearing = [claim for claim in claims if id_ in claim.bears_on]
        return Explanation(asked=word, finding=explained(rules[id_]), claims=bearing)
    if named:
        return Explanation(asked=word, claims=named)
    if speaking:
        near = {id_: rules[id_].title for id_ in speaking[:MOST_LISTED]}
        return Explanation(asked=word, near=near)
    names = [*rules, *(name for claim in claims for name in [claim.id, *claim.about])]
    raise UsageError(f"No finding and no advice matches {word!r}.", hint=_nearest(word, names))


def _meant(word: str) -> str:
    """Return the word of the rules' texts that means what was typed."""
    return _MEANT.get(_plain(word), _plain(word))


def _plain(word: str) -> str:
    return word.strip().lower().replace("_", " ")


def _is_aside(word: str) -> Callable[[Rule], tuple[bool, bool]]:
    """Return a key that puts rules first whose family or kind is the word, then those whose id or title has
    it."""
    meant = _meant(word)
    return lambda rule: (
        meant not in (rule.family, rule.kind),
        meant not in f"{rule.id} {rule.family} {rule.title}".lower(),
    )


def _speaks(rule: Rule, word: str) -> bool:
    """Tell whether the rule's texts contain each part of `word`, as a word or the beginning of a word."""
    parts = re.findall(r"\w+", _meant(word))
    text = f"{rule.id} {rule.family} {rule.title} {rule.sees} {rule.costs}".lower()
    return bool(parts) and all(re.search(rf"\b{re.escape(part)}", text) for part in parts)


def explained(rule: Rule) -> Explained:
    """Return a rule's declaration as part of a document."""
    return Explained(
        id=rule.id,
        title=rule.title,
        scope=rule.scope,
        family=rule.family,
        sees=rule.sees,
        costs=rule.costs,
        wrong=rule.wrong_when,
        example=rule.example,
        explains=rule.generals(all_rules()),
        settings=list(rule.candidates),
    )


def _nearest(word: str, names: list[str]) -> str:
    lower = {name.lower(): None for name in names}
    near = difflib.get_close_matches(word.lower(), lower, n=MOST_NEAR, cutoff=0.5)
    near += [name for name in names if name not in near and len(word) > 2 and word.lower() in name.lower()]
    listed = "`dynotune explain` lists findings, `dynotune claims list` advice."
    return f"Did you mean {' or '.join(dict.fromkeys(near[:MOST_NEAR]))}? {listed}" if near else listed
