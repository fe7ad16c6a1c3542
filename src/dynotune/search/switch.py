"""Stage 2: compare settings that can change at any step with the baseline within one live run.

One process takes less time than fresh ones: no start is paid for, and differences between processes cancel.
The bundle comes first, in blocks until there is a verdict; the time left then shows which settings it needs,
and those are tested like the bundle. At most three arms are tested, each at a third of the error.

If there is time for fresh pairs that prove the recipe, this stage only drops settings without any effect.
With less time, these blocks are the proof, and two fresh pairs state the speed-up of a launch. A command that
takes half a minute to start has no time for these either: then the blocks state it, with the interval
widened.
"""

import math
from collections.abc import Sequence

from dynotune import knobs
from dynotune.measure.comparison import launched
from dynotune.schema.arm import BASELINE, Arm, arm
from dynotune.schema.comparison import MAX_PAIRS, TELLING_PAIRS, Comparison
from dynotune.schema.setting import Setting
from dynotune.schema.study import PART_ERROR, Candidate, CandidateOutcome, Estimate, OutcomeKind, Study
from dynotune.search import words
from dynotune.search.bench import Tested, complete, within_cores
from dynotune.search.bounds import bound_log
from dynotune.search.results import rounding
from dynotune.search.running import Search, alone, gave_nothing, in_predicted_order
from dynotune.search.values import COMPILED, GRAPHS

SHARE, SHARE_COMPILING = 0.2, 0.4
"""Share of the time left, if fresh runs follow. Arms leave their compiled code in the caches of these
runs."""
MOST_ARMS = 9
"""Most arms in turns: a block of each takes some steps, so more arms have fewer blocks in the same time."""
MOST_TESTS = 3
BLOCKS_OF_A_TEST = 4
FEWEST_BLOCKS = 2
"""Fewest blocks of an arm in turns: with fewer there is no estimate."""
FRESH_RUNS = 1 + 2 * TELLING_PAIRS
"""Runs of the command for fresh pairs that prove a recipe, without the check of results."""
STATING_SHARE = 0.6
"""Most of the time left that is reserved for these pairs, so that the proof comes first."""
FOR_THE_NEXT = 0.4
"""Share of the time left that is reserved for another arm, as long as an arm has no block."""
LAUNCH_SHARE = 0.25
"""Most of the time left for starting with the settings proved within one process."""


def switch(work: Search) -> None:
    """Test the switchable settings once per study; settle those that do not run or surely have no effect."""
    quick = [one for one in in_predicted_order(work) if one.in_process]
    others = _promising_more(work, quick)
    if not quick or _leaves_time_to_others(work, quick, others):
        return
    until_s = _reserved_s(work, quick)
    if others and fresh_fits(work):
        until_s = max(until_s, fresh_s(work))
    if not work.study.within and not switched(work.study):
        _test_first(work, quick, until_s)
        _settle_milder(work)
    if fresh := fresh_fits(work):
        share = SHARE_COMPILING if _compiling(quick) else SHARE
        until_s = (1 - share) * work.bench.left_s()
    quick = [one for one in quick if one.id not in work.study.outcomes and one.setting not in work.unswitched]
    if not quick:
        return
    if not switched(work.study):
        _in_turns(work, quick, until_s, 0 if fresh else BLOCKS_OF_A_TEST)
    if estimates := switched(work.study):
        best = max(estimates.values(), key=lambda one: one.speedup)
        told = "no setting was faster by more than the margin"
        if best.speedup > 1 + work.study.margin:
            told = f"{best.arm} was best: {_seen(work.study, best)}"
        work.watcher.say(f"In turns within one process, {told}.")
        work.settle(_hopeless(work.study, quick, estimates))
    # The remaining settings of the bundle, or the arm that seems fastest if the bundle is not proved.
    tested = [arm(one.candidate_settings) for one in work.study.within]
    may_test = not fresh and len(tested) < MOST_TESTS and work.bench.left_s() > until_s
    if may_test and (left := _left(work, quick)) and arm(left) not in tested:
        _tested(work, left, until_s)
    if (found := proved_within(work.study)) is not None:
        work.best = found.speedup, found.ci


def _leaves_time_to_others(work: Search, quick: Sequence[Candidate], others: Sequence[Candidate]) -> bool:
    """Settle the settings that can switch if the time holds fresh pairs of the others, and of nothing else.

    Blocks would take the time of the fresh pairs that the larger gain needs.
    """
    has_begun = bool(work.study.within or work.study.estimates)
    if has_begun or not others or fresh_fits(work) or fresh_s(work, others) > work.bench.left_s():
        return False
    names = words.names([one.setting for one in others])
    why = f"The time holds fresh runs of {names}, which may gain more, and of nothing else."
    work.settle({one.id: CandidateOutcome("not-tried", why) for one in quick})
    return True


def _promising_more(work: Search, quick: Sequence[Candidate]) -> list[Candidate]:
    """Return the settings that only fresh runs show, if they may gain more than those that can switch.

    A setting that the user asks for, or that has no bound, may gain anything.
    """
    if any(one.by_user or not math.isfinite(bound_log(one)) for one in quick):
        return []
    others = [one for one in in_predicted_order(work) if not one.in_process]
    return others if _promised_log(others) > _promised_log(quick) else []


def _promised_log(candidates: Sequence[Candidate]) -> float:
    """Return what the settings together may gain, as the logarithm of a ratio; unknown bounds promise
    nothing.

    Settings of one finding save the same time.
    """
    of_finding: dict[str, float] = {}
    for one in candidates:
        if math.isfinite(most := bound_log(one)):
            finding = one.why[0] if one.why else one.setting.knob
            of_finding[finding] = max(most, of_finding.get(finding, 0.0))
    return math.fsum(of_finding.values())


def _reserved_s(work: Search, quick: Sequence[Candidate]) -> float:
    """Return the seconds to leave for later stages.

    They are for the check of results, and for fresh pairs that state the speed-up, or else for one start.
    """
    left_s, check_s = work.bench.left_s(), work.bench.check_s(arm(_bundle(work.study, quick)))
    needed_s = check_s + stating_s(work)
    return needed_s if needed_s <= STATING_SHARE * left_s else _start_s(work, quick)


def _start_s(work: Search, quick: Sequence[Candidate]) -> float:
    """Return the seconds for the check of results and for one start with the settings."""
    needed_s = work.bench.check_s(arm(_bundle(work.study, quick))) + work.bench.run_s(BASELINE)
    left_s = work.bench.left_s()
    return needed_s if needed_s <= STATING_SHARE * left_s else min(needed_s, LAUNCH_SHARE * left_s)


def stating_s(work: Search) -> float:
    """Return the seconds of fresh pairs that state the speed-up of settings proved within one process.

    They are the fewest that these may take: only the pairs themselves show how long a launch takes after the
    first.
    """
    is_known = any(trial.arm == BASELINE.key for trial in work.study.trials)
    num_runs = 2 * launched.fewest_pairs(launched.spread()) + (not is_known)
    return num_runs * work.bench.least_run_s()


def stating_fits(work: Search) -> bool:
    """Return whether fresh pairs may fit that state the speed-up of settings proved within one process."""
    return work.bench.left_s() >= stating_s(work)


def fresh_fits(work: Search) -> bool:
    return work.bench.left_s() >= fresh_s(work)


def fresh_s(work: Search, alive: Sequence[Candidate] | None = None) -> float:
    """Return the seconds that fresh pairs take to prove a recipe, by default of all candidates without an
    outcome."""
    alive = in_predicted_order(work) if alive is None else alive
    check_s = work.bench.check_s(arm(_bundle(work.study, alive))) if alive else 0.0
    return FRESH_RUNS * work.bench.run_s(BASELINE) + check_s


def switched(study: Study) -> dict[str, Estimate]:
    """Return the live run's estimate of each arm against the baseline, by the arm's key."""
    return {one.arm: one for one in study.estimates if one.phase == "switch"}


def faster_within(study: Study) -> list[Comparison]:
    """Return the arms that blocks within one process proved, without those that failed from the start."""
    failed = {trial.arm for trial in study.trials if gave_nothing(trial)}
    return [
        one
        for one in study.within
        if one.verdict == "faster" and arm(one.candidate_settings).key not in failed
    ]


def proved_within(study: Study) -> Comparison | None:
    """Return the fastest arm that blocks within one process proved, the smaller of equals; None without
    one."""
    return fastest(study, faster_within(study))


def fastest(study: Study, proofs: Sequence[Comparison]) -> Comparison | None:
    """Return the fastest of the proofs, the one of fewest settings among equals; None without a proof."""
    best = max((one.speedup or 0.0 for one in proofs), default=0.0)
    equal = [one for one in proofs if (one.speedup or 0.0) * (1 + study.margin) >= best]
    return min(equal, key=lambda one: len(one.candidate_settings), default=None)


# Tests


def _test_first(work: Search, quick: Sequence[Candidate], until_s: float) -> None:
    """Test the bundle: first without settings that compile, for an answer within seconds; then with them."""
    bundle = complete(_bundle(work.study, quick), quick)
    compiling = _compiling(quick)
    eager = arm(complete([one for one in bundle if one not in compiling], quick))
    # If the bundle's own way to compile does not run, a milder one replaces it.
    milder = [one.setting for one in quick if one.setting in compiling and one.setting not in bundle][:1]
    compiled = [arm(bundle), arm([*bundle, *milder])] if compiling else []
    arms = [one for one in dict.fromkeys([eager, *compiled]) if one.settings]
    if compiling and eager.settings:
        work.bench.compile_beside(arm(bundle))
    for number, planned in enumerate(arms, 1):
        out = {*work.study.outcomes, *map(str, work.unswitched)}
        one = arm(setting for setting in planned.settings if str(setting) not in out)
        if planned != eager and proved_within(work.study) is None and not fresh_fits(work):
            until_s = min(
                until_s, _start_s(work, quick)
            )  # as long as nothing is proved, pairs can state nothing
        if not one.settings or work.bench.left_s() <= until_s:
            continue
        # Compiling may take all of the time or end the program, so some time is reserved for later stages.
        of_time = 1.0 if number == len(arms) else 1 - FOR_THE_NEXT
        if planned != eager:
            # What was compiled beside is of use only with time for its blocks.
            room_s = work.bench.left_s() - until_s - (FEWEST_BLOCKS + 1) * work.bench.block_s()
            work.bench.wait_for_compiled(of_time * max(0.0, room_s))
        first_s = of_time * (work.bench.left_s() - until_s)
        found = _tested(work, one.settings, until_s, first_s).comparison
        if found is not None and found.verdict == "faster":
            _test_exact(work, one, quick)
        if found is not None and planned != eager:
            return
        if found is not None and found.verdict != "faster" and number < len(arms):
            _test_parts(work, [each for each in quick if each.setting in one.settings], until_s)


def _test_exact(work: Search, proved: Arm, quick: Sequence[Candidate]) -> None:
    """Test a proved arm without its settings that round, if the time left holds no check of their results and
    no start.

    Unchecked, none of the arm would be in a recipe, whatever its other settings gain.
    """
    left_s, tested = work.bench.left_s(), [arm(one.candidate_settings) for one in work.study.within]
    exact = complete(
        [one for one in proved.settings if one not in rounding(work.study, proved.settings)], quick
    )
    check_s = work.bench.check_s(proved)
    is_late = check_s > 0 and check_s + work.bench.run_s(BASELINE) > left_s
    if exact and is_late and arm(exact) not in tested and len(tested) < MOST_TESTS:
        _tested(work, exact, LAUNCH_SHARE * left_s)


def _settle_milder(work: Search) -> None:
    """Settle compiling without graphs if graphs are proved: it stands in for them where they do not run.

    Compiling once more takes the time of the pairs that state the speed-up.
    """
    proof = proved_within(work.study)
    if proof is not None and GRAPHS in proof.candidate_settings:
        why = f"{GRAPHS} compiles, too, and was faster in blocks."
        milder = [one for one in work.alive() if one.setting == COMPILED and not one.by_user]
        work.settle({one.id: CandidateOutcome("not-tried", why) for one in milder})


def _test_parts(work: Search, quick: Sequence[Candidate], until_s: float) -> None:
    """Test the part of a bundle that seems fastest, because one setting may cost what another gains.

    What compiles comes after it, and has most of the time.
    """
    if len(quick) < 2:
        return
    until_s += (1 - FOR_THE_NEXT) * max(0.0, work.bench.left_s() - until_s)
    _in_turns(work, quick, until_s, BLOCKS_OF_A_TEST)
    left = _left(work, quick) if switched(work.study) else []
    if left and arm(left) not in [arm(one.candidate_settings) for one in work.study.within]:
        _tested(work, left, until_s)


def _in_turns(work: Search, quick: Sequence[Candidate], until_s: float, num_later: int) -> None:
    """Compare arms in turns, as many as the time affords blocks of, apart from those of a later test."""
    arms, left_s = _arms(work.study, quick), work.bench.left_s() - until_s
    block_s = work.bench.block_s()
    num_arms = int((left_s / block_s - num_later) / FEWEST_BLOCKS) if math.isfinite(left_s) else len(arms)
    if num_arms > 0 and arms:
        work.watcher.running(f"{len(quick)} settings in turns within one process", left_s=work.bench.left_s())
        work.estimate(work.bench.switch(arms[:num_arms], left_s - num_later * block_s))


def _tested(work: Search, settings: Sequence[Setting], until_s: float, first_s: float = math.inf) -> Tested:
    """Test an arm within the live run (first block: `first_s` seconds); retry without knobs that make calls
    fail."""
    study, left = work.study, list(settings)
    while left:
        one = arm(left)
        # Blocks show whether an arm is faster; by how much is for fresh pairs to state.
        plan = work.comparison(one, max_pairs=MAX_PAIRS, within=True)
        work.watcher.running(f"{one.key} within one process", left_s=work.bench.left_s())
        found = work.bench.test(one, plan, PART_ERROR / MOST_TESTS, work.bench.left_s() - until_s, first_s)
        if found.comparison is not None:
            work.update(within=[*work.study.within, found.comparison])
            with_, seen = words.names(one.settings), found.comparison
            text = f"Within one process, {with_} makes no difference: {seen.reason}"
            if seen.speedup is not None:
                num = f"{seen.num_pairs} block{'' if seen.num_pairs == 1 else 's'}"
                known = f"{words.size(study, seen.speedup)} ({words.interval(study, seen.ci)}, {num})"
                text = f"Within one process, with {with_} it is {known}."
            work.watcher.say(text)
            return found
        work.watcher.say(f"Turns within one run did not decide {one.key}: {found.reason.rstrip('.')}.")
        blamed = [setting for setting in left if setting.knob in found.blamed]
        unsuited = [setting for setting in left if setting.knob in found.unsuited]
        work.unswitched.update(unsuited)
        out = [*blamed, *unsuited]
        if not out or len(blamed) == len(settings) > 1:
            return found
        why = CandidateOutcome("failed", f"{words.capitalised(found.reason.rstrip('.'))}.")
        work.settle({str(setting): why for setting in blamed})
        left = complete([setting for setting in left if setting not in out], study.candidates)
    return Tested(reason="no setting of it runs")


def _left(work: Search, quick: Sequence[Candidate]) -> list[Setting]:
    """Return the arm that seems fastest, or the settings of the proved bundle that seem necessary."""
    known, proved, margin = switched(work.study), proved_within(work.study), work.study.margin
    alive = [one.setting for one in quick if one.id not in work.study.outcomes]
    whole = BASELINE if proved is None else arm(proved.candidate_settings)
    ranked = [one for one in _arms(work.study, quick) if one.key in known]
    if proved is not None:  # only what the bundle does not hold, such as another value of a knob
        ranked = [
            one for one in ranked if not {*one.settings} & {*whole.settings} and {*one.settings} <= {*alive}
        ]
    fastest = max(ranked, key=lambda one: known[one.key].speedup, default=arm(complete(alive[:1], quick)))
    if proved is None:
        # Without estimates, the most promising setting.
        return list(fastest.settings) if not ranked or known[fastest.key].speedup > 1 + margin else []
    before, ci = known.get(whole.key), known[fastest.key].ci if ranked else None
    if before is not None and ci is not None and ci[0] > before.speedup:
        return complete(fastest.settings, quick)
    # Two settings that save the same work are both dropped here. The test then shows it, and the bundle
    # stays.
    needed = [one for one in alive if one in whole.settings]
    for one in needed.copy():
        rest = known.get(arm(other for other in whole.settings if other != one).key)
        if before is not None and rest is not None and rest.speedup * (1 + margin) >= before.speedup:
            needed.remove(one)
    return complete([one for one in whole.settings if one in needed], quick)


# Each setting in turns


def _arms(study: Study, quick: Sequence[Candidate]) -> list[Arm]:
    """Return the arms that are compared in turns, the most informative first.

    If the bundle is proved: the bundle without settings that round, the bundle without each setting, then
    each setting alone. Otherwise: each setting alone, then the bundle and its parts. Every arm that compiles
    has to compile again, so there are few of these.
    """
    bundle = _bundle(study, quick)
    eager = complete([one for one in bundle if one not in _compiling(quick)], quick)
    without = [arm(one for one in eager if one != setting) for setting in eager]
    exact = complete([one for one in bundle if one not in rounding(study, bundle)], quick)
    whole, single = [arm(bundle), arm(exact), arm(eager)], [alone(one) for one in quick if not one.needs]
    undecided = proved_within(study) is None and bool(study.within)
    arms = [*single, *whole, *without] if undecided else [*whole, *without, *single]
    return [one for one in dict.fromkeys(arms) if one.settings][:MOST_ARMS]


def _compiling(quick: Sequence[Candidate]) -> set[Setting]:
    compiling = {knob.id for knob in knobs.all_knobs() if knob.compiles}
    return {one.setting for one in quick if one.setting.knob in compiling}


def _bundle(study: Study, quick: Sequence[Candidate]) -> list[Setting]:
    first_of_each = {one.setting.knob: one.setting for one in reversed(quick)}.values()
    return within_cores([*first_of_each][::-1], study.facts)


def _hopeless(
    study: Study, quick: Sequence[Candidate], known: dict[str, Estimate]
) -> dict[str, CandidateOutcome]:
    """Return the outcomes of settings that gain nothing alone, nor together with the remaining settings."""
    margin, found = math.log1p(study.margin), dict[str, CandidateOutcome]()
    compiling = _compiling(quick)
    rest = complete([one for one in _bundle(study, quick) if one not in compiling], quick)
    by_gain = sorted(quick, key=lambda one: known[one.key].speedup if one.key in known else math.inf)
    for one in sorted(by_gain, key=lambda one: one.setting in compiling):
        single = known.get(one.key)
        if single is None or single.ci is None:
            continue
        helps_alone = math.log(single.ci[1]) > margin
        with_it = rest if one.setting in rest else [*rest, one.setting] if one.setting in compiling else None
        if with_it is None:
            # The bundle has another value of its knob.
            if not helps_alone:
                found[one.id] = _outcome(study, single)
            continue
        without_it = [setting for setting in with_it if setting != one.setting]
        if without_it:
            adds_at_most = _difference_at_most(known.get(arm(with_it).key), known.get(arm(without_it).key))
        else:
            adds_at_most = math.log(single.ci[1])
        if adds_at_most is None or adds_at_most > margin:
            continue
        rest = [setting for setting in rest if setting != one.setting]
        beside = f"It helps alone ({_seen(study, single)}), but not together with {words.names(without_it)}."
        found[one.id] = CandidateOutcome("not-needed", beside) if helps_alone else _outcome(study, single)
    return found


def _difference_at_most(larger: Estimate | None, smaller: Estimate | None) -> float | None:
    """Return the upper end of one arm's gain over another, each against the baseline; None if either is
    unknown."""
    if larger is None or smaller is None or larger.ci is None or smaller.ci is None:
        return None
    half = [math.log(one.ci[1] / one.ci[0]) / 2 for one in (larger, smaller) if one.ci is not None]
    return math.log(larger.speedup / smaller.speedup) + math.hypot(*half)


def _outcome(study: Study, estimate: Estimate) -> CandidateOutcome:
    assert estimate.ci is not None
    kind: OutcomeKind = "slower" if estimate.ci[1] < 1 / (1 + study.margin) else "no-effect"
    return CandidateOutcome(kind, f"Switched on and off within one process, it is {_seen(study, estimate)}.")


def _seen(study: Study, estimate: Estimate) -> str:
    return f"{words.size(study, estimate.speedup)}, {words.interval(study, estimate.ci)}"
