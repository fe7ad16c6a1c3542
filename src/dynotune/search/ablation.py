"""What does each setting add? Blocks of the whole, the whole without each setting, and the baseline.

Where it is only hoped that a setting helps beside the others, and each arm with it would ask for a pilot, it runs on
top of the whole instead: in one arm.

How many blocks is fixed before the first; only giving up early is allowed, which cannot make a false proof. A setting
stays if the whole without it is worse, one-sided, after Holm's correction over the settings. What they leave open and
looks as if it helps has more blocks, of the whole and it without that, where the time holds them and the proof.

Of two settings that do the same, either may be left out, and both would go. So where what stays explains less than the
whole gains, the strongest of those dropped gets a second round, beside what stays: on its own blocks, and only if none
had more blocks. So a setting has two looks at most, and these spend the 5% together.

What needs a setting is left out with it. So that setting is worth what both are, and of those that stay none stands
alone that cannot: where what needed it goes, it must also be worth its place without that.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import NamedTuple

from msgspec.structs import replace

from dynotune.recipes import ERROR
from dynotune.schema.comparison import MIN_PAIRS
from dynotune.schema.setting import Setting
from dynotune.schema.study import Ablation, CandidateOutcome, Trial
from dynotune.search import layout, words
from dynotune.search.bench import BASELINE, Arm, arm
from dynotune.search.budget import LEAST_PAIRS
from dynotune.search.choosing import ENTER_P, SLACK, chosen, on_top, pairs_df, runs_left, strongest, wholes
from dynotune.search.fit import Fit, Gain, counts, holm
from dynotune.search.joining import warms
from dynotune.search.needs import complete, dependants, each_left_out
from dynotune.search.racing import by_itself, fitted
from dynotune.search.running import OutOfTime, Search, estimate_of, fate_of_failure

# The whole surely helps, and more by this many standard errors than what stays explains.
HELPS_P = 0.1
HIDDEN_SE = 1.3
# Of a second round: what hid in the first may gain many times what runs differ by.
LEAST_BLOCKS = 2
# One-sided, of what the planned blocks left open: what looks no better is not worth more of them.
OPEN_P = 0.25


class Kept(NamedTuple):
    """What one round says of each setting left out.

    Args:
        gains: of the whole over the whole without it; absent where that gave no value.
        over: keys of the two arms that each gain is of.
        ps: the same, after corrections by Holm and for the looks: a setting stays at `writing.ERROR` or less.
        needed: without it the rest does not run.
        whole: of the whole over the baseline.
        given_up: the whole was no better than the baseline at the first look.
    """

    gains: dict[str, Gain]
    over: dict[str, tuple[str, str]]
    ps: dict[str, float]
    needed: set[str]
    whole: Gain | None
    given_up: bool

    def stays(self, id_: str) -> bool:
        return not self.given_up and (id_ in self.needed or self.ps.get(id_, 1.0) <= ERROR)


def ablate(search: Search, settings: list[Setting]) -> list[Setting]:
    """What of `settings`, the strongest first, is worth confirming. One setting alone is: its proof is to come.

    Where the time ends inside a round, its whole blocks stand: how many they are says nothing of what they say. Where
    there are too few, the strongest alone may still be proved.
    """
    first = next((one for one in reversed(search.study.ablations) if _leaves_out_all(one)), None)
    if first is None:
        first = _begin(search, settings)
    while first is not None:
        if not _runs_in_time(search, first):
            return strongest(search, first.arm)
        failed = _failure(search, first)
        if failed is None:
            break
        settings = complete([*first.arm[:-1], *first.added], search.study.candidates)
        search.warn(f"{arm(first.arm).key} fail together ({failed.detail or failed.ended}): tried without the weakest.")
        first = _begin(search, settings)
    if first is None:
        return strongest(search, settings)
    first = _gone_on_with(search, first)
    found = outcome(search, first)
    search.settle(_failed_on_top(search, first))
    kept = _stay(search, first, found)
    # A setting has two looks: one that had more blocks has no second round.
    if kept and (first.num_extra_blocks or not _one_is_hidden(search, first, found, kept)):
        return kept
    try:
        return _one_more(search, first, found, kept)
    except OutOfTime:
        return kept


def _failed_on_top(search: Search, first: Ablation) -> dict[str, CandidateOutcome]:
    """The end of what ran alone, but not beside the whole."""
    failed = {id_: search.failure(one.key) for id_, one in _on_top(first).items()}
    fates = {id_: fate_of_failure(trial) for id_, trial in failed.items() if trial is not None}
    whole = arm(first.arm).key
    return {id_: replace(fate, reason=f"On top of {whole}: {fate.reason}") for id_, fate in fates.items()}


def _leaves_out_all(ablation: Ablation) -> bool:
    return len(ablation.dropped) == len(ablation.arm)


def provable(search: Search, settings: list[Setting]) -> list[Setting]:
    """Those that the time left is best spent on proving, the strongest first."""
    planned = _planned(search, settings, is_checked=False)
    return strongest(search, settings) if planned is None else settings[: planned[0].num_settings]


def _planned(
    search: Search, settings: list[Setting], *, is_checked: bool
) -> tuple[layout.Layout, list[Setting]] | None:
    """With those that are tried on top; None where one setting is all that is worth proving."""
    among = [one for one in chosen(search) if one.setting in settings]
    top = on_top(search, among)
    num_runs = runs_left(search, arm(settings), is_checked=is_checked)
    model = fitted(search)
    found = layout.best(wholes(search, model, among), model.sd, num_runs, pairs_df(search))
    return None if found is None or not found[1].num_blocks else (found[1], top)


def _begin(search: Search, settings: list[Setting]) -> Ablation | None:
    """Lay out a round and write it down; None where one setting is all that is worth proving."""
    planned = _planned(search, settings, is_checked=True)
    if planned is None:
        return None
    settings = settings[: planned[0].num_settings]
    top = [setting for setting in settings if setting in planned[1]]
    whole = [setting for setting in settings if setting not in top]
    first_block = 1 + max([0, *(trial.block for trial in search.trials("ablate"))])
    ablation = Ablation(whole, list(map(str, whole)), first_block, planned[0].num_blocks, top)
    search.update(ablations=[*search.study.ablations, ablation])
    several = "Each of " if len(whole) > 1 else ""
    turns = f"{several}{words.names(ablation.dropped)} is left out{' in turn' if several else ''}"
    turns += f", and {words.names(list(map(str, top)))} put on top" if top else ""
    search.watcher.say(f"{turns}, in {ablation.num_blocks} blocks.")
    return ablation


def _gone_on_with(search: Search, ablation: Ablation) -> Ablation:
    """The round with more blocks of what its own left open, where these and the fewest pairs fit into the time.

    They are judged together with the first ones. A setting's two looks spend 5% together, and what stayed after the
    first stays.
    """
    if not ablation.num_extra_blocks:
        found = outcome(search, ablation)
        better = [id_ for id_, gain in found.gains.items() if gain.log > search.margin and gain.p < OPEN_P]
        open_ = [id_ for id_ in better if not found.stays(id_)]
        kept = _stay(search, ablation, found)
        if found.given_up or not open_ or _one_is_hidden(search, ablation, found, kept):
            return ablation
        before, ablation = ablation, replace(ablation, undecided=open_)
        ablation = replace(ablation, num_extra_blocks=_affordable_more(search, ablation, found))
        if not ablation.num_extra_blocks:
            return before
        search.update(ablations=[ablation if one == before else one for one in search.study.ablations])
        search.watcher.say(f"Open: {words.names(open_)}, in {ablation.num_extra_blocks} more blocks.")
    begin = _end(replace(ablation, num_extra_blocks=0))
    with contextlib.suppress(OutOfTime):
        for number in range(begin, begin + ablation.num_extra_blocks):
            search.run_block(_open_arms(search, ablation), "ablate", number)
            _write_down(search, ablation)
            if search.failure(arm(ablation.arm).key):
                break
    return ablation


def _failure(search: Search, ablation: Ablation) -> Trial | None:
    """Of the whole, in these blocks or before them."""
    failed = search.failure(arm(ablation.arm).key)
    return None if failed is None or (failed.phase == "ablate" and failed.block >= _end(ablation)) else failed


def _end(ablation: Ablation) -> int:
    """The block after its last."""
    return ablation.first_block + ablation.num_blocks + ablation.num_extra_blocks


def _open_arms(search: Search, ablation: Ablation) -> list[Arm]:
    """The whole, and both arms that tell of each: of what loses its dependants, one is without these."""
    over = outcome(search, replace(ablation, num_extra_blocks=0)).over
    keys = {key for id_ in ablation.undecided for key in over[id_]}
    return [one for one in _arms(search, ablation) if one.key in keys | {arm(ablation.arm).key}]


def _affordable_more(search: Search, ablation: Ablation, found: Kept) -> int:
    """Blocks of what is open that leave time for pairs which as good as surely prove what stays anyway."""
    kept = [one for one in ablation.arm if found.stays(str(one))] or ablation.arm
    log = min(_explained(search, ablation, found, kept), found.whole.log if found.whole else 0.0)
    run_s, fit = search.bench.run_s, Fit(search.trials("ablate"))
    left_s = search.bench.left_s() / SLACK - search.bench.check_s(arm(kept))
    block_s = math.fsum(map(run_s, _open_arms(search, ablation)))
    if fit.sd is None:
        return 0
    # What stays in the end may be an arm that never ran, and is planned for as the baseline.
    may_stay = [one for one in [*ablation.arm, *ablation.added] if str(one) in ablation.undecided]
    ends = itertools.product(*([None, one] for one in may_stay))
    proved = [arm([*kept, *filter(None, end)]) for end in ends]
    pair_s = run_s(BASELINE) + max(map(run_s, [*proved, arm(ablation.arm)]))
    for num_pairs in (LEAST_PAIRS, MIN_PAIRS):
        num = int((left_s - num_pairs * pair_s) / block_s) if block_s else 0
        if num > 0 and layout.is_sure(log, fit.sd, num_pairs, fit.df):
            return min(num, ablation.num_blocks + 2)
    return 0


def outcome(search: Search, ablation: Ablation) -> Kept:
    """Of one round, from its trials alone; of its planned blocks, where the whole failed in further ones."""
    first = _outcome(search, replace(ablation, num_extra_blocks=0))
    if not ablation.num_extra_blocks or (both := _outcome(search, ablation)).given_up:
        return first
    return both._replace(ps=both.ps | {id_: p for id_, p in first.ps.items() if first.stays(id_)})


def _outcome(search: Search, ablation: Ablation) -> Kept:
    trials = [trial for trial in search.trials("ablate") if ablation.first_block <= trial.block < _end(ablation)]
    fit = Fit(trials)
    whole = arm(ablation.arm)
    gains, needed = {}, set()
    over = {}
    for id_, rest in _without(search, ablation).items():
        # What ran once and failed later may be left out.
        if search.failure(rest.key) and not any(trial.arm == rest.key and counts(trial) for trial in trials):
            needed.add(id_)
        elif (gain := fit.gain(whole.key, rest.key)) is not None:
            gains[id_], over[id_] = gain, (whole.key, rest.key)
    for id_, more in _on_top(ablation).items():
        if (gain := fit.gain(more.key, whole.key)) is not None:
            gains[id_], over[id_] = gain, (more.key, whole.key)
    _without_dependants(search, ablation, fit, gains, over)
    spent = ERROR / _level(ablation)
    corrected = [min(1.0, p * spent) for p in holm([gain.p for gain in gains.values()])]
    over_baseline = fit.gain(whole.key)
    last = max((trial.block for trial in trials), default=0)
    complete = last >= ablation.first_block + ablation.num_blocks - 1
    given_up = _failure(search, ablation) is not None or (not complete and _is_futile(search, over_baseline))
    return Kept(gains, over, dict(zip(gains, corrected, strict=True)), needed, over_baseline, given_up)


def _level(ablation: Ablation) -> float:
    """One-sided, of what is judged now: further blocks and a second round are a setting's second look."""
    return layout.level(0 if _leaves_out_all(ablation) and not ablation.num_extra_blocks else 1)


def _without_dependants(
    search: Search, ablation: Ablation, fit: Fit, gains: dict[str, Gain], over: dict[str, tuple[str, str]]
) -> None:
    """Of what loses its dependants: what it is worth beside none of those that are not surely worth their place."""
    surely = _level(ablation) / max(1, len(gains))
    for setting in ablation.arm:
        id_ = str(setting)
        gone = [str(one) for one in dependants(id_, ablation.arm, search.study.candidates)]
        for other in gone:
            if id_ not in gains or other not in gains or gains[other].p <= surely:
                continue
            arms = over[other][1], over[id_][1]
            alone = fit.gain(*arms)
            if alone is not None and alone.p > gains[id_].p:
                gains[id_], over[id_] = alone, arms


def _run(search: Search, ablation: Ablation) -> None:
    whole = arm(ablation.arm)
    arms = _arms(search, ablation)
    for one in arms:
        if warms(search, one):
            search.pilot(one)
    first_look = max(2, ablation.num_blocks // 2)
    for number in range(1, ablation.num_blocks + 1):
        search.run_block(arms, "ablate", ablation.first_block + number - 1)
        _write_down(search, ablation)
        if search.failure(whole.key) or (number >= first_look and outcome(search, ablation).given_up):
            return


def _arms(search: Search, ablation: Ablation) -> list[Arm]:
    rests = _without(search, ablation).values()
    return list(dict.fromkeys([arm(ablation.arm), *rests, *_on_top(ablation).values(), BASELINE]))


def _runs_in_time(search: Search, ablation: Ablation) -> bool:
    """Whether so much of it runs before the time is up that it tells something."""
    try:
        _run(search, ablation)
    except OutOfTime:
        blocks = [_blocks_of(search, one.key, ablation) for one in _arms(search, ablation)]
        return len(set.intersection(*blocks)) >= layout.LEAST_BLOCKS
    return True


def _blocks_of(search: Search, key: str, ablation: Ablation) -> set[int]:
    """In which it was measured, or failed: that is an answer, too."""
    numbers = range(ablation.first_block, ablation.first_block + ablation.num_blocks)
    if search.failure(key):
        return set(numbers)
    return {trial.block for trial in search.trials("ablate") if trial.arm == key and counts(trial)} & set(numbers)


def _is_futile(search: Search, gain: Gain | None) -> bool:
    return gain is not None and gain.log < search.margin


def _without(search: Search, ablation: Ablation) -> dict[str, Arm]:
    """The whole without each setting, and without what means nothing then."""
    rests = each_left_out(ablation.arm, search.study.candidates)
    return {id_: arm(rest) for id_, rest in rests.items() if id_ in ablation.dropped}


def _on_top(ablation: Ablation) -> dict[str, Arm]:
    return {str(setting): arm([*ablation.arm, setting]) for setting in ablation.added}


def _write_down(search: Search, ablation: Ablation) -> None:
    found = outcome(search, ablation)
    whole = arm(ablation.arm).key
    estimates = [
        replace(
            estimate_of(*found.over[id_], "ablate", gain),
            p=found.ps[id_],
            corrected_over=len(found.ps),
        )
        for id_, gain in found.gains.items()
    ]
    # Of a whole of one setting that is what leaving it out says, corrected.
    if found.whole is not None and (whole, "") not in found.over.values():
        estimates.append(estimate_of(whole, "", "ablate", found.whole))
    search.estimate(estimates)


def _stay(search: Search, ablation: Ablation, found: Kept) -> list[Setting]:
    stay = [setting for setting in [*ablation.arm, *ablation.added] if found.stays(str(setting))]
    return complete(stay, search.study.candidates)


def _one_is_hidden(search: Search, first: Ablation, found: Kept, kept: list[Setting]) -> bool:
    """Whether one of several that go is missed: the whole gains more than what stays explains."""
    num_dropped = sum(setting not in kept for setting in first.arm)
    if num_dropped < 2 or found.whole is None or found.whole.p > HELPS_P:
        return False
    explained = _explained(search, first, found, kept)
    return found.whole.log - explained > max(search.margin, HIDDEN_SE * found.whole.se)


def _explained(search: Search, first: Ablation, found: Kept, kept: list[Setting]) -> float:
    """What those that stay add to the whole, together."""
    # What needs another is left out with it, and so is in the other's gain already.
    needing = {one.id for one in search.study.candidates if one.needs}
    # What runs on top of the whole is no part of it.
    apart = needing | {str(one) for one in first.added}
    return math.fsum(found.gains[str(one)].log for one in kept if str(one) in found.gains.keys() - apart)


def _one_more(search: Search, first: Ablation, found: Kept, kept: list[Setting]) -> list[Setting]:
    """Beside what stays, the strongest of those dropped.

    Where nothing stays, or there is no time for that and less stays than it gains alone, its confirmation is its proof.
    """
    model = fitted(search)
    dropped = [setting for setting in first.arm if setting not in kept]
    by_id = {one.id: one for one in search.study.candidates}
    beside = [setting for setting in dropped if setting in complete([*kept, setting], search.study.candidates)]
    gains = {setting: by_itself(model, by_id[str(setting)])[1] for setting in beside}
    if not gains:
        return kept
    strongest = max(gains, key=lambda setting: gains[setting].log)
    if not kept:
        return [strongest] if gains[strongest].p < ENTER_P else []
    second = search.study.ablations[-1]
    if _leaves_out_all(second):
        num_blocks = min(_affordable_blocks(search, arm(kept)), first.num_blocks + 2)
        if not num_blocks:
            alone = gains[strongest]
            # What stays may be worth more by itself than it adds beside what does the same.
            held = max(_explained(search, first, found, kept), model.gain(frozenset(map(str, kept))).log)
            return [strongest] if alone.p < ENTER_P and alone.log > held else kept
        second = Ablation([*kept, strongest], [str(strongest)], _end(first), num_blocks)
        search.update(ablations=[*search.study.ablations, second])
    _run(search, second)
    return list(second.arm) if outcome(search, second).stays(second.dropped[0]) else kept


def _affordable_blocks(search: Search, kept: Arm) -> int:
    """Of a second round, with its pilots, that leave the usual pairs, or the fewest that the runs before them allow."""
    kept_s, baseline_s = search.bench.run_s(kept), search.bench.run_s(BASELINE)
    for num_pairs in (LEAST_PAIRS, MIN_PAIRS):
        left_s = search.bench.left_s() / SLACK - num_pairs * (kept_s + baseline_s) - 2 * kept_s
        num_blocks = int(left_s / (2 * kept_s + baseline_s)) if kept_s + baseline_s > 0 else LEAST_BLOCKS
        if num_blocks >= LEAST_BLOCKS:
            return num_blocks
    return 0
