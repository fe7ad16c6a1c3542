"""Conclude a study: its recipe, its verdict in sentences, and whether more time may prove more."""

import itertools
import math

from dynotune.measure.comparison import POWER_Z, launched
from dynotune.schema.arm import BASELINE, arm
from dynotune.schema.comparison import MAX_PAIRS, Comparison
from dynotune.schema.setting import Setting
from dynotune.schema.study import Study, Trial
from dynotune.search import words
from dynotune.search.bounds import worth_trying
from dynotune.search.fit import CONFIDENCE, counts, value_of
from dynotune.search.outcomes import FAILURES, LATE, observed_gain, outcome_of
from dynotune.search.parts import parts_of
from dynotune.search.results import KEEPS_OUT, are_right
from dynotune.search.running import Search, gave_nothing, outcome_of_failure
from dynotune.search.switch import faster_within, fastest, fresh_s

# The gain for which the required number of pairs is computed.
WORTH_HAVING = 1.05
OPEN = ("unproved", "unchecked", "not-tried")
"""Outcomes that more time may change."""
# If a larger share of the runs than this is disturbed, the verdict is that the machine was not quiet.
MOST_VOID = 0.5


def conclude(work: Search) -> None:
    confirmed = _answer(work)
    if confirmed is not None and confirmed.verdict == "faster":
        # However fast it is: no recipe holds a setting that rounds unless its results were checked.
        confirmed = confirmed if are_right(work.study, confirmed.candidate_settings) else None
    work.update(confirmed=confirmed)
    study = work.study
    proved = confirmed.candidate_settings if confirmed is not None and confirmed.verdict == "faster" else []
    if confirmed is not None and confirmed.within and proved:
        work.warn(
            "Blocks within one process time only the steps: what happens between steps, such as "
            "validation, is left out."
        )
    outcomes = {one.id: outcome_of(work, one, proved) for one in study.candidates}
    noise, spread = _noise(study.trials)
    work.update(
        outcomes=outcomes, recipe=list(proved), parts=parts_of(study, proved), noise=noise, finished=True
    )
    wants_time = _wants_time(work.study)
    work.update(wants_time=wants_time, settles_in_s=_settles_in_s(work) if wants_time else None)
    if spread is not None and (needed := pairs_needed(spread)) > MAX_PAIRS:
        work.warn(
            f"Runs of the command {study.begun} differ by {spread:.1%} (standard deviation): to prove a "
            "gain of "
            f"{WORTH_HAVING - 1:.0%} would take about {needed} pairs, and a tune has {MAX_PAIRS}. "
            "A longer window (--steps) or a quieter machine helps."
        )
    work.update(verdict=" ".join(filter(None, [_verdict(work.study, spread), _kept_out(work.study)])))


def _wants_time(study: Study) -> bool:
    """Return whether more time may prove more: no fresh pairs were judged, and a setting or the speed-up is
    open."""
    if study.confirmed is not None:
        return study.confirmed.within
    worth = {one.id for one in worth_trying(study)}
    kinds = {
        outcome.kind for id_, outcome in study.outcomes.items() if outcome.kind != "not-tried" or id_ in worth
    }
    return not kinds.isdisjoint(OPEN)


def _settles_in_s(work: Search) -> float | None:
    """Return the further seconds that fresh pairs of what is open take, or blocks, if these need less; None
    if the noise is such that no number of either is known to be enough.

    A larger budget has to last for both the time that is over and what follows, and a live run has to start
    again.
    """
    study, bench = work.study, work.bench
    open_ = [
        one for one in worth_trying(study) if one.id in study.outcomes and study.outcomes[one.id].kind in OPEN
    ]
    if not open_:
        return None
    needed_s = fresh_s(work, open_)
    answer = study.confirmed
    if answer is not None and answer.verdict == "undecided":
        num, start_s = answer.num_pairs_to_settle, bench.run_s(BASELINE)
        if num is None:
            return None
        if answer.within:
            blocks_s = start_s + num * bench.block_s() + bench.check_s(arm(answer.candidate_settings))
            needed_s = min(needed_s, blocks_s)
        else:
            needed_s = max(needed_s, 2 * num * start_s)
    _, spread = _noise(study.trials)
    if spread is not None and pairs_needed(spread) > MAX_PAIRS:
        return None
    return needed_s if math.isfinite(needed_s) else None


def _answer(work: Search) -> Comparison | None:
    """Return the answer of fresh pairs, or of the blocks before them if these pairs decided nothing."""
    study = work.study
    confirmed = study.confirmed
    if confirmed is not None and (
        confirmed.verdict not in (None, "undecided") or confirmed.blocks is not None
    ):
        return confirmed
    right = [one for one in faster_within(study) if are_right(study, one.candidate_settings)]
    found = fastest(study, right)
    if found is None and confirmed is None and work.alive():
        found = next((one for one in reversed(study.within) if one.verdict != "faster"), None)
    if found is None or work.failure(arm(found.candidate_settings).key):
        return confirmed
    return launched.proved(found)


def pairs_needed(sd: float) -> int:
    """Return how many pairs detect a relevant gain in 80% of cases; `sd`: standard deviation of a run's log
    value."""
    from scipy.special import ndtri

    z = float(-ndtri((1 - CONFIDENCE) / 2)) + POWER_Z
    return 2 * math.ceil((z * math.sqrt(2) * sd / math.log(WORTH_HAVING)) ** 2 / 2)


def _noise(trials: list[Trial]) -> tuple[float | None, float | None]:
    """Return the standard deviation of the logarithm of a run's value, from the baseline's runs.

    The second value, from differences of successive runs, excludes slow drift, which pairs cancel. None with
    few runs.
    """
    logs = [math.log(value_of(trial)) for trial in trials if trial.arm == "" and counts(trial)]
    df = len(logs) - 1
    if df < 1:
        return None, None
    mean = math.fsum(logs) / len(logs)
    sd = math.sqrt(math.fsum((log - mean) ** 2 for log in logs) / df)
    between = math.sqrt(math.fsum((b - a) ** 2 for a, b in itertools.pairwise(logs)) / df / 2)
    return sd, between if df > 1 else None


def _verdict(study: Study, spread: float | None) -> str:
    confirmed, num = study.confirmed, len(study.candidates)
    if confirmed is not None and confirmed.speedup is not None:
        names, seen = words.names(confirmed.candidate_settings), observed_gain(study, confirmed)
        if confirmed.verdict == "faster":
            return f"Proved: with {names} it is {seen}."
        if confirmed.verdict == "undecided":
            return f"Nothing is proved: with {names} it may be {seen}. {confirmed.reason}".rstrip()
        whole = set(map(str, confirmed.candidate_settings))
        if any(each.kind == "unproved" for id_, each in study.outcomes.items() if id_ in whole):
            return (
                f"Nothing is proved: with {names} together it is {seen}; what each does alone "
                "was not decided."
            )
        return f"Nothing helps: {'' if confirmed.within else 'on fresh pairs, '}{names} is {seen}."
    if not study.candidates:
        return "There was nothing to try."
    only = f"{study.candidates[0].id}, all there was to try,"
    kinds = [study.outcomes[one.id].kind for one in study.candidates]
    if all(kind == "not-tried" for kind in kinds):
        if not worth_trying(study):
            return (
                f"Nothing was tried: by the diagnosis, no setting can gain the margin of {study.margin:.0%}."
            )
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
    if untried := [
        id_ for id_, outcome in study.outcomes.items() if outcome.kind == "not-tried" and id_ in worth
    ]:
        some = f"of {num} settings, {len(untried)}" if num > 1 else only
        return f"Nothing is proved: {some} could not be tried in the time."
    none = f"none of the {num} settings makes a" if num > 1 else f"{only} makes no"
    return f"Nothing helps: {none} difference worth having."


def _kept_out(study: Study) -> str:
    """Return sentences on the settings that stay out of the recipe because of their results; "" if there are
    none."""
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
