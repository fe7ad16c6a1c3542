"""From the races to what is worth proving: what seems to help, and what may help beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from dynotune.schema.setting import Setting
from dynotune.schema.study import Candidate
from dynotune.search import layout
from dynotune.search.bench import BASELINE, Arm, arm
from dynotune.search.budget import bound_log
from dynotune.search.fit import Fit, Gain, counts
from dynotune.search.joining import ARMS_A_BLOCK, warms
from dynotune.search.model import USUAL_RUNS, Model
from dynotune.search.needs import complete, dependants, each_left_out, needed_first, together
from dynotune.search.racing import added, bounded, fitted, taking_part
from dynotune.search.running import Search
from dynotune.search.switching import switched, told

# A screen may let an idle one through, since ablation follows; one that is left out here is lost.
ENTER_P = 0.15
MOST_SETTINGS = 8
MOST_RUNS = 1000
# Runs take a little longer than the last one did.
SLACK = 1.03
# More workers than keep up gain nothing, until other settings shorten the step: then fewer may no longer keep up.
ROOM = "loader.num_workers"
# What one of them spares, the other cannot spare again: in tables of a GPT and a ViT, both are as fast as the better
# one within 3%, and to ask took half of a tune. A diagnosis with the one tells whether the other has anything left.
# The first of the two spares more where something else hides what they do.
SAME_WORK = (("precision.autocast", "matmul.fp32_precision"),)
SURELY_P = 0.025
# Of the logarithm of what a setting adds beside others that leave nothing of the step. Seen alone, or beside what saves
# little, it may show nothing: a fused optimizer gains nothing while the step waits for batches.
HOPE_SD = 0.15


class Chosen(NamedTuple):
    """What is worth proving.

    Args:
        gain: what it adds to the rest, as far as is known.
        is_hoped: nothing shows it yet, but the others make the step shorter, and it was never beside them.
    """

    setting: Setting
    gain: Gain
    is_hoped: bool = False


def whole(search: Search) -> list[Setting]:
    """What seems to belong in, that which adds most first; behind it, what may add something once that is in."""
    return [one.setting for one in chosen(search)]


def chosen(search: Search, model: Model | None = None) -> list[Chosen]:
    """What `whole` returns, with what it adds; nothing where nothing seems to help."""
    model = model or fitted(search)
    sure = contributions(search, model)
    settings = [setting for setting, _ in sure]
    return [*(Chosen(setting, gain) for setting, gain in sure), *(_hoped(search, model, settings) if sure else [])]


def _hoped(search: Search, model: Model, settings: list[Setting]) -> list[Chosen]:
    """Of each other knob, the value that may add most beside `settings` and has never been there."""
    ids = frozenset(map(str, settings))
    ran = _ran_together(search)
    left = math.exp(-max(0.0, model.gain(ids).log))
    found: dict[str, Chosen] = {}
    for one in taking_part(search):
        knob = one.setting.knob
        was_there = any({str(settings[0]), one.id} <= those for those in ran)
        if was_there or one.needs or knob in {setting.knob for setting in settings}:
            continue
        if any(are_rivals(one.setting, setting) for setting in settings):
            continue
        gain = bounded(one, model.gain(ids | {one.id}, ids))
        hope = min(HOPE_SD * (1 - left), _bound_beside(one, left))
        gain = gain._replace(se=math.hypot(gain.se, hope))
        if knob not in found or gain.log > found[knob].gain.log:
            found[knob] = Chosen(one.setting, gain, is_hoped=True)
    order = sorted(found.values(), key=lambda each: -each.gain.log)
    # Each would run on top of the others without the rest of these; what they are worth together, no arm would show.
    warm = [each for each in order if warms(search, arm([each.setting]))]
    return [each for each in order if each not in warm[1:]]


def _bound_beside(one: Candidate, left: float) -> float:
    """What it can gain at most where so much of the step is left; as the logarithm of a ratio."""
    share = -math.expm1(-bound_log(one)) / left
    return -math.log1p(-share) if share < 1 else math.inf


def on_top(search: Search, among: Sequence[Chosen]) -> list[Setting]:
    """Those that are tried on top of the rest: within it, each of its arms would ask for a pilot."""
    return [one.setting for one in among if one.is_hoped and warms(search, arm([one.setting]))]


def contributions(search: Search, model: Model | None = None) -> list[tuple[Setting, Gain]]:
    """What each setting of the best arm adds to the rest of it; one that adds too little or too unsurely is out."""
    model = model or fitted(search)
    if not model.num_runs:
        return []
    most = model.best(taking_part(search), model.mean)
    best = {one.id: one.setting for one in _without_rivals(search, model, _with_room(search, model, most))}
    spare = {one.id: one.setting for one in most if one.id not in best}
    while best:
        gains = {id_: _adds(search, model, id_, best) for id_ in best}
        weakest = min(gains, key=lambda id_: gains[id_].log / max(gains[id_].se, 1e-9))
        enters = gains[weakest].log > search.margin / 2 and gains[weakest].p < ENTER_P
        if enters and len(best) <= MOST_SETTINGS:
            by_gain = sorted(best, key=lambda id_: -gains[id_].log)
            adds = {best[id_]: gains[id_] for id_ in by_gain}
            return [(one, adds[one]) for one in needed_first(list(adds), search.study.candidates)]
        gone = best.pop(weakest)
        # What it took the place of has its turn.
        back = [id_ for id_, one in spare.items() if one.knob == gone.knob or are_rivals(one, gone)]
        best |= {id_: spare.pop(id_) for id_ in back}
        best = {str(one): one for one in complete(list(best.values()), search.study.candidates)}
    return []


def _with_room(search: Search, model: Model, best: Sequence[Candidate]) -> list[Candidate]:
    """The same with the most workers that may gain as much as those, where something else may be beside them."""
    rest = [one for one in best if one.setting.knob != ROOM]
    candidates = taking_part(search)
    more = [one for one in candidates if one.setting.knob == ROOM]
    if len(more) == len(candidates) or search.study.run.objective != "throughput":
        return list(best)

    def may_gain_as_much(other: Candidate, one: Candidate) -> bool:
        lost = _gain_between(model, one, other, rest)
        return lost.log <= search.margin / 2 or lost.p >= ENTER_P

    found = []
    for one in best:
        equal = [other for other in more if one.setting.knob == ROOM and may_gain_as_much(other, one)]
        found.append(max([one, *equal], key=lambda each: float(each.setting.value)) if equal else one)
    return found


def _without_rivals(search: Search, model: Model, best: Sequence[Candidate]) -> list[Candidate]:
    """The same with one of two that spare the same work, unless the other surely adds to it."""
    by_knob = {one.setting.knob: one for one in best}
    found = list(best)
    for more, less in SAME_WORK:
        if not {more, less} <= by_knob.keys():
            continue
        both = by_knob[more], by_knob[less]
        kept, gone = both[::-1] if _gain_between(model, both[1], both[0], []).p < ENTER_P else both
        whole = {one.id: one.setting for one in found}
        ran = any({kept.id, gone.id} <= ids for ids in _ran_together(search))
        if not ran or _adds(search, model, gone.id, whole).p >= SURELY_P:
            found.remove(gone)
    return together(found)


def _gain_between(model: Model, one: Candidate, other: Candidate, beside: Sequence[Candidate]) -> Gain:
    """Of one over the other, beside the rest."""
    rest = frozenset(each.id for each in beside)
    return model.gain(rest | {one.id}, rest | {other.id})


def are_rivals(one: Setting, other: Setting) -> bool:
    """Whether what one spares leaves next to nothing for the other, whichever gains more."""
    return any({one.knob, other.knob} == {*knobs} for knobs in SAME_WORK)


def _ran_together(search: Search) -> list[frozenset[str]]:
    """Ids of the settings that were there together."""
    arms = {arm(joint).key: frozenset(map(str, joint)) for joint in search.study.joint_arms or []}
    ran = [arms[trial.arm] for trial in search.trials("join") if counts(trial) and trial.arm in arms]
    return ran + [ids for key, ids in switched(search.study.candidates).items() if key in told(search.study)]


def more_pays(search: Search, model: Model, num_blocks: int) -> bool:
    """Whether another block of the joint race is likely to find more than the proofs lose by its time.

    One more block is taken to settle the share 1/(blocks so far + 1) of what perfect knowledge would gain.
    """
    among = chosen(search, model)
    settings = [one.setting for one in among]
    candidates = taking_part(search)
    best = [one for one in candidates if one.setting in settings]
    unknown = math.fsum(_worth_knowing(added(model, one, best)) for one in candidates)
    num_runs, laid = runs_left(search, arm(settings)), wholes(search, model, among)
    seen_df = pairs_df(search)
    now, later = (layout.best(laid, model.sd, num, seen_df) for num in (num_runs, num_runs - ARMS_A_BLOCK - 2))
    lost = (now[0] if now is not None else 0.0) - (later[0] if later is not None else 0.0)
    return unknown / (num_blocks + 1) > lost


def pairs_df(search: Search) -> int:
    """Degrees of freedom with which the races tell how pairs spread."""
    df: int = Fit(search.trials("race", "join")).df
    return max(0, df)


def runs_left(search: Search, whole: Arm, *, is_checked: bool = False) -> int:
    """Of the slower of the baseline and the whole: with one setting less, a run takes longer than with all.

    A whole that has not run takes as long to start as what starts last.

    Args:
        is_checked: what will be proved of it was looked at; else that comes first.
    """
    known = [whole] if search.piloted(whole.key) else [arm([setting]) for setting in whole.settings]
    run_s = max(map(search.bench.run_s, (BASELINE, *known)))
    left_s = max(0.0, search.bench.left_s() - (0.0 if is_checked else search.bench.check_s(whole)))
    return int(left_s / (SLACK * run_s)) if run_s > 0 else MOST_RUNS


def strongest(search: Search, settings: Sequence[Setting], model: Model | None = None) -> list[Setting]:
    """The one that surely gains most by itself; not one that means nothing without another, or was only hoped for."""
    model, candidates = model or fitted(search), search.study.candidates
    able = [setting for setting in settings if complete([setting], candidates)]
    sure = [setting for setting, _ in contributions(search, model) if setting in able]

    def at_least(setting: Setting) -> float:
        gain = model.gain(frozenset([str(setting)]))
        return gain.log - gain.se

    return sorted(sure or able, key=at_least, reverse=True)[:1]


def wholes(search: Search, model: Model, among: Sequence[Chosen]) -> list[layout.Whole]:
    """The strongest of these settings alone, then the first two, the first three; each with what its ablation takes."""
    settings, top = [one.setting for one in among], on_top(search, among)
    alone = strongest(search, settings, model)
    found = []
    for num in range(1, len(among) + 1):
        those = among[:num] if num > 1 else [one for one in among if one.setting in alone]
        sure = {str(one.setting): one.setting for one in those if not one.is_hoped}
        hoped = [one.gain for one in those if one.is_hoped]
        adds = [*(_adds(search, model, id_, sure) for id_ in sure), *hoped]
        gain = model.gain(frozenset(sure))
        logs, ses = [gain.log, *(one.log for one in hoped)], [gain.se, *(one.se for one in hoped)]
        gain = gain._replace(log=math.fsum(logs), se=math.hypot(*ses))
        found.append(layout.Whole(gain, adds, _round_of(search, [one.setting for one in those], top)))
    return found


def _round_of(search: Search, settings: list[Setting], top: Sequence[Setting]) -> layout.Round:
    inside = [setting for setting in settings if setting not in top]
    rests = each_left_out(inside, search.study.candidates).values()
    more = [arm([*inside, setting]) for setting in settings if setting in top]
    arms = dict.fromkeys([arm(inside), *map(arm, rests), *more, BASELINE])
    return layout.Round(len(arms), sum(warms(search, one) and not search.piloted(one.key) for one in arms))


def _worth_knowing(gain: Gain) -> float:
    """What a setting gains on average if it is kept just when it helps, beyond what it gains as is known now."""
    z = gain.log / max(gain.se, 1e-9)
    expected = gain.log * 0.5 * math.erfc(-z / math.sqrt(2)) + gain.se * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return expected - max(0.0, gain.log)


def _adds(search: Search, model: Model, id_: str, chosen: dict[str, Setting]) -> Gain:
    """To be given a chance, the usual noise is proof enough that there is no more; to be dropped it is not."""
    whole = frozenset(chosen)
    gone = dependants(id_, chosen.values(), search.study.candidates)
    gain = model.gain(whole, whole - {id_, *map(str, gone)})
    return gain._replace(df=max(gain.df, min(model.df + int(USUAL_RUNS), gain.num_blocks + 1)))
