"""Describe the outcome of each candidate, and of the whole study, in sentences with figures."""

import itertools
import math

from msgspec.structs import replace

from dynotune.measure.comparison import launched
from dynotune.schema.arm import arm_key
from dynotune.schema.comparison import MAX_PAIRS, Comparison
from dynotune.schema.setting import Setting
from dynotune.schema.study import PART_ERROR, Candidate, CandidateOutcome, Estimate, OutcomeKind, Study, Trial
from dynotune.search import words
from dynotune.search.bench import arm
from dynotune.search.bounds import worth_trying
from dynotune.search.fit import CONFIDENCE, counts, value_of
from dynotune.search.parts import parts_of
from dynotune.search.results import KEEPS_OUT, NO_TIME, are_right
from dynotune.search.running import Search, gave_nothing, outcome_of_failure
from dynotune.search.switch import faster_within, fastest, switched
from dynotune.text import words as formats

LATE = "the time was too short to decide it"
# The gain for which the required number of pairs is computed.
WORTH_HAVING = 1.05
# If a larger share of the runs than this is disturbed, the verdict is that the machine was not quiet.
MOST_VOID = 0.5
_POWER_Z = 0.8416  # for a power of 80%
FAILURES: tuple[OutcomeKind, ...] = ("failed", "out-of-memory", "rejected", "wrong-results")


def conclude(work: Search) -> None:
    confirmed = _answer(work)
    if confirmed is not None and confirmed.verdict == "faster":
        # However fast it is: no recipe holds a setting that rounds unless its results were checked.
        confirmed = confirmed if are_right(work.study, confirmed.candidate_settings) else None
    work.update(confirmed=confirmed)
    study = work.study
    proved = confirmed.candidate_settings if confirmed is not None and confirmed.verdict == "faster" else []
    if confirmed is not None and confirmed.within and proved:
        work.warn("Blocks within one process time steps alone: what lies between, such as validating, is left out.")
    outcomes = {one.id: _outcome(work, one, proved) for one in study.candidates}
    noise, spread = _noise(study.trials)
    work.update(outcomes=outcomes, recipe=list(proved), parts=parts_of(study, proved), noise=noise, finished=True)
    work.update(wants_time=_wants_time(work.study))
    if spread is not None and (needed := pairs_needed(spread)) > MAX_PAIRS:
        work.warn(
            f"Runs of the command {study.begun} differ by {spread:.1%} (standard deviation): to prove a gain of "
            f"{WORTH_HAVING - 1:.0%} would take about {needed} pairs, and a tune has {MAX_PAIRS}. "
            "A longer window (--steps) or a quieter machine helps."
        )
    work.update(verdict=" ".join(filter(None, [_verdict(work.study, spread), _kept_out(work.study)])))


def _wants_time(study: Study) -> bool:
    """Return whether more time may prove more: no fresh pairs were judged, and a setting or the speed-up is open."""
    if study.confirmed is not None:
        return study.confirmed.within
    worth = {one.id for one in worth_trying(study)}
    kinds = {outcome.kind for id_, outcome in study.outcomes.items() if outcome.kind != "not-tried" or id_ in worth}
    return not kinds.isdisjoint(("unproved", "unchecked", "not-tried"))


def _answer(work: Search) -> Comparison | None:
    """Return the answer of fresh pairs, or of the blocks before them if these pairs decided nothing."""
    study = work.study
    confirmed = None if study.confirmed is None else launched.stated(study.confirmed)
    if confirmed is not None and (confirmed.verdict not in (None, "undecided") or confirmed.blocks is not None):
        return confirmed
    right = [one for one in faster_within(study) if are_right(study, one.candidate_settings)]
    found = fastest(study, right)
    if found is None and confirmed is None and work.alive():
        found = next((one for one in reversed(study.within) if one.verdict != "faster"), None)
    if found is None or work.failure(arm(found.candidate_settings).key):
        return confirmed
    return launched.proved(found)


def pairs_needed(sd: float) -> int:
    """Return how many pairs detect a relevant gain in 80% of cases; `sd`: standard deviation of a run's log value."""
    from scipy.special import ndtri

    z = float(-ndtri((1 - CONFIDENCE) / 2)) + _POWER_Z
    return 2 * math.ceil((z * math.sqrt(2) * sd / math.log(WORTH_HAVING)) ** 2 / 2)


def _noise(trials: list[Trial]) -> tuple[float | None, float | None]:
    """Return the standard deviation of the logarithm of a run's value, from the baseline's runs.

    The second value, from differences of successive runs, excludes slow drift, which pairs cancel. None with few runs.
    """
    logs = [math.log(value_of(trial)) for trial in trials if trial.arm == "" and counts(trial)]
    df = len(logs) - 1
    if df < 1:
        return None, None
    mean = math.fsum(logs) / len(logs)
    sd = math.sqrt(math.fsum((log - mean) ** 2 for log in logs) / df)
    between = math.sqrt(math.fsum((b - a) ** 2 for a, b in itertools.pairwise(logs)) / df / 2)
    return sd, between if df > 1 else None


# The whole study


def _verdict(study: Study, spread: float | None) -> str:
    confirmed, num = study.confirmed, len(study.candidates)
    if confirmed is not None and confirmed.speedup is not None:
        names, seen = words.names(confirmed.candidate_settings), _seen(study, confirmed)
        if confirmed.verdict == "faster":
            return f"Proved: with {names} it is {seen}."
        if confirmed.verdict == "undecided":
            return f"Nothing is proved: with {names} it may be {seen}. {confirmed.reason}".rstrip()
        whole = set(map(str, confirmed.candidate_settings))
        if any(each.kind == "unproved" for id_, each in study.outcomes.items() if id_ in whole):
            return f"Nothing is proved: with {names} together it is {seen}; what each does alone was not decided."
        return f"Nothing helps: {'' if confirmed.within else 'on fresh pairs, '}{names} is {seen}."
    if not study.candidates:
        return "There was nothing to try."
    only = f"{study.candidates[0].id}, all there was to try,"
    kinds = [study.outcomes[one.id].kind for one in study.candidates]
    if all(kind == "not-tried" for kind in kinds):
        if not worth_trying(study):
            return f"Nothing was tried: by the diagnosis, no setting can gain the margin of {study.margin:.0%}."
        return "Nothing was tried: the time was too short."
    out = {id_ for id_, outcome in study.outcomes.items() if outcome.kind in KEEPS_OUT}
    if out and (len(out) == num or out & set(map(str, study.selected or []))):
        return "Nothing is proved."
    if study.selected:
        ended = confirmed.reason.rstrip(".") if confirmed is not None and not confirmed.pairs else ""
        why = _disturbed(study) or _broken(study, study.selected) or ended[:1].lower() + ended[1:] or LATE
        verb = "was" if len(study.selected) == 1 else "were"
        return f"Nothing is proved: {words.names(study.selected)} {verb} to be proved, but {why}."
    if all(kind in FAILURES for kind in kinds):
        none = f"none of the {num} settings could" if num > 1 else f"{only} could not"
        return f"Nothing is proved: {none} be measured."
    if "unproved" in kinds and (disturbed := _disturbed(study)):
        return f"Nothing is proved: {disturbed}."
    if num_open := kinds.count("unproved"):
        doubt = f"; runs differ by {spread:.1%}" if spread is not None else ""
        some = f"of {num} settings, {num_open}" if num > 1 else only
        return f"Nothing is proved: {some} could not be decided in the time{doubt}."
    worth = {one.id for one in worth_trying(study)}
    if untried := [id_ for id_, outcome in study.outcomes.items() if outcome.kind == "not-tried" and id_ in worth]:
        some = f"of {num} settings, {len(untried)}" if num > 1 else only
        return f"Nothing is proved: {some} could not be tried in the time."
    none = f"none of the {num} settings makes a" if num > 1 else f"{only} makes no"
    return f"Nothing helps: {none} difference worth having."


def _kept_out(study: Study) -> str:
    """Return sentences on the settings that stay out of the recipe because of their results; "" if there are none."""
    ids_by_reason: dict[str, list[str]] = {}
    for id_, outcome in study.outcomes.items():
        if outcome.kind in KEEPS_OUT:
            ids_by_reason.setdefault(outcome.reason, []).append(id_)
    return " ".join(
        f"{words.names(ids)} stay{'s' * (len(ids) == 1)} out of the recipe: {reason[:1].lower()}{reason[1:]}"
        for reason, ids in ids_by_reason.items()
    )


def _broken(study: Study, selected: list[Setting]) -> str:
    """Return why the settings to be confirmed, or one of them, gave no measurement; else ""."""
    keys = {arm(selected).key, *(arm([setting]).key for setting in selected)}
    found = next((trial for trial in study.trials if trial.arm in keys and gave_nothing(trial)), None)
    reason = outcome_of_failure(found).reason.rstrip(".") if found is not None else ""
    return reason[:1].lower() + reason[1:]


def _disturbed(study: Study) -> str:
    """Return a text on how many runs do not count, if most runs do not count; else ""."""
    timed = [trial for trial in study.trials if trial.ended == "measured" and trial.block > 0]
    num_void = sum(bool(trial.void) for trial in timed)
    told = f"{num_void} of {len(timed)} runs were disturbed from outside and do not count"
    return told if num_void > MOST_VOID * len(timed) else ""


# Each candidate


def _outcome(work: Search, one: Candidate, proved: list[Setting]) -> CandidateOutcome:
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
        seen = f"With {words.names(within[-1].candidate_settings)} it is {_seen(study, within[-1])}"
        return CandidateOutcome("not-needed", f"{seen}; the recipe does as well without it.")
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
    return CandidateOutcome("not-tried", "The time was up before its turn.")


def _by_results(study: Study, one: Candidate) -> CandidateOutcome | None:
    """Return the outcome of a setting that stays out of the recipe because of its results; None for other settings."""
    fast = [each for each in study.within if each.verdict == "faster" and one.setting in each.candidate_settings]
    outcome = study.outcomes.get(one.id)
    if outcome is None and fast and not are_right(study, [one.setting]):
        outcome = CandidateOutcome("unchecked", f"Its results could not be checked: {NO_TIME}.")
    if outcome is None or outcome.kind not in KEEPS_OUT or not fast:
        return outcome if outcome is not None and outcome.kind in KEEPS_OUT else None
    with_ = "it" if len(fast[-1].candidate_settings) == 1 else words.names(fast[-1].candidate_settings)
    seen = f"With {with_} the command is {_seen(study, fast[-1])}"
    return replace(outcome, reason=f"{seen}, but {outcome.reason[:1].lower()}{outcome.reason[1:]}")


def _proof(study: Study, one: Candidate) -> str:
    if (worth := _worth(study, one)) is not None:
        p = f"; p = {worth.p:.2g}, over all settings" if worth.p is not None else ""
        return f"{words.capitalised(_with_it(study, one, worth))} is {words.gained(study, worth)}{p}."
    confirmed = study.confirmed
    assert confirmed is not None
    if len(confirmed.candidate_settings) > 1:
        return "There was no time to measure what each setting adds."
    return f"It is {_seen(study, confirmed)}" + ("." if confirmed.within else ", which played no part in choosing it.")


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
        return CandidateOutcome("not-needed", f"It helps alone ({alone}), but not together with the others: {adds}.")
    if high <= 1 + study.margin:
        return CandidateOutcome("no-effect", f"It adds nothing measurable: {adds}.")
    if worth.speedup <= 1 + study.margin and study.selected:
        return CandidateOutcome("not-needed", f"The others are as fast without it: {adds}.")
    return CandidateOutcome("unproved", f"What it adds was not proved; perhaps {adds}.")


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
        each for each in reversed(study.estimates) if each.phase == "prune" and (each.against or len(each.ids) < 2)
    )
    return next((each for each in found if one.id in each.ids - each.against_ids), None)


def _with_it(study: Study, one: Candidate, worth: Estimate) -> str:
    """Return the subject of a sentence about the gain of a setting, with settings that were left out with it."""
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
    seen = f"{with_} {_seen(study, confirmed)}{where}: {confirmed.reason or kind}"
    if len(settings) > 1 and confirmed.verdict in kinds:
        # A setting that helps, and another that costs as much, make no difference together.
        own = _left_out(study, one) or (None if single is None else _by_gain(study, single))
        if own is not None:
            return own
        kind, seen = "unproved", f"{with_} {_seen(study, confirmed)}{where}; there was no time to run each alone"
    return CandidateOutcome(kind, seen.rstrip(".") + ".")


# Wording


def _seen(study: Study, confirmed: Comparison) -> str:
    assert confirmed.speedup is not None
    rests_on = formats.basis(confirmed)
    return f"{words.size(study, confirmed.speedup)} ({words.interval(study, confirmed.ci)}, {rests_on})"
