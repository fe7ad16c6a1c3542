"""Describe the outcome of each candidate in a sentence with figures."""

import math

from msgspec.structs import replace

from dynotune.schema.arm import arm_key
from dynotune.schema.comparison import Comparison
from dynotune.schema.setting import Setting
from dynotune.schema.study import PART_ERROR, Candidate, CandidateOutcome, Estimate, OutcomeKind, Study
from dynotune.search import words
from dynotune.search.results import KEEPS_OUT, NO_TIME, are_right
from dynotune.search.running import Search, outcome_of_failure
from dynotune.search.switch import faster_within, switched
from dynotune.text import words as formats

LATE = "the time was too short to decide it"
FAILURES: tuple[OutcomeKind, ...] = ("failed", "out-of-memory", "rejected", "wrong-results")


def outcome_of(work: Search, one: Candidate, proved: list[Setting]) -> CandidateOutcome:
    study, confirmed = work.study, work.study.confirmed
    if one.setting in proved:
        return CandidateOutcome("proved", _proof(study, one))
    if (kept_out := _by_results(study, one)) is not None:
        return kept_out
    if confirmed is not None and one.setting in confirmed.candidate_settings:
        failed = None if confirmed.pairs else work.failure(one.key)
        return _unconfirmed(study, confirmed, one) if failed is None else outcome_of_failure(failed)
    if (known := study.outcomes.get(one.id)) is not None:
        return known
    if failed := work.failure(one.key):
        return outcome_of_failure(failed)
    within = [each for each in faster_within(study) if one.setting in each.candidate_settings]
    if confirmed is not None and confirmed.within and proved and within:
        seen = f"With {words.names(within[-1].candidate_settings)} it is {observed_gain(study, within[-1])}"
        return CandidateOutcome("not-needed", f"{seen}; the recipe is as fast without it.")
    if (found := _other_value(study, one) or _left_out(study, one)) is not None:
        return found
    if (single := _single(study, one)) is not None:
        return _by_gain(study, single)
    if study.selected and one.setting in study.selected:
        return CandidateOutcome("unproved", f"It was to be confirmed, but {LATE}.")
    beside = f"it only matters together with {words.either(one.needs)}" if one.needs else ""
    if beside and all(work.failure(arm_key([id_])) is not None for id_ in one.needs):
        return CandidateOutcome("not-tried", f"{words.capitalised(beside)}, which did not run.")
    if ran := [trial.void for trial in study.trials if one.id in trial.ids]:
        void = next(filter(None, ran), "")
        return CandidateOutcome(
            "unproved", f"Its runs did not count: {void}." if void else f"{words.capitalised(LATE)}."
        )
    if beside:
        return CandidateOutcome("not-tried", f"Not tried: {beside}.")
    return CandidateOutcome("not-tried", "The time ran out before its turn.")


def _by_results(study: Study, one: Candidate) -> CandidateOutcome | None:
    """Return the outcome of a setting that stays out of the recipe because of its results; None for other
    settings."""
    fast = [
        each for each in study.within if each.verdict == "faster" and one.setting in each.candidate_settings
    ]
    outcome = study.outcomes.get(one.id)
    if outcome is None and fast and not are_right(study, [one.setting]):
        outcome = CandidateOutcome("unchecked", f"Its results could not be checked: {NO_TIME}.")
    if outcome is None or outcome.kind not in KEEPS_OUT or not fast:
        return outcome if outcome is not None and outcome.kind in KEEPS_OUT else None
    with_ = "it" if len(fast[-1].candidate_settings) == 1 else words.names(fast[-1].candidate_settings)
    seen = f"With {with_} the command is {observed_gain(study, fast[-1])}"
    return replace(outcome, reason=f"{seen}, but {outcome.reason[:1].lower()}{outcome.reason[1:]}")


def _proof(study: Study, one: Candidate) -> str:
    if (worth := _worth(study, one)) is not None:
        p = f"; p = {worth.p:.2g}, over all settings" if worth.p is not None else ""
        return f"{words.capitalised(_with_it(study, one, worth))} is {words.gained(study, worth)}{p}."
    confirmed = study.confirmed
    assert confirmed is not None
    if len(confirmed.candidate_settings) > 1:
        return "There was no time to measure what each setting adds."
    return f"It is {observed_gain(study, confirmed)}" + (
        "." if confirmed.within else ", which played no part in choosing it."
    )


def _left_out(study: Study, one: Candidate) -> CandidateOutcome | None:
    """Return the outcome of a setting that a round left out; None if no round did."""
    if (worth := _worth(study, one)) is None:
        return None
    adds = f"{_with_it(study, one, worth)} is {words.gained(study, worth)}"
    single, high = _single(study, one), worth.ci[1] if worth.ci is not None else math.inf
    if high < 1:
        return CandidateOutcome("slower", f"It costs time together with the others: {adds}.")
    if single is not None and single.ci is not None and single.ci[0] > 1:
        alone = words.size(study, single.speedup)
        return CandidateOutcome(
            "not-needed", f"It helps alone ({alone}), but not together with the others: {adds}."
        )
    if high <= 1 + study.margin:
        return CandidateOutcome("no-effect", f"It adds nothing measurable: {adds}.")
    if worth.speedup <= 1 + study.margin and study.selected:
        return CandidateOutcome("not-needed", f"The others are as fast without it: {adds}.")
    return CandidateOutcome("unproved", f"What it adds was not proved; it may be {adds}.")


def _other_value(study: Study, one: Candidate) -> CandidateOutcome | None:
    """Return the outcome of a value that replaced another value of its knob; None if it did not."""
    stood_in = any(one.id in found.values for found in study.rounds)
    chosen = next((each for each in study.selected or [] if each.knob == one.setting.knob), one.setting)
    if chosen != one.setting and (stood_in or any(one.setting in found.whole for found in study.rounds)):
        return CandidateOutcome("not-needed", f"{chosen} was faster together with the others.")
    useless = "No value of this knob was useful together with the others."
    return CandidateOutcome("no-effect", useless) if stood_in else None


def _worth(study: Study, one: Candidate) -> Estimate | None:
    """Return the last estimate of the arm with all settings against the arm without the given setting."""
    found = (
        each
        for each in reversed(study.estimates)
        if each.phase == "prune" and (each.against or len(each.ids) < 2)
    )
    return next((each for each in found if one.id in each.ids - each.against_ids), None)


def _with_it(study: Study, one: Candidate, worth: Estimate) -> str:
    """Return the subject of a sentence about the gain of a setting, with settings that were left out with
    it."""
    needing = [other.id for other in study.candidates if one.id in other.needs]
    gone = [id_ for id_ in needing if id_ in worth.ids - worth.against_ids]
    if not gone:
        return "with it the whole"
    return f"with it and {words.names(gone)}, which {'needs' if len(gone) == 1 else 'need'} it, the whole"


def _single(study: Study, candidate: Candidate) -> Estimate | None:
    alone = [one for one in study.estimates if one.arm == candidate.key and not one.against]
    return alone[-1] if alone else switched(study).get(candidate.key)


def _by_gain(study: Study, estimate: Estimate) -> CandidateOutcome:
    gained, high = words.gained(study, estimate), estimate.ci[1] if estimate.ci is not None else math.inf
    if high > 1 + study.margin:
        error = f"at an error of {PART_ERROR:.0%} over all settings"
        return CandidateOutcome("unproved", f"Not decided. It may be {gained}, {error}.")
    return CandidateOutcome("slower" if high < 1 else "no-effect", f"It is {gained}.")


def _unconfirmed(study: Study, confirmed: Comparison, one: Candidate) -> CandidateOutcome:
    kinds: dict[str, OutcomeKind] = {"same": "no-effect", "slower": "slower"}
    kind = kinds.get(str(confirmed.verdict), "unproved")
    if confirmed.speedup is None:
        return CandidateOutcome(kind, f"It was not confirmed: {confirmed.reason or LATE}".rstrip(".") + ".")
    settings, single = confirmed.candidate_settings, _single(study, one)
    with_ = "It" if len(settings) == 1 else f"With {words.names(settings)} it"
    with_ += " may be" if kind == "unproved" else " is"
    where = "" if confirmed.within else " on fresh pairs"
    seen = f"{with_} {observed_gain(study, confirmed)}{where}: {confirmed.reason or kind}"
    if len(settings) > 1 and confirmed.verdict in kinds:
        # A setting that helps, and another that costs as much, make no difference together.
        own = _left_out(study, one) or (None if single is None else _by_gain(study, single))
        if own is not None:
            return own
        kind, seen = (
            "unproved",
            f"{with_} {observed_gain(study, confirmed)}{where}; there was no time to run each alone",
        )
    return CandidateOutcome(kind, seen.rstrip(".") + ".")


def observed_gain(study: Study, confirmed: Comparison) -> str:
    assert confirmed.speedup is not None
    rests_on = formats.basis(confirmed)
    return f"{words.size(study, confirmed.speedup)} ({words.interval(study, confirmed.ci)}, {rests_on})"
