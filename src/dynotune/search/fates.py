"""What became of each candidate, and of the whole, in sentences with figures."""

from __future__ import annotations

import itertools
import math

import msgspec

from dynotune.schema.comparison import MAX_PAIRS, Comparison
from dynotune.schema.setting import Setting
from dynotune.schema.study import Candidate, CandidateOutcome, OutcomeKind, Study, without
from dynotune.search import words
from dynotune.search.ablation import Kept, outcome
from dynotune.search.bench import arm
from dynotune.search.budget import worth_trying
from dynotune.search.choosing import are_rivals
from dynotune.search.fit import CONFIDENCE, Gain, counts, value_of
from dynotune.search.model import Model
from dynotune.search.racing import DROP_ERROR, by_itself, fitted, idle, shown, was_in_a_run
from dynotune.search.running import Search, fate_of_failure, gave_nothing
from dynotune.search.switching import told

LATE = "The time was too short to decide it"
# Of a gain worth having, to say how many pairs the noise asks for.
WORTH_HAVING = 1.05
# Of the runs; beyond, the verdict is that the machine was not quiet.
MOST_VOID = 0.5
_POWER_Z = 0.8416  # of 80%


def conclude(search: Search) -> None:
    """Write the fates that are not yet there, the recipe, the noise and the verdict."""
    study = search.study
    confirmed = study.confirmed
    proved = confirmed.candidate_settings if confirmed is not None and confirmed.verdict == "faster" else []
    rounds = [outcome(search, ablation) for ablation in study.ablations]
    fates = {one.id: _fate(search, one, proved, rounds) for one in study.candidates}
    spread = _within(study)
    search.update(outcomes=fates, recipe=list(proved), noise=noise(study), finished=True)
    if spread is not None and (needed := pairs_needed(spread)) > MAX_PAIRS:
        search.warn(
            f"Runs of the command {study.begun} differ by {spread:.1%} (standard deviation): to prove a gain of "
            f"{WORTH_HAVING - 1:.0%} would take about {needed} pairs, and a tune has {MAX_PAIRS}. "
            "A longer window (--steps) or a quieter machine helps."
        )
    search.update(verdict=verdict(search.study, spread))


def noise(study: Study) -> float | None:
    """Standard deviation of the logarithm of a run's value, from the baseline's runs."""
    logs = [math.log(value_of(trial)) for trial in study.trials if trial.arm == "" and counts(trial)]
    if len(logs) < 2:
        return None
    mean = math.fsum(logs) / len(logs)
    return math.sqrt(math.fsum((log - mean) ** 2 for log in logs) / (len(logs) - 1))


def _within(study: Study) -> float | None:
    """The same without slow drift, which pairs cancel: from one run of the baseline to its next."""
    logs = [math.log(value_of(trial)) for trial in study.trials if trial.arm == "" and counts(trial)]
    if len(logs) < 3:
        return None
    return math.sqrt(math.fsum((b - a) ** 2 for a, b in itertools.pairwise(logs)) / (len(logs) - 1) / 2)


def pairs_needed(sd: float) -> int:
    """Pairs that find a gain worth having four times in five, at this standard deviation of a run."""
    from scipy.special import ndtri

    z = float(-ndtri((1 - CONFIDENCE) / 2)) + _POWER_Z
    return 2 * math.ceil((z * math.sqrt(2) * sd / math.log(WORTH_HAVING)) ** 2 / 2)


def verdict(study: Study, spread: float | None) -> str:
    """The whole in one sentence."""
    confirmed = study.confirmed
    if confirmed is not None and confirmed.speedup is not None:
        names = words.names([str(setting) for setting in confirmed.candidate_settings])
        pairs = f"{confirmed.num_pairs} pair{'s' * (confirmed.num_pairs != 1)}"
        seen = f"{words.size(study, confirmed.speedup)} ({words.interval(study, confirmed.ci)}, {pairs})"
        if confirmed.verdict == "faster":
            return f"Proved: with {names} it is {seen}."
        if confirmed.verdict == "undecided":
            return f"Nothing is proved: with {names} it may be {seen}. {confirmed.reason}".rstrip()
        return f"Nothing helps: on fresh pairs, {names} is {seen}."
    tried = [one for one in study.candidates if any(trial.arm == one.id for trial in study.trials)]
    if not study.candidates:
        return "There was nothing to try."
    if not tried and not worth_trying(study):
        return f"Nothing was tried: by the diagnosis, no setting can gain the margin of {study.margin:.0%}."
    if not tried and not any(estimate.phase == "screen" for estimate in study.estimates):
        return "Nothing was tried: the time was too short."
    if study.selected:
        laid_out = [setting for round_ in study.ablations[:1] for setting in [*round_.arm, *round_.added]]
        those = laid_out or study.selected
        ended = confirmed.reason.rstrip(".") if confirmed is not None and not confirmed.pairs else ""
        why = _disturbed(study) or _wrong(study, study.selected) or ended or _failed(study, study.selected) or LATE
        verb = "was" if len(those) == 1 else "were"
        return f"Nothing is proved: {words.names(list(map(str, those)))} {verb} to be proved, but {_lower(why)}."
    kinds = [study.outcomes[one.id].kind for one in study.candidates]
    if all(kind in ("failed", "out-of-memory", "rejected", "wrong-results") for kind in kinds):
        return f"Nothing is proved: {_none_of(study, 'could be measured', 'could not be measured')}."
    if "unproved" in kinds and (disturbed := _disturbed(study)):
        return f"Nothing is proved: {disturbed}."
    orphans = [one for one in study.candidates if _is_orphan(study, one)]
    if num_open := sum(study.outcomes[one.id].kind == "unproved" for one in study.candidates if one not in orphans):
        doubt = f"; runs differ by {spread:.1%}" if spread is not None else ""
        return f"Nothing is proved: {_some_of(study, num_open)} could not be decided in the time{doubt}."
    worth = {one.id for one in worth_trying(study) if not one.needs}
    if untried := [id_ for id_, fate in study.outcomes.items() if fate.kind == "not-tried" and id_ in worth]:
        return f"Nothing is proved: {_some_of(study, len(untried))} could not be tried in the time."
    which = f"; {len(orphans)} of them would only beside others, which do not" if orphans else ""
    no_difference = _none_of(study, "makes a difference", "makes no difference")
    return f"Nothing helps: {no_difference} worth having{which}."


def _none_of(study: Study, does: str, does_not: str) -> str:
    num = len(study.candidates)
    return f"none of the {num} settings {does}" if num > 1 else f"{_the_only_one(study)} {does_not}"


def _some_of(study: Study, num: int) -> str:
    return f"of {len(study.candidates)} settings, {num}" if len(study.candidates) > 1 else _the_only_one(study)


def _the_only_one(study: Study) -> str:
    return f"{study.candidates[0].id}, all there was to try,"


def _is_orphan(study: Study, one: Candidate) -> bool:
    """Undecided not for want of time: it means something only beside others, and those are decided."""
    left = ("unproved", "not-tried")
    if study.outcomes[one.id].kind not in left or not one.needs:
        return False
    return all(fate.kind not in left for id_ in one.needs if (fate := study.outcomes.get(id_)) is not None)


def _wrong(study: Study, winner: list[Setting]) -> str:
    """Said where losses or outputs differ with what was to be confirmed; else empty."""
    wrong = [trial.arm for trial in study.trials if trial.ended == "wrong-results"]
    found = next((key for key in wrong if arm(one for one in winner if str(one) in key).key == key), None)
    return f"losses or outputs differ beyond the tolerance with {found}" if found else ""


def _failed(study: Study, winner: list[Setting]) -> str:
    """Said where what was to be confirmed, or a setting of it, gave no measurement; else empty."""
    keys = [arm(winner).key, *map(str, winner)]
    found = next((trial for trial in study.trials if trial.arm in keys and gave_nothing(trial)), None)
    return _lower(fate_of_failure(found).reason.rstrip(".")) if found is not None else ""


def _disturbed(study: Study) -> str:
    """Said where most runs do not count; else empty."""
    timed = [trial for trial in study.trials if trial.ended == "measured" and trial.block > 0]
    num_void = sum(bool(trial.void) for trial in timed)
    if num_void <= MOST_VOID * len(timed):
        return ""
    return f"{num_void} of {len(timed)} runs were disturbed from outside and do not count"


def _fate(search: Search, one: Candidate, proved: list[Setting], rounds: list[Kept]) -> CandidateOutcome:
    study = search.study
    if one.setting in proved:
        return CandidateOutcome("proved", _proof(study, one, rounds))
    if any(one.id == str(setting) for setting in study.selected or []):
        if study.confirmed is not None and one.setting in study.confirmed.candidate_settings:
            failed = None if study.confirmed.pairs else search.failure(one.id)
            return _unconfirmed(study, study.confirmed) if failed is None else fate_of_failure(failed)
        if found := _dropped(search, one, rounds):
            return found
    if (fate := study.outcomes.get(one.id)) is not None:
        return fate
    if failed := search.failure(one.id):
        return fate_of_failure(failed)
    if not one.needs and not search.piloted(one.id) and one.id not in told(study):
        return CandidateOutcome("not-tried", "The time was up before its turn.")
    model = fitted(search)
    beside, gain = by_itself(model, one)
    if proved and (found := _beside_recipe(search, model, one, proved)):
        return found
    if not gain.num_blocks and one.needs:
        only = f"it means something only beside {words.either(one.needs)}"
        if was_in_a_run(search, one):
            return CandidateOutcome("unproved", f"None of its runs counted: {only}.")
        return CandidateOutcome("not-tried", f"It was in no run: {only}.")
    if not gain.num_blocks and (void := [trial.void for trial in study.trials if trial.arm == one.id and trial.void]):
        none = "None of its runs counted" if len(void) > 1 else "Its run did not count"
        return CandidateOutcome("unproved", f"{none}: {void[-1]}.")
    if not gain.num_blocks:
        return CandidateOutcome("unproved", f"{LATE}: it was run once, unmeasured.")
    fate = _by_gain(search, shown(model, (one.id,), gain))
    rival = next((setting for setting in proved if are_rivals(setting, one.setting)), None)
    if rival is not None and fate.kind == "unproved" and one.setting not in (study.selected or []):
        alone = words.gain(study, shown(model, (one.id,), gain))
        adds = f"{rival} spares the same work, and nothing shows that it adds to that"
        return CandidateOutcome("unproved", f"Alone it is {alone}. {adds}.")
    return fate if beside is None else msgspec.structs.replace(fate, reason=f"Beside {beside}: {_lower(fate.reason)}")


def _beside_recipe(search: Search, model: Model, one: Candidate, proved: list[Setting]) -> CandidateOutcome | None:
    """Of one that helps alone and surely adds nothing to what is proved, as far as one process told of both."""
    there = {str(setting): setting.knob for setting in proved if model.is_told(str(setting))}
    if not there or not model.is_told(one.id):
        return None
    rest = frozenset(id_ for id_, knob in there.items() if knob != one.setting.knob)
    alone, gain = model.gain(frozenset([one.id])), model.gain(rest | {one.id}, frozenset(there))
    if alone.lower(DROP_ERROR) <= 0 or gain.upper(DROP_ERROR) > search.margin:
        return None
    gone = [id_ for id_ in there if id_ not in rest]
    where = f"in the place of {words.names(gone)}" if gone else f"beside {words.names(list(there))}"
    helps, adds = words.size(search.study, alone.speedup), words.gain(search.study, gain)
    return CandidateOutcome("not-needed", f"It helps alone ({helps}), but not {where}: {adds}.")


def _proof(study: Study, one: Candidate, rounds: list[Kept]) -> str:
    for found in reversed(rounds):
        if one.id in found.needed:
            return "Without it, the rest of the recipe does not run."
        if one.id in found.gains and found.stays(one.id):
            gain, with_it = found.gains[one.id], _with_it(study, one, found)
            proof = f"{words.gain(study, gain)}; p = {found.ps[one.id]:.2g}, over all settings."
            return f"{with_it[0].upper()}{with_it[1:]} is {proof}"
    confirmed = study.confirmed
    assert confirmed is not None and confirmed.speedup is not None
    size, between = words.size(study, confirmed.speedup), words.interval(study, confirmed.ci)
    seen = f"{size} ({between}, {confirmed.num_pairs} pairs)"
    if study.confirming == "ablate":
        return f"It is {seen}, in blocks that left out what was beside it."
    return f"It is {seen}, on pairs that played no part in choosing it."


def _dropped(search: Search, one: Candidate, rounds: list[Kept]) -> CandidateOutcome | None:
    """What the ablation says of a setting that it did not let stay."""
    study = search.study
    found = next((found for found in reversed(rounds) if one.id in found.gains or one.id in found.needed), None)
    if found is None:
        return None
    if found.given_up and found.whole is not None:
        whole = words.gain(study, found.whole)
        return CandidateOutcome("unproved", f"With the others it was not better than the baseline: together {whole}.")
    if not found.given_up and found.stays(one.id) and one.needs and not set(one.needs) & _left(rounds, study):
        return CandidateOutcome(
            "unproved", f"It means something only beside {words.either(one.needs)}, which did not stay."
        )
    if found.given_up or found.stays(one.id):
        return None
    gain = found.gains[one.id]
    adds = f"{_with_it(study, one, found)} is {words.gain(study, gain)}; p = {found.ps[one.id]:.2g}"
    beside, alone = by_itself(fitted(search), one)
    helps = "It helps alone" if beside is None else f"It helps beside {beside}"
    if gain.ci is not None and gain.ci[1] < 1:
        return CandidateOutcome("slower", f"It costs beside the others: {adds}.")
    if gain.upper(DROP_ERROR) <= search.margin:
        if alone.lower(DROP_ERROR) > 0:
            return CandidateOutcome(
                "not-needed", f"{helps} ({words.size(study, alone.speedup)}), but not here: {adds}."
            )
        return CandidateOutcome("no-effect", f"It adds nothing that shows: {adds}.")
    if alone.lower(DROP_ERROR) > 0 and gain.log < alone.log / 2:
        return CandidateOutcome("not-needed", f"{helps} ({words.size(study, alone.speedup)}), not shown here: {adds}.")
    return CandidateOutcome("unproved", f"What it adds was not proved: {adds}.")


def _left(rounds: list[Kept], study: Study) -> set[str]:
    """Ids of what the ablation let stay."""
    return {id_ for found in rounds for id_ in {*found.gains, *found.needed} if found.stays(id_)}


def _with_it(study: Study, one: Candidate, found: Kept) -> str:
    """What an ablation's gain is of, at the begin of a clause."""
    top, rest = found.over[one.id]
    gone = [each.id for each in study.candidates if one.id in each.needs and without(top, each.id, ()) is not None]
    kept = [id_ for id_ in gone if without(rest, id_, ()) is None]
    if not kept:
        return "with it the whole"
    return f"with it and {words.names(kept)}, which {'needs' if len(kept) == 1 else 'need'} it, the whole"


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def _unconfirmed(study: Study, confirmed: Comparison) -> CandidateOutcome:
    kinds: dict[str, OutcomeKind] = {"same": "no-effect", "slower": "slower"}
    kind = kinds.get(str(confirmed.verdict), "unproved")
    if confirmed.speedup is None:
        return CandidateOutcome(kind, f"It was not confirmed: {confirmed.reason}")
    size, between = words.size(study, confirmed.speedup), words.interval(study, confirmed.ci)
    seen = f"{size} ({between}, {confirmed.num_pairs} pairs)"
    with_ = "It is" if len(confirmed.candidate_settings) == 1 else f"With {arm(confirmed.candidate_settings).key} it is"
    return CandidateOutcome(kind, f"{with_} {seen} on fresh pairs: {confirmed.reason or kind}".rstrip(".") + ".")


def _by_gain(search: Search, gain: Gain) -> CandidateOutcome:
    if gain.upper(DROP_ERROR) <= search.margin:
        return idle(search, gain)
    return CandidateOutcome("unproved", f"Not decided: {words.gain(search.study, gain)}.")
