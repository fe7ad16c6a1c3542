"""Settle a comparison: within one run if its candidate can be switched there, and by pairs of fresh
processes."""

import contextlib
import math

import msgspec

from dynotune.measure.bench import in_process
from dynotune.measure.bench.bench import ArmFailed, Bench
from dynotune.measure.bench.equal_arms import EqualArms
from dynotune.measure.bench.journal import Journal
from dynotune.measure.bench.turns import NoPair, PairBench, take_turns
from dynotune.measure.comparison import launched
from dynotune.measure.comparison.schedule import orders
from dynotune.measure.comparison.stats import judge_comparison
from dynotune.measure.live.turns import LEAST_S
from dynotune.measure.live.window_length import MIN_WINDOW_S
from dynotune.schema.comparison import MIN_PAIRS, MOST_PAIRS, PRECISION, Comparison, Pair, Spread
from dynotune.schema.errors import UsageError
from dynotune.text import words

STATING_PAIRS = 4
"""Most fresh pairs that state a speed-up which blocks have shown."""
NUM_STATING_RUNS = 2 + 2 * MIN_PAIRS
"""Runs that state a speed-up: two pilots, and the fewest pairs."""


def settle(bench: Bench, *, prior: Spread | None = None) -> Comparison:
    """Settle the comparison of the bench, within one run if that is valid; fresh pairs state a speed-up.

    `prior`: spread of earlier pairs of the same command, which helps where few pairs fit.

    Raises UsageError: the time is too short for pairs, and there is no answer by blocks.
    """
    journal = bench.journal
    try:
        if journal.document.within and _is_settled_within(bench, prior):
            return journal.document
        bench.end_live()
        bench.window()
        # Pairs take long, so without a budget they end with the verdict unless the user asked for more.
        precision = math.inf if bench.request.budget_s is None else PRECISION
        found = journal.keep(launched.stated(fresh_pairs(bench, journal, precision=precision)))
        if not found.within:
            bench.summarise()
    except UsageError as error:
        # The time is too short for fresh pairs; blocks may have an answer already.
        if journal.document.blocks is None:
            raise
        undecided = {"verdict": "undecided", "reason": error.message, "speedup": None, "ci": None}
        journal.keep(launched.stated(msgspec.structs.replace(journal.document, **undecided)))
    except EqualArms as equal:
        journal.update(verdict="same", reason=str(equal), within=False)
    except ArmFailed as failed:
        bench.summarise(failed=failed.arm, num_pairs=len(journal.document.pairs))
    return journal.document


def fresh_pairs(bench: PairBench, journal: Journal[Comparison], *, precision: float) -> Comparison:
    """Make pairs until there is a verdict or the time is up; return the judged comparison, which is not
    stored yet."""
    order = orders(MOST_PAIRS, journal.document.run.seed or 0)

    def most() -> int:
        """Return the planned number, which a bench may raise when it knows how long a pair takes."""
        return journal.document.max_pairs

    with contextlib.closing(take_turns(bench, journal, order, Pair, most)) as turns:
        while not (judgement := judge_comparison(journal.document, precision=precision)).finished:
            bench.see(judgement)
            try:
                turn = next(turns, None)
            except NoPair as error:
                answer = {"verdict": "undecided", "reason": str(error), "num_pairs": journal.num(Pair)}
                return msgspec.structs.replace(journal.document, **answer)
            if turn is None:
                judgement = judge_comparison(journal.document, precision=precision, ended=True)
                break
    return judgement.conclude(journal.document)


def _is_settled_within(bench: Bench, prior: Spread | None) -> bool:
    """Compare within one live run; return whether that is the answer. Blocks of an interrupted run are
    repeated."""
    request, journal, watcher = bench.request, bench.journal, bench.watcher
    journal.update(pairs=[])
    switched = " ".join(map(str, request.candidate))
    watcher.say(f"{switched} is switched on and off within one run of the command.")
    with bench.live() as live:
        found, reason = in_process.compare_within(request, journal, live, watcher)
    if not reason and _are_pairs_due(bench, found):
        _state_by_pairs(bench, found, prior)
        return False
    if not reason:
        journal.keep(launched.proved(found))
        return True
    left_s = bench.left_s()
    if request.in_process == "only" or (left_s is not None and left_s < LEAST_S):
        journal.keep(found)
        reason += ". --in-process never, a larger --budget or a quieter machine may decide."
        journal.update(verdict="undecided", reason=f"Within one run they could not be compared: {reason}")
        return True
    watcher.say(f"Fresh runs compare the arms, because one run could not: {reason}.")
    journal.update(pairs=[], within=False)
    return False


def _are_pairs_due(bench: Bench, found: Comparison) -> bool:
    """Tell whether fresh pairs state the speed-up that the blocks found; two pairs and two pilots have to
    fit."""
    left_s = bench.left_s()
    states_speedup = found.verdict in ("faster", "slower") or found.only_chooses
    if bench.request.in_process == "only" or not states_speedup:
        return False
    start_s = found.baseline.time_to_first_step_s or 0.0
    return left_s is None or left_s >= NUM_STATING_RUNS * (start_s + MIN_WINDOW_S)


def _state_by_pairs(bench: Bench, found: Comparison, prior: Spread | None) -> None:
    seen = words.so_far(found.speedup, found.ci)
    bench.watcher.say(f"Within one process: {seen}. Fresh pairs state what a launch gains.")
    bench.journal.keep(
        msgspec.structs.replace(
            found,
            verdict=None,
            pairs=[],
            within=False,
            blocks=launched.blocks_answer(found),
            seen=launched.spread(prior),
            max_pairs=min(found.max_pairs, STATING_PAIRS),
        )
    )
