"""A second turn for what the plan left out: where runs are shorter than planned for, or nothing else helps."""

from __future__ import annotations

from collections.abc import Sequence

from dynotune.schema.study import Candidate
from dynotune.search.bench import BASELINE, arm
from dynotune.search.budget import LEAST_PAIRS, worth_trying
from dynotune.search.choosing import SLACK, strongest, whole
from dynotune.search.racing import failures
from dynotune.search.running import Search, alone
from dynotune.search.switching import told


def left_out(search: Search) -> list[Candidate]:
    """Candidates that may gain something and were never measured, those that may gain most first."""
    fates, raced = search.study.outcomes, {*told(search.study), *(trial.arm for trial in search.trials("race", "join"))}
    those = [one for one in worth_trying(search.study) if not one.needs and one.id not in raced]
    return [one for one in those if one.id not in fates or fates[one.id].kind == "not-tried"]


def affordable(search: Search, those: Sequence[Candidate], num_checks: int) -> list[Candidate]:
    """The first of them, as many as race beside the baseline and leave the time to prove one."""
    run_s = search.bench.run_s(BASELINE)
    left_s = search.bench.left_s() - run_s - max([0.0, *(proof_s(search, one, num_checks) for one in those)])
    found: list[Candidate] = []
    for one in those:
        left_s -= search.bench.run_s(alone(one)) + _pilot_s(search, one)
        if left_s < 0:
            break
        found.append(one)
    return found


def take_in(search: Search) -> None:
    """Run more of what the plan left out, in the block that ran, while the proof of the best one still fits.

    The plan took every run for as long as one of the baseline. A setting that makes steps shorter makes runs shorter,
    and one that is better still makes them no longer; of other objectives that is not so.

    Raises:
        OutOfTime: what was raced is kept.
    """
    if search.study.run.objective != "throughput":
        return
    for one in left_out(search):
        best = arm(strongest(search, whole(search)))
        if best == BASELINE or one.needs_warm_cache:
            continue
        run_s = search.bench.run_s(BASELINE)
        needed_s = search.bench.check_s(best) + LEAST_PAIRS * (run_s + search.bench.run_s(best))
        # Where all the others were screened, the block has no run of the baseline yet.
        num_runs = 1 + all(trial.arm != BASELINE.key for trial in search.trials("race"))
        if SLACK * (needed_s + num_runs * run_s) > search.bench.left_s():
            return
        search.watcher.say(f"There is time to try {one.id}, too.")
        take_back(search, [one])
        search.run_block([BASELINE, alone(one)], "race", 1)
        search.settle(failures(search))


def proof_s(search: Search, one: Candidate, num_checks: int) -> float:
    """Of the fewest pairs that need no run before them, and of a look at results."""
    run_s = search.bench.run_s(BASELINE)
    return LEAST_PAIRS * (run_s + search.bench.run_s(alone(one))) + num_checks * run_s


def can_prove(search: Search, one: Candidate, num_checks: int, *, piloted: bool) -> bool:
    """Without a race; `piloted`: after a first run, which shows sooner whether it runs at all."""
    pilot_s = search.bench.run_s(alone(one)) if piloted and not search.piloted(one.id) else 0.0
    return pilot_s + proof_s(search, one, num_checks) <= search.bench.left_s()


def _pilot_s(search: Search, one: Candidate) -> float:
    return search.bench.run_s(alone(one)) if one.needs_warm_cache and not search.piloted(one.id) else 0.0


def race_left_out(search: Search, those: Sequence[Candidate]) -> None:
    """A block of them beside the baseline. One that was stopped goes on, without what ran in it.

    Raises:
        OutOfTime: what was raced is kept.
    """
    last = max([1, *(trial.block for trial in search.trials("race"))])
    stopped = any(one.id not in search.study.outcomes for one in those)
    take_back(search, those)
    for one in those:
        if one.needs_warm_cache:
            search.pilot(alone(one))
    if runners := [alone(one) for one in those if search.failure(one.id) is None]:
        search.run_block([BASELINE, *runners], "race", max(2, last) if stopped else last + 1)
    search.settle(failures(search))


def take_back(search: Search, those: Sequence[Candidate]) -> None:
    """Their fates."""
    names = {one.id for one in those}
    kept = {id_: fate for id_, fate in search.study.outcomes.items() if id_ not in names}
    if len(kept) < len(search.study.outcomes):
        search.update(outcomes=kept)
