"""From the races to the one arm that is worth proving."""

from __future__ import annotations

import math

from dynotune.schema.setting import Setting
from dynotune.search import layout
from dynotune.search.bench import BASELINE, Arm, arm
from dynotune.search.fit import Fit, Gain
from dynotune.search.joining import ARMS_A_BLOCK, warms
from dynotune.search.model import USUAL_RUNS, Model
from dynotune.search.needs import complete, dependants, each_left_out, needed_first
from dynotune.search.racing import added, fitted, taking_part
from dynotune.search.running import Search

# A screen may let an idle one through, since ablation follows; one that is left out here is lost.
ENTER_P = 0.15
MOST_SETTINGS = 8
MOST_RUNS = 1000
# Runs take a little longer than the last one did.
SLACK = 1.03


def whole(search: Search) -> list[Setting]:
    """What seems to belong in, that which adds most first."""
    return [setting for setting, _ in contributions(search)]


def contributions(search: Search, model: Model | None = None) -> list[tuple[Setting, Gain]]:
    """What each setting of the best arm adds to the rest of it; one that adds too little or too unsurely is out."""
    model = model or fitted(search)
    if not model.num_runs:
        return []
    chosen = {one.id: one.setting for one in model.best(taking_part(search), model.mean)}
    while chosen:
        gains = {id_: _adds(search, model, id_, chosen) for id_ in chosen}
        weakest = min(gains, key=lambda id_: gains[id_].log / max(gains[id_].se, 1e-9))
        enters = gains[weakest].log > search.margin / 2 and gains[weakest].p < ENTER_P
        if enters and len(chosen) <= MOST_SETTINGS:
            by_gain = sorted(chosen, key=lambda id_: -gains[id_].log)
            adds = {chosen[id_]: gains[id_] for id_ in by_gain}
            return [(one, adds[one]) for one in needed_first(list(adds), search.study.candidates)]
        del chosen[weakest]
        chosen = {str(one): one for one in complete(list(chosen.values()), search.study.candidates)}
    return []


def more_pays(search: Search, model: Model, num_blocks: int) -> bool:
    """Whether another block of the joint race is likely to find more than the proofs lose by its time.

    One more block is taken to settle the share 1/(blocks so far + 1) of what perfect knowledge would gain.
    """
    found = contributions(search, model)
    settings = [setting for setting, _ in found]
    candidates = taking_part(search)
    best = [one for one in candidates if one.setting in settings]
    unknown = math.fsum(_worth_knowing(added(model, one, best)) for one in candidates)
    adds = [gain for _, gain in found]
    num_runs, rounds, seen_df = runs_left(search, arm(settings)), rounds_of(search, settings), pairs_df(search)
    now, later = (layout.best(adds, model.sd, num, rounds, seen_df) for num in (num_runs, num_runs - ARMS_A_BLOCK - 2))
    lost = (now[0] if now is not None else 0.0) - (later[0] if later is not None else 0.0)
    return unknown / (num_blocks + 1) > lost


def pairs_df(search: Search) -> int:
    """Degrees of freedom with which the races tell how pairs spread."""
    df: int = Fit(search.trials("race", "join")).df
    return max(0, df)


def runs_left(search: Search, whole: Arm) -> int:
    """Of the slower of the baseline and the whole: with one setting less, a run takes longer than with all.

    A whole that has not run takes as long to start as what starts last.
    """
    known = [whole] if search.piloted(whole.key) else [arm([setting]) for setting in whole.settings]
    run_s = max(map(search.bench.run_s, (BASELINE, *known)))
    return int(search.bench.left_s() / (SLACK * run_s)) if run_s > 0 else MOST_RUNS


def rounds_of(search: Search, settings: list[Setting]) -> list[layout.Round]:
    """What an ablation of the first of these settings takes, one of the first two, and so on."""
    return [_round_of(search, settings[:num]) for num in range(1, len(settings) + 1)]


def _round_of(search: Search, settings: list[Setting]) -> layout.Round:
    rests = each_left_out(settings, search.study.candidates).values()
    arms = dict.fromkeys([arm(settings), *map(arm, rests), BASELINE])
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
