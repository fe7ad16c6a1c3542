"""Provide the contents of a study's reports: settings tried, combined gains, and bounds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dynotune.report.blocks import Tone
from dynotune.schema.facts import Unknown
from dynotune.schema.study import Candidate, Estimate, OutcomeKind, Phase, Study, Trial, without
from dynotune.text import words

Kind = OutcomeKind | Literal["open"]
"""The fate of a setting; open if the study has not decided yet."""


class Look(NamedTuple):
    """The way in which a setting's fate is displayed.

    Args:
        tone: the fate's colour.
        mark: the character beside the fate's name, and the sign of its points in a picture.
        meaning: explanation of the picture's points; "" if there are few of them.
    """

    name: str
    tone: Tone
    mark: str
    meaning: str = ""


KINDS: dict[Kind, Look] = {
    "proved": Look("proved", "good", "●", "in the recipe"),
    "not-needed": Look("not needed", "good", "○", "helps alone, not needed"),
    "no-effect": Look("no effect", "note", "■", "no effect"),
    "slower": Look("slower", "bad", "◀", "slower"),
    "unproved": Look("unproved", "wary", "□", "unproved"),
    "wrong-results": Look("wrong results", "bad", "×"),
    "unchecked": Look("results unchecked", "wary", "×"),
    "failed": Look("failed", "bad", "×"),
    "out-of-memory": Look("out of memory", "bad", "×"),
    "rejected": Look("did not take effect", "bad", "×"),
    "not-tried": Look("not tried", "dim", "–"),
    "open": Look("not decided yet", "dim", "◇", "not decided yet"),
}
"""The fates in the order in which reports list them."""

PHASES: dict[Phase, str] = {
    "pilot": "first runs",
    "switch": "within one process",
    "prune": "with and without each",
    "confirm": "confirmation",
}

UNITS: dict[Phase, tuple[str, str]] = {"switch": ("switch", "switches"), "confirm": ("pair", "pairs")}
"""What estimates of these phases rest on, one and several; those of others rest on blocks."""

# Runs in fresh processes before turns within one.
PREFERRED: tuple[Phase, ...] = ("confirm", "prune", "switch")


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate with its results.

    Args:
        alone: the setting alone against the baseline (with the setting that it needs, against that setting);
            None if no phase gave an estimate.
        worth: the bundle with the setting against the bundle without it.
    """

    candidate: Candidate
    kind: Kind
    reason: str
    alone: Estimate | None
    worth: Estimate | None

    @property
    def name(self) -> str:
        """Name the setting, with the setting that it needs, if it means nothing alone."""
        beside = self.alone.against if self.alone is not None else ""
        family = self.candidate.id.partition(".")[0] + "."
        return f"{self.candidate.id} beside {beside.removeprefix(family)}" if beside else self.candidate.id

    @property
    def shown(self) -> Estimate | None:
        """Return the estimate to show if there is room for only one."""
        return self.alone or self.worth

    @property
    def look(self) -> Look:
        return KINDS[self.kind]

    @property
    def word(self) -> str:
        """Return the fate in words; a setting proved only together with others is not called proved by
        itself."""
        ci = self.shown.ci if self.shown is not None else None
        return "in recipe" if self.kind == "proved" and (ci is None or ci[0] <= 1) else self.look.name


@dataclass(frozen=True, slots=True)
class Joint:
    """Settings that were tried together.

    Args:
        parts: product of the speed-ups of each setting alone; None if one is not known.
        word: whether the settings together give more or less than that product.
    """

    ids: list[str]
    estimate: Estimate
    parts: float | None
    word: str


@dataclass(frozen=True, slots=True)
class Saved:
    """A bound, as a share of the baseline's time, beside the measured saving."""

    candidate: Candidate
    bound: float
    speedup: float
    speedup_ci: tuple[float, float] | None
    word: str


def tried(study: Study) -> list[Tried]:
    """Return each candidate, ordered by fate and then by speed-up."""
    rows = [_tried(study, candidate) for candidate in study.candidates]
    order = list(KINDS)
    return sorted(rows, key=lambda row: (order.index(row.kind), -(row.shown.speedup if row.shown else 0.0)))


def ablated(study: Study) -> list[Tried]:
    """Return the settings whose worth within the bundle is known, the largest first."""
    rows = [row for row in tried(study) if row.worth is not None]
    return sorted(rows, key=lambda row: -(row.worth.speedup if row.worth else 0.0))


def sound(estimate: Estimate) -> bool:
    return math.isfinite(estimate.speedup) and estimate.speedup > 0


def interval_of(estimate: Estimate) -> tuple[float, float] | None:
    """Return the interval, if both ends are numbers that can be shown."""
    if estimate.ci is None or not all(math.isfinite(end) and end > 0 for end in estimate.ci):
        return None
    return estimate.ci


def joints(study: Study) -> list[Joint]:
    ids = {candidate.id for candidate in study.candidates}
    alone = {row.candidate.id: row.alone for row in tried(study)}
    found: dict[str, Joint] = {}
    for estimate in study.estimates:
        together = sorted(estimate.ids)
        if not estimate.against and len(together) > 1 and estimate.ids <= ids and sound(estimate):
            found[estimate.arm] = _joint(together, estimate, [alone[id_] for id_ in together])
    return sorted(found.values(), key=lambda row: -row.estimate.speedup)


def saved(study: Study) -> list[Saved]:
    """Show bounds beside measured savings, the largest bound first; settings without either are left out."""
    rows = []
    for row in tried(study):
        bound = row.candidate.bound
        # If a setting was measured together with another one, its gain is not a share of the baseline's time.
        if isinstance(bound, Unknown) or row.alone is None or row.alone.against:
            continue
        ends = interval_of(row.alone)
        above = ends is not None and 1 - 1 / ends[0] > bound
        word = "more than the bound" if above else "within the bound"
        rows.append(Saved(row.candidate, bound, row.alone.speedup, ends, word))
    return sorted(rows, key=lambda row: (-row.bound, -row.speedup))


def counts(trial: Trial) -> bool:
    """Return whether the run's value may be compared."""
    return trial.ended == "measured" and not trial.void and trial.value is not None


def level(study: Study, value: float) -> str:
    """Format a value of the objective: as a rate for throughput."""
    match study.run.objective:
        case "throughput":
            return f"{words.rate(1 / value)} {study.per}s/s"
        case "memory":
            return words.num_bytes(value)
        case "energy":
            return f"{value:.3g} {study.unit or 'J'}"
        case _:
            return words.duration(value)


def amount(study: Study, value: float) -> str:
    """Format the time or the energy of many steps, which is what a training costs."""
    return words.energy(value) if study.run.objective == "energy" else words.hours(value)


def long_time(seconds: float) -> str:
    """Format the time of a budget or search: `45 s`, `2.5 min`, `14 min`, `2 h 5 min`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 595:
        return f"{seconds / 60:.2g} min"
    minutes = round(seconds / 60)
    hours, rest = divmod(minutes, 60)
    return f"{minutes} min" if minutes < 100 else f"{hours} h" + (f" {rest} min" if rest else "")


def _tried(study: Study, candidate: Candidate) -> Tried:
    fate = study.outcomes.get(candidate.id)
    return Tried(
        candidate=candidate,
        kind=fate.kind if fate else "open",
        reason=fate.reason if fate else "",
        alone=_answer_of(study, candidate) or _estimate_alone(study.estimates, candidate),
        worth=_worth(study, candidate),
    )


def _answer_of(study: Study, candidate: Candidate) -> Estimate | None:
    """Return the study's answer as the candidate's estimate, if the answer is of this setting alone: two
    figures of one thing would contradict each other."""
    answer = study.confirmed
    if answer is None or answer.speedup is None or answer.verdict in (None, "undecided") or candidate.needs:
        return None
    if [*answer.candidate_settings] != [candidate.setting]:
        return None
    found = Estimate(
        arm=candidate.key,
        against="",
        phase="switch" if answer.within else "confirm",
        speedup=answer.speedup,
        ci=answer.ci,
        num_blocks=answer.num_pairs,
        confidence=answer.confidence,
    )
    return found if sound(found) else None


def _estimate_alone(estimates: Sequence[Estimate], candidate: Candidate) -> Estimate | None:
    if candidate.needs:
        beside = [frozenset([id_]) for id_ in candidate.needs]
        pairs = [
            one for one in estimates if one.phase == "prune" and one.against_ids in beside and sound(one)
        ]
        return next(
            (one for one in reversed(pairs) if without(one.ids, candidate.id, ()) == one.against_ids), None
        )
    own = [one for one in estimates if one.arm == candidate.key and one.against == "" and sound(one)]
    for phase in PREFERRED:
        if of_phase := [one for one in own if one.phase == phase]:
            return of_phase[-1]
    return None


def _worth(study: Study, candidate: Candidate) -> Estimate | None:
    """Return the last estimate of the bundle with this setting against the bundle without it."""
    found = (one for one in reversed(study.estimates) if one.phase == "prune" and sound(one))
    return next((one for one in found if _is_of(one, study, candidate)), None)


def _is_of(estimate: Estimate, study: Study, candidate: Candidate) -> bool:
    """Return whether the two arms differ by the candidate and the settings that need it."""
    rest = without(estimate.ids, candidate.id, study.candidates)
    # Against the baseline as a whole, not as what was left out: then its p is corrected over several.
    is_whole_of_one = not rest and estimate.arm == candidate.key and estimate.corrected_over == 1
    return rest == estimate.against_ids and not is_whole_of_one


def _joint(together: list[str], estimate: Estimate, parts: Sequence[Estimate | None]) -> Joint:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return Joint(together, estimate, None, "one of its parts was not measured alone")
    product = math.prod(part.speedup for part in known)
    return Joint(together, estimate, product, _word(estimate, known, product))


def _word(estimate: Estimate, parts: Sequence[Estimate], product: float) -> str:
    """Compare the joint gain with the product of the parts, by half widths of the logarithms as if
    independent."""
    halves = [
        math.log(ci[1] / ci[0]) / 2 for one in (estimate, *parts) if (ci := interval_of(one)) is not None
    ]
    if len(halves) < len(parts) + 1:
        return "no interval"
    half = math.sqrt(sum(half * half for half in halves))
    apart = math.log(estimate.speedup / product)
    if abs(apart) <= half:
        return "as its parts"
    return "more than its parts" if apart > 0 else "less than its parts"
