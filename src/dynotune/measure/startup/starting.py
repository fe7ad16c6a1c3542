"""Time and judge a command's starts with caches cold, warm and off, in blocks of one start of each kind."""

import contextlib
import math
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from dynotune import probe
from dynotune.launch import new_run_folder
from dynotune.launch.caches import contents
from dynotune.launch.process import fresh_folder, origin
from dynotune.measure.bench.journal import Journal
from dynotune.measure.bench.protocol import Interrupted
from dynotune.measure.bench.refusals import preflight
from dynotune.measure.bench.turns import take_turns
from dynotune.measure.comparison import summary
from dynotune.measure.comparison.stats import SequentialResult, judge
from dynotune.measure.live import cautions, lane_order, lanes
from dynotune.measure.live.live_run import Enough
from dynotune.measure.live.machine import facts_of, refuse_another_machine
from dynotune.measure.live.outcome import Outcome
from dynotune.measure.live.readiness import FirstStep, Steadiness
from dynotune.measure.live.request import StartRequest, Watcher
from dynotune.measure.live.reservation import machine_lock
from dynotune.measure.live.time_limit import limit_s
from dynotune.measure.startup import against, conclusions
from dynotune.measure.startup.cache_folders import Places, all_places
from dynotune.measure.startup.start_run import run_start
from dynotune.schema import document, resumption
from dynotune.schema.comparison import TELLING_PAIRS, ArmName, Pair
from dynotune.schema.errors import CommandFailed, UsageError
from dynotune.schema.run import Purpose, RunSpec
from dynotune.schema.startup import CACHE_STATES, CacheState, Ratio, Start, StartBlock, Startup, VoidBlock
from dynotune.text import words

FILE = "startup.json"
COMPARED: tuple[CacheState, ...] = ("cold", "off")
MOST_FILLS = 3
SURELY = 2
"""Starts of a block that surely take as long as a cold one: the cold one itself, and the one without
caches."""


class StartWatcher(Watcher, Protocol):
    def started(self, block: StartBlock, *, number: int, max_blocks: int) -> None: ...

    def voided_block(self, voided: VoidBlock) -> None: ...


def orders(num_blocks: int, seed: int) -> list[tuple[CacheState, ...]]:
    """Return the order of starts in each block: drawn for every two blocks, and reversed in the second block.

    After every even number of blocks, each of any two states of the caches came first equally often. A longer
    list begins with every shorter list of the same seed; a void block is repeated in its own order.
    """
    draw = random.Random(seed)
    drawn: list[tuple[CacheState, ...]] = []
    while len(drawn) < num_blocks:
        order = tuple(draw.sample(CACHE_STATES, len(CACHE_STATES)))
        drawn += [order, order[::-1]]
    return drawn[:num_blocks]


def pairs_of(blocks: Sequence[StartBlock], arm: CacheState) -> list[Pair]:
    """Return pairs with starts of cache state `arm` as the baseline and warm starts as the candidate."""
    found = []
    for block in blocks:
        base, warm = block.of(arm), block.of("warm")
        first: ArmName = "baseline" if block.starts.index(base) < block.starts.index(warm) else "candidate"
        found.append(Pair(first, base.value_s, warm.value_s, base.run, warm.run))
    return found


def ratio(blocks: Sequence[StartBlock], arm: CacheState, judgement: SequentialResult) -> Ratio:
    """Express the judgement in terms of starts. Seconds follow from the ratio's interval and the median
    start."""
    median_s = statistics.median(block.of(arm).value_s for block in blocks) if blocks else None
    warm_s = statistics.median(block.of("warm").value_s for block in blocks) if blocks else None

    def saved(by: float) -> float:
        return (median_s or 0.0) * (1 - 1 / by)

    return Ratio(
        arm=arm,
        verdict=judgement.verdict,
        ratio=judgement.speedup,
        ci=judgement.ci,
        num_blocks=judgement.num_pairs,
        reason=judgement.reason,
        median_s=median_s,
        warm_median_s=warm_s,
        saved_s=saved(judgement.speedup) if judgement.speedup else None,
        saved_ci=(saved(judgement.ci[0]), saved(judgement.ci[1])) if judgement.ci else None,
        num_blocks_to_settle=judgement.num_pairs_to_settle,
    )


def time_starts(request: StartRequest, watcher: StartWatcher) -> Startup:
    """Time the starts of `request`. Write every finished block to disk before the next begins.

    Raises:
        UsageError, CannotRunHere: a run was impossible, or the kept record is of another command; no file of
            the user's is changed.
        CommandFailed: the command failed, or ended before it was ready.
        Interrupted: the user interrupted the starts; `resume` continues.
    """
    if request.max_blocks:
        judge([], margin=request.margin, max_pairs=request.max_blocks)  # UsageError for a number out of range
    run, before = request.run, request.against
    if before is not None:
        against.refuse_another(before, run)
    facts = facts_of(run)
    for caution in preflight(run, {"baseline": run.settings}, facts):
        watcher.warn(caution)
    own = contents.sizes(run.env, run.cwd)
    folder = new_run_folder(run.base)
    startup = Startup(
        id=folder.name,
        run=run.recorded,
        margin=request.margin,
        max_blocks=request.max_blocks,
        against=None if before is None else against.kept(before),
        own=own,
        facts={**facts, **probe.environment.facts(run.env), **conclusions.code_facts(run)},
    )
    origin.mark(folder, startup)
    document.write(folder / FILE, startup)
    return _sit(request, folder, watcher)


def resume(folder: Path, now: RunSpec, watcher: StartWatcher, *, budget_s: float | None = None) -> Startup:
    """Continue the starts in `folder` after the last finished block, as `bench.protocol.resume` does."""
    startup = document.read(folder / FILE, Startup)
    if startup.finished:
        return startup
    origin.refuse_foreign(folder, startup, now)
    startup = resumption.completed(startup, now)
    request = StartRequest(
        run=startup.run.resumed(now), max_blocks=startup.max_blocks, margin=startup.margin, budget_s=budget_s
    )
    refuse_another_machine("timing of starts", startup.facts, facts_of(request.run))
    return _sit(request, folder, watcher)


def _sit(request: StartRequest, folder: Path, watcher: StartWatcher) -> Startup:
    try:
        with machine_lock(request.run, watcher), all_places(folder, request.run.env) as places:
            journal = Journal(document.read(folder / FILE, Startup), folder / FILE)
            return _StartBench(request, folder, journal, watcher, places).run()
    except KeyboardInterrupt as stopped:
        raise Interrupted(folder) from stopped


class _StartBench:
    """Times starts in turns of the three states of caches; all data that outlive an attempt are in the
    journal."""

    def __init__(
        self,
        request: StartRequest,
        folder: Path,
        journal: Journal[Startup],
        watcher: StartWatcher,
        places: dict[CacheState, Places],
    ) -> None:
        self._request, self._folder, self._journal = request, folder, journal
        self._watcher, self._places = watcher, places
        self._began_s, self.side = time.monotonic(), lane_order.SideBySide()
        self._enough: dict[CacheState, Enough] = {}
        self._warnings: list[str] = []

    @property
    def _startup(self) -> Startup:
        return self._journal.document

    def run(self) -> Startup:
        try:
            if self._request.max_blocks:
                self._pilots()
                if self._startup.max_blocks:
                    self._blocks()
            elif not self._startup.pilots:  # else it was interrupted after its last start
                self._once()
        except CommandFailed as error:
            if self._startup.blocks:
                error.hint += f" The finished blocks are kept in {self._folder}."
            raise
        self._conclude()
        return self._startup

    def _once(self) -> None:
        """Start the command once with empty caches, and once with what that start left in them."""
        self._watcher.say(
            "Two starts of the command, each up to its first step: one with empty caches, one with what the "
            "first left in them. The second takes at most as long as the first. --blocks 4 adds intervals."
        )
        limit = limit_s(self._request.run, None)
        cautions.say_where(self._request.run, self._folder / "pilot", self._watcher)
        cold, outcome = self._pilot("cold", "cold", limit, Steadiness(self._request.run))
        self._watcher.say(f"The cold start took {words.duration(cold.value_s)}.")
        warm, _ = self._pilot("warm", "warm", limit, self._enough["cold"])
        self._journal.update(
            pilots=[cold, warm],
            step=summary.step(outcome) if outcome.records else "",
            warnings=[*cautions.sandbox_warnings(outcome), *_pilot_warnings([cold, warm])],
        )

    # Pilots

    def _pilots(self) -> None:
        """Run the pilots: a cold start fills the caches; warm starts until no file is added; one without
        caches. If nothing is left in any cache, the first two are the answer."""
        limit = limit_s(self._request.run, None)
        cautions.say_where(self._request.run, self._folder / "pilot", self._watcher)
        cold, outcome = self._pilot("cold", "pilot-cold", limit, Steadiness(self._request.run))
        if self._startup.block_s is None:
            self._refuse_short_budget(SURELY * cold.value_s, pilots_s=cold.value_s)
        for fill in range(1, MOST_FILLS + 1):
            warm, _ = self._pilot("warm", f"pilot-warm-{fill}", limit, Steadiness(self._request.run))
            if not any(growth.num_files for growth in warm.added):
                break
        if self._is_nothing_cached(cold, warm):
            self._watcher.say(
                "The starts left nothing in any cache, so further starts would show no difference."
            )
            self._journal.update(
                pilots=[cold, warm],
                max_blocks=0,
                step=summary.step(outcome) if outcome.records else "",
                warnings=[*self._startup.warnings, *cautions.sandbox_warnings(outcome)],
            )
            return
        pilots = [cold, warm, self._pilot("off", "pilot-off", limit, self._enough["cold"])[0]]
        if self._startup.block_s is not None:
            return  # On resuming, the recorded plan stays in force.
        block_s = sum(pilot.value_s for pilot in pilots)
        self._journal.update(
            pilots=pilots,
            block_s=block_s,
            step=summary.step(outcome) if outcome.records else "",
            max_blocks=self._affordable(block_s),
            warnings=[*self._startup.warnings, *cautions.sandbox_warnings(outcome), *_pilot_warnings(pilots)],
        )
        self._watcher.say(
            f"Each block is one start of each: cold, warm, off; about {block_s:.0f} s. At most "
            f"{self._startup.max_blocks} blocks, {self._startup.max_blocks * block_s / 60:.1f} min; fewer "
            "when it is "
            "clear."
        )

    def _is_nothing_cached(self, cold: Start, warm: Start) -> bool:
        """Tell whether caches cannot matter; blocks go on all the same if a kept record judges them."""
        is_begun = self._startup.block_s is not None
        return self._request.against is None and not is_begun and not (cold.added or warm.added)

    def _pilot(self, arm: CacheState, name: str, limit: float, enough: Enough) -> tuple[Start, Outcome]:
        self._watcher.running(f"a first start, caches {arm}")
        outcome, start = self._start(arm, name, limit, enough, "pilot")
        self._enough[arm] = FirstStep(outcome) if outcome.records else lambda records: False
        return start, outcome

    def _start(
        self, arm: CacheState, name: str, limit: float, enough: Enough, purpose: Purpose = "measured"
    ) -> tuple[Outcome, Start]:
        return run_start(
            self._request.run,
            arm,
            places=self._places["warm" if purpose == "pilot" and arm == "cold" else arm],
            clear=arm != "warm",
            folder=fresh_folder(self._folder / name),
            purpose=purpose,
            facts=self._startup.facts,
            limit_s=limit,
            enough=enough,
        )

    def _affordable(self, block_s: float) -> int:
        """Return the number of blocks that the budget allows. Raises UsageError: the budget allows too few
        blocks."""
        most, left_s = self._request.max_blocks, self._left_s()
        if left_s is None:
            return most
        self._refuse_short_budget(block_s)
        affordable = min(most, int(left_s / block_s))
        if affordable < most:
            affordable -= affordable % 2
            self._watcher.say(f"The budget is enough for {affordable} of {most} blocks.")
        return affordable

    def _refuse_short_budget(self, block_s: float, *, pilots_s: float = 0.0) -> None:
        """Refuse a budget that is too short for the fewest blocks, after `pilots_s` of further pilots.

        Raises UsageError: the budget is too short.
        """
        left_s, fewest = self._left_s(), min(TELLING_PAIRS, self._request.max_blocks)
        if left_s is None or int((left_s - pilots_s) / block_s) >= fewest:
            return
        # Before all pilots have run, the three starts of a block may take as long as the first.
        likely_s = block_s if not pilots_s else len(CACHE_STATES) * pilots_s
        needed_s = fewest * likely_s + (likely_s if pilots_s else 0.0) + time.monotonic() - self._began_s
        raise UsageError(
            f"An answer needs {fewest} blocks, which do not fit into the {left_s:.0f} s that are left of "
            "the budget.",
            hint=f"A block takes about {block_s:.0f} s here: give at least --budget {math.ceil(needed_s)}s.",
        )

    # Blocks

    def _blocks(self) -> None:
        order = orders(self._startup.max_blocks, self._startup.run.seed or 0)
        with contextlib.closing(take_turns(self, self._journal, order, StartBlock)) as turns:
            while not all(judgement.finished for judgement in self._judged().values()):
                if next(turns, None) is None:
                    self._warnings.append("The budget was used up before it was clear.")
                    break

    def all_lanes(self) -> list[lanes.Lane]:
        """Return the whole machine: starts that go side by side read the same disk."""
        return [lanes.WHOLE]

    def most_turns(self) -> float:
        left_s = self._left_s()
        return math.inf if left_s is None else left_s // (self._startup.block_s or math.inf)

    def turn(self, order: Sequence[CacheState], lane: lanes.Lane) -> StartBlock | VoidBlock:
        """Start the command once with each state of the caches, in this order."""
        number = self._journal.num(StartBlock) + self._journal.num(VoidBlock) + 1
        limit = limit_s(self._request.run, max(start.value_s for start in self._startup.pilots))
        starts = list[Start]()
        outcomes = []
        for arm in order:
            most = self._startup.max_blocks
            blocks = max(1, most - number + 1) - len(starts) / len(CACHE_STATES)
            left_s, budget_s = blocks * (self._startup.block_s or math.inf), self._left_s()
            self._watcher.running(
                f"block {number} of at most {most}: caches {arm}",
                left_s=left_s if budget_s is None else min(left_s, budget_s),
            )
            outcome, start = self._start(arm, f"{number:03d}-{arm}", limit, self._enough[arm])
            starts.append(start)
            outcomes.append(outcome.without_steps)
        block = StartBlock(starts)
        reasons = [why for outcome in outcomes if outcome.outside is not None for why in outcome.outside.void]
        self._warnings += cautions.warnings(outcomes)
        return VoidBlock(number, "; ".join(dict.fromkeys(reasons)), block) if reasons else block

    def tell(self, turn: StartBlock | VoidBlock) -> None:
        if isinstance(turn, VoidBlock):
            self._watcher.voided_block(turn)
        else:
            self._watcher.started(
                turn, number=self._journal.num(StartBlock), max_blocks=self._startup.max_blocks
            )

    def _judged(self, *, ended: bool = False) -> dict[CacheState, SequentialResult]:
        return {
            arm: judge(
                pairs_of(self._startup.blocks, arm),
                margin=self._startup.margin,
                max_pairs=self._startup.max_blocks,
                num_voided=len(self._startup.voided),
                ended=ended,
                unit="block",
            )
            for arm in COMPARED
        }

    def _left_s(self) -> float | None:
        budget_s = self._request.budget_s
        return None if budget_s is None else budget_s - (time.monotonic() - self._began_s)

    def _conclude(self) -> None:
        judged = self._judged(ended=True) if self._startup.max_blocks else {}
        ratios = [ratio(self._startup.blocks, arm, found) for arm, found in judged.items()]
        warnings = list(dict.fromkeys([*self._startup.warnings, *self._warnings]))
        self._journal.update(ratios=ratios, warnings=warnings, warm_caches=str(self._places["warm"].caches))
        changed: dict[str, object] = {}
        if (before := self._startup.against) is not None:
            found = against.changes(before, self._startup)
            changed = {
                "changes": found,
                "warnings": [*warnings, *against.machine_notes(before, self._startup)],
            }
        self._journal.update(**conclusions.conclusions(self._startup), **changed, finished=True)


def _pilot_warnings(pilots: Sequence[Start]) -> list[str]:
    found = []
    if any(pilot.at_exit for pilot in pilots):
        found.append(
            "The command ended with the line that was waited for. Output to a file is often held back "
            "until the "
            "program's end: let it print at once (python -u, stdbuf -oL, fflush), or the time is that of "
            "the whole run."
        )
    warm = next(pilot for pilot in pilots if pilot.arm == "warm")
    names = ", ".join(growth.name for growth in warm.added if growth.num_files)
    if names:
        found.append(
            f"Start after start something is compiled that was not kept before ({names}): no start is "
            "entirely warm."
        )
    return found
