"""Collect all rules by their id, examine an observation with them, and explain their findings and claims."""

import difflib
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from dynotune.doctor import policy
from dynotune.doctor.bounds import at_most, idle_in_doubt
from dynotune.doctor.declaration import Family, Rule, Scope
from dynotune.doctor.observation_view import Missing, ObservationView
from dynotune.doctor.rules import RULES
from dynotune.schema.claims import Claim, Explained, Explanation
from dynotune.schema.diagnosis import Finding, NotKnown
from dynotune.schema.errors import UsageError
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting

_OF_IDLE_TIME: tuple[Family, ...] = ("host", "sync")
"""Families whose findings cost a part of a plain step that the recorded device work does not explain."""
_OF_MACHINE: tuple[Family, ...] = ("machine_gpu", "machine_host", "machine_memory")
"""Families whose findings are conditions of the machine, which follow the program's own findings."""
_RULES = {rule.id: rule for rule in RULES}
MOST_NEAR = 3
SHORTEST_PART = 4
"""Fewest characters of a word that may stand for a longer name: `rmem` for `net.core.rmem_max`."""


def all_rules() -> dict[str, Rule]:
    """Return all rules by their id, ordered by family and then by definition."""
    return _RULES


def examine(view: ObservationView, scope: Scope | None = None) -> tuple[list[Finding], list[NotKnown]]:
    """Ask all rules, or those of one scope; return findings, worst first, and the rules that lack a fact.

    A finding that explains a more general one takes its place and names it in `also`.
    """
    findings: list[Finding] = []
    unknown: list[NotKnown] = []
    for rule in all_rules().values():
        if scope is not None and rule.scope != scope:
            continue
        try:
            found = list(rule(view))
        except Missing as missing:
            unknown.append(NotKnown(rule.id, missing.name, missing.reason))
            continue
        findings += [_surely(view, one) for one in found] if rule.family in _OF_IDLE_TIME else found
    return _causes_first(sorted(_folded(findings), key=_weight)), unknown


def _surely(view: ObservationView, finding: Finding) -> Finding:
    """Lower the severity to that of the certain loss, because the plain window's idle time has an error."""
    doubt = idle_in_doubt(view)
    if isinstance(finding.share, Unknown) or doubt < policy.LEAST_SHARE:
        return finding
    told = f"of the idle time {doubt:.0%} of a step may be work: the device's clock was lowered while steps were timed"
    severity = at_most(finding.severity, policy.severity(finding.share - doubt))
    return msgspec.structs.replace(finding, severity=severity, evidence=[*finding.evidence, told])


def _causes_first(findings: list[Finding]) -> list[Finding]:
    """Move a finding before the more general finding that it partly explains, unless it is a trifle."""
    found: list[Finding] = []
    for finding in findings:
        symptoms = [at for at, general in enumerate(found) if _explains_part(finding, general)]
        found.insert(min(symptoms, default=len(found)), finding)
    return found


def _explains_part(finding: Finding, general: Finding) -> bool:
    if finding.severity == "low" or general.id not in all_rules()[finding.id].explains:
        return False
    if isinstance(general.share, Unknown) or isinstance(finding.share, Unknown):
        return False
    return finding.share >= policy.OF_A_SYMPTOM * general.share


def _folded(findings: Sequence[Finding]) -> list[Finding]:
    """Drop general findings that another finding mostly explains, and name them in its `also`.

    A finding without a setting of its own takes over theirs: workers hide a slow read that only the code can take away.
    """
    explained: dict[str, list[str]] = {}
    for finding in findings:
        order = all_rules()[finding.id].explains
        generals = (general.id for general in findings if general.id in order and _is_most_of(finding, general))
        explained[finding.id] = sorted(generals, key=order.index)
    given = {finding.id: finding.candidates for finding in findings}
    dropped = {general for ids in explained.values() for general in ids}
    return [
        msgspec.structs.replace(
            finding,
            also=explained[finding.id],
            candidates=finding.candidates or _each_once(given[general] for general in explained[finding.id]),
        )
        for finding in findings
        if finding.id not in dropped
    ]


def _each_once(candidates: Iterable[list[Setting]]) -> list[Setting]:
    return list(dict.fromkeys(itertools.chain.from_iterable(candidates)))


def _is_most_of(finding: Finding, general: Finding) -> bool:
    """Tell whether the finding covers most of the general finding's loss, and so can replace it."""
    if isinstance(general.share, Unknown):
        return True
    return not isinstance(finding.share, Unknown) and finding.share >= policy.MOST_OF_A_LOSS * general.share


def _weight(finding: Finding) -> tuple[bool, bool, int, float, str]:
    """Return the sort key: a condition of the machine follows the program's own findings, unless they hardly matter."""
    share = 0.0 if isinstance(finding.share, Unknown) else finding.share
    rule = all_rules().get(finding.id)
    of_machine = rule is not None and rule.family in _OF_MACHINE
    severity = ("high", "medium", "low").index(finding.severity)
    return finding.severity == "low", of_machine, severity, -share, finding.id


def by_name(word: str, claims: Iterable[Claim]) -> list[Claim]:
    """Return the claims that `word` names; if there are none, claims that `word` names in part, or asks about."""
    plain, is_question = _plain(word), " " in word.strip()
    names = [(claim, {_plain(name) for name in [claim.id, *claim.about]}) for claim in claims]
    exact = [claim for claim, own in names if plain in own]
    if exact or len(plain) < SHORTEST_PART:
        return exact
    long = [(claim, {name for name in own if len(name) >= SHORTEST_PART}) for claim, own in names]
    return [claim for claim, own in long if any(plain in name or (is_question and name in plain) for name in own)]


def seen_here(view: ObservationView, claims: Iterable[Claim], finding_ids: Collection[str] = ()) -> Iterator[Claim]:
    """Yield the claims whose traces are on this machine, each with its trace.

    Claims that bear on one of the made findings are left out, except those about real-time kernels.
    """
    for claim in claims:
        is_covered = claim.id != "preempt-rt" and any(id_ in finding_ids for id_ in claim.bears_on)
        traces = {} if is_covered else claim.traces
        if text := "; ".join(filter(None, (_trace(view, *of) for of in traces.items()))):
            yield msgspec.structs.replace(claim, seen=text)


def _plain(text: str) -> str:
    """Drop case, dashes, dots and spaces: people write `rmem-max` and `RMEM_MAX`."""
    return re.sub(r"[\W_]+", "", text).lower()


def _trace(view: ObservationView, name: str, usual: Sequence[int | str]) -> str:
    """Return the trace of a variable that is set or of an unusual kernel setting; "" if there is none.

    `usual`: a setting's usual values (of `tcp_rmem` the largest one), or a variable's values that count; empty for all.
    """
    variable = name.removeprefix("env.")
    match view.fact_or_none(name if variable != name else f"host.{name.rpartition('.')[2].lower()}"):
        case str(text) if variable != name and (not usual or text.lower() in usual):
            return f"{variable}={text}"
        case True if name == "PREEMPT_RT":
            return f"the kernel is built with {name}"
        case [_, _, int(largest), *_] if usual and variable == name and largest > max(map(int, usual)):
            return f"the largest of {name} is {largest} (default up to {usual[0]})"
        case int(value) | float(value) if variable == name and not isinstance(value, bool) and value not in usual:
            return f"{name} is {value:.15g} (default {' or '.join(map(str, usual))})"
    return ""


def explain(word: str, claims: Sequence[Claim]) -> Explanation:
    """Explain a finding by its id, with the claims that bear on it, or explain claims by their common names.

    Raises UsageError: no finding and no claim has this name; the hint lists the nearest names.
    """
    rules = all_rules()
    id_ = word.strip().lower().replace("_", "-")
    speaking = [rule.id for rule in rules.values() if _speaks(rule, word)]
    named = by_name(word, claims)
    if len(speaking) == 1 and not named and word.isalpha():
        id_ = speaking[0]  # a plain word that only one finding mentions
    if id_ in rules:
        bearing = [claim for claim in claims if id_ in claim.bears_on]
        return Explanation(asked=word, finding=explained(rules[id_]), claims=bearing)
    if named:
        return Explanation(asked=word, claims=named)
    names = [*rules, *(name for claim in claims for name in [claim.id, *claim.about])]
    raise UsageError(f"No finding and no advice matches {word!r}.", hint=_nearest(word, names, speaking))


def _speaks(rule: Rule, word: str) -> bool:
    """Tell whether the rule's texts contain each part of `word`, as a whole word or the beginning of a word."""
    parts = re.findall(r"\w+", re.sub(r"\boom\b", "out of memory", word.lower().replace("_", " ")))
    text = f"{rule.id} {rule.title} {rule.sees} {rule.costs}".lower()
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
