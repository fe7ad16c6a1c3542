"""A bench that runs nothing: what each arm takes stands in a table, and time passes in simulated seconds."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from msgspec.structs import replace

from dynotune.measure.bench import Journal
from dynotune.measure.bench.in_process import gains_nothing, pairs_of
from dynotune.measure.comparison import judge_comparison, orders
from dynotune.measure.live import lane_order, lanes
from dynotune.measure.live.switching import estimate
from dynotune.measure.live.turns import FEWEST_BLOCKS
from dynotune.schema.arm import BASELINE, Arm
from dynotune.schema.comparison import MIN_PAIRS, BaselineShift, Comparison
from dynotune.schema.events import Block, Stretch
from dynotune.schema.study import Estimate, Guarded, Phase, Study, Trial
from dynotune.search.bench import FIRST_LAUNCH, Tested
from dynotune.search.study import search
from dynotune.search.within_run import TELLING
from lab.search.studies import FOREVER_S, study_of
from lab.search.tables import QUIET, Noise, Recorded, Table
from lab.silent import Silent

SWITCH_BLOCKS = 8
OTHERS = "another process took 80% of the cores"


class SimulatedBench:
    """A `StudyBench` over a table. Subclasses change what `made` gives, the trial of a run.

    Args:
        check_s: what looking at results takes, and as much once for the baseline.
        voids: share of runs that something else disturbs, each then being slower by a fifth.
        void_runs: of the confirmation, from 1, those that something else disturbs; `cut`: that the deadline
            cuts.
        stop_after: runs, after which Ctrl-C comes.
        spent_s: by earlier sittings.
        cold_s: by the key of an arm, what its first run takes longer, and half of it each later one.
        switch_sd: of the logarithm of what one block within a process says, as of a stretch in it; None where
            nothing can be switched.
        guessed: how many times as long as a run the first guess of it is.
    """

    def __init__(
        self,
        table: Table | Recorded,
        *,
        budget_s: float = FOREVER_S,
        noise: Noise = QUIET,
        seed: int = 0,
        voids: float = 0.0,
        void_runs: Container[int] = (),
        cut: Container[int] = (),
        check_s: float = 0.0,
        stop_after: int | None = None,
        spent_s: float = 0.0,
        cold_s: Mapping[str, float] = MappingProxyType({}),
        switch_sd: float | None = None,
        guessed: float = 1.0,
    ) -> None:
        self.table = table
        self.clock_s = spent_s
        self.ran: list[tuple[str, Phase, int]] = []
        self.checked: list[str] = []
        self.guarded: dict[str, Guarded] = {}
        self._budget_s = budget_s
        self._noise = noise
        self._rng = np.random.default_rng([20261, seed])
        self._logs = noise.draw(self._rng, 512)
        self._voids, self._check_s = voids, check_s
        self._void_runs, self._cut = void_runs, cut
        self._stop_after = stop_after
        self._took_s: dict[str, float] = {}
        self._cold_s = cold_s
        self._switch_sd, self._guessed = switch_sd, guessed
        self.side = lane_order.SideBySide()
        self.journal = Journal(study_of([]))
        self.planned: dict[str, object] = {"unit": "s/sample"}
        self.switched: list[str] = []
        self.tested: list[str] = []
        self.begun_s: dict[str, float] = {}

    def all_lanes(self) -> list[lanes.Lane]:
        return [lanes.WHOLE]

    def run(self, arm: Arm, phase: Phase, block: int, lane: lanes.Lane = lanes.WHOLE) -> Trial:
        trial = self.made(arm, phase, block, lane)
        with self.journal.lock:
            if phase != "pilot":
                # The first run that is measured fixes what all have in common, as of a real one.
                self.journal.keep(_planned(self.journal.document, self.planned))
            self.journal.add(trial)
        return trial

    def made(self, arm: Arm, phase: Phase, block: int, lane: lanes.Lane = lanes.WHOLE) -> Trial:
        if self._stop_after is not None and len(self.ran) >= self._stop_after:
            raise KeyboardInterrupt
        if len(self.ran) >= len(self._logs):
            self._logs = np.concatenate([self._logs, self._noise.draw(self._rng, 512)])
        log = float(self._logs[len(self.ran)])
        self.ran.append((arm.key, phase, block))
        began_s, ended = self.clock_s, self.table.end(arm)
        if ended not in ("measured", "wrong-results", "unchecked"):
            self.clock_s += self.table.start_s
            return Trial(
                arm=arm.key,
                phase=phase,
                block=block,
                ended=ended,
                began_s=began_s,
                wall_s=self.table.start_s,
                detail=f"planned: {ended}",
            )
        number = sum(one == "confirm" for _, one, _ in self.ran) if phase == "confirm" else 0
        if number in self._cut:
            wall_s = max(0.0, self.left_s()) + self.run_s(arm) / 2
            self.clock_s += wall_s
            return Trial(
                arm=arm.key,
                phase=phase,
                block=block,
                ended="timeout",
                void="the time ran out before it was done",
                began_s=began_s,
                wall_s=wall_s,
            )
        void = number in self._void_runs or (bool(self._voids) and self._rng.random() < self._voids)
        value = self.table.value(arm, self._rng) * math.exp(log) * (1.2 if void else 1.0)
        warm_s = self.table.start_s + self.table.window_s * value / self.table.base
        cold_s = self._cold_s.get(arm.key, 0.0)
        self._took_s[arm.key] = warm_s + cold_s / 2
        wall_s = warm_s + (cold_s if phase == "pilot" else cold_s / 2)
        self.clock_s += wall_s
        return Trial(
            arm=arm.key,
            phase=phase,
            block=block,
            ended="measured",
            value=value,
            void=OTHERS if void else "",
            began_s=began_s,
            wall_s=wall_s,
            time_to_first_step_s=self.table.start_s,
            run=f"{len(self.ran):04d}",
        )

    def check(self, arm: Arm) -> Trial | None:
        if arm.key not in self.checked:
            self.clock_s += self._check_s * (1 if self.checked else 2)
        self.checked.append(arm.key)
        if (ended := self.table.end(arm)) not in ("wrong-results", "unchecked"):
            self.guarded[arm.key] = Guarded(
                arm=arm.key, what="losses", difference=0.0, own=0.0, tolerance=0.1, num_values=24, ok=True
            )
            self.journal.update(guarded=list(self.guarded.values()))
            return None
        wrong = Trial(arm=arm.key, phase="pilot", block=0, ended=ended, detail=f"planned: {ended}")
        self.journal.add(wrong)
        return wrong

    def check_s(self, arm: Arm) -> float:
        return 0.0 if arm.key in self.checked else self._check_s * (1 if self.checked else 2)

    def compile_beside(self, arm: Arm) -> None:
        """A second start compiles from now on."""
        self.begun_s[arm.key] = self.clock_s

    def wait_for_compiled(self, limit_s: float) -> None:
        for key, begun_s in self.begun_s.items():
            ready_s = begun_s + self.table.start_s + self._cold_s.get(key, 0.0)
            waited_s = min(max(0.0, ready_s - self.clock_s), limit_s)
            self.clock_s += waited_s
            if self.clock_s >= ready_s:
                self._cold_s = {**self._cold_s, key: 0.0}
        self.begun_s.clear()

    def switch(self, arms: Sequence[Arm], limit_s: float) -> list[Estimate]:
        """Each block of an arm takes an eighth of a window of the baseline."""
        if self._switch_sd is None:
            return []
        block_s = len(arms) * self.table.window_s / SWITCH_BLOCKS
        num = min(SWITCH_BLOCKS, int(limit_s / block_s))
        self.clock_s += num * block_s
        self.switched += [one.key for one in arms]
        running = [one for one in arms if self.table.end(one) == "measured"]
        if num < FEWEST_BLOCKS:
            return []
        return [estimate(one.key, [self._block(one, number) for number in range(num)]) for one in running]

    def test(
        self, arm: Arm, plan: Comparison, error: float, limit_s: float, first_s: float = math.inf
    ) -> Tested:
        """Blocks as those of `switch`, one arm's alone; an arm that takes longer the first time does so
        before them."""
        if self._switch_sd is None:
            return Tested(reason="nothing can be switched")
        self.tested.append(arm.key)
        if (ended := self.table.end(arm)) not in ("measured", "wrong-results", "unchecked"):
            blamed = tuple(one.knob for one in arm.settings if self.table.end(Arm((one,))) == ended)
            return Tested(reason="a call failed with it", blamed=blamed)
        block_s, blocks = self.block_s(), list[Block]()
        cold_s = self._cold_s.get(arm.key, 0.0)
        if cold_s + block_s > min(first_s, limit_s):
            self.clock_s += min(first_s, limit_s)
            return Tested(reason="it had no block in the time")
        self.clock_s += cold_s
        limit_s -= cold_s
        is_over = False
        while not is_over and len(blocks) < min(plan.max_pairs, int(limit_s / block_s)):
            blocks.append(self._block(arm, len(blocks)))
            judged = judge_comparison(plan, pairs_of(blocks), error=error, precision=TELLING)
            is_over = judged.finished or gains_nothing(arm.key, blocks, plan.margin)
        self.clock_s += len(blocks) * block_s
        if len(blocks) < MIN_PAIRS and not is_over:
            return Tested(reason="the time was too short")
        pairs = pairs_of(blocks)
        judged = judge_comparison(plan, pairs, error=error, precision=TELLING, ended=True)
        steady = BaselineShift(ratio=1.0, ci=(0.99, 1.01), num_blocks=len(pairs))
        return Tested(comparison=judged.conclude(plan, pairs=pairs, baseline_shift=steady))

    def _block(self, arm: Arm, number: int) -> Block:
        """Return a block of four stretches of one step each, whose noise has heavy tails, of variance 1."""
        assert self._switch_sd is not None
        noise = np.exp(self._switch_sd * self._rng.standard_t(3, 4) / math.sqrt(3))
        base_s, arm_s = self.table.base, self.table.base * math.exp(-self.table.gain(arm))
        first = orders(number + 1, 0)[number]
        return Block(
            arm=0, number=number, order="ABBA" if first == "baseline" else "BAAB", begin_s=0.0, end_s=1.0,
            baseline=[Stretch(base_s * float(one), 1, None) for one in noise[:2]],
            candidate=[Stretch(arm_s * float(one), 1, None) for one in noise[2:]],
        )  # fmt: skip

    def block_s(self) -> float:
        return self.table.window_s / SWITCH_BLOCKS

    def run_s(self, arm: Arm) -> float:
        # A first guess, as a diagnosis gives it; then what the arm's last run took.
        guess = self._guessed * (self.table.start_s + self.table.window_s)
        return self._took_s.get(arm.key, self._took_s.get("", guess))

    def least_run_s(self) -> float:
        is_known = self._took_s or self._guessed == 1.0
        return self.run_s(BASELINE) / (1.0 if is_known else FIRST_LAUNCH)

    def left_s(self) -> float:
        return self._budget_s - self.clock_s


def _planned(study: Study, planned: Mapping[str, object]) -> Study:
    """Return the study with what its first run fixes, of itself or of its runs."""
    of_study = {name: value for name, value in planned.items() if name in Study.__struct_fields__}
    of_run = {name: value for name, value in planned.items() if name not in of_study}
    return replace(study, run=replace(study.run, **of_run), **of_study)


class Kept(Journal[Study]):
    """A journal that remembers each state."""

    def __init__(self, document: Study) -> None:
        super().__init__(document)
        self.saved: list[Study] = []

    def keep(self, document_: Study) -> Study:
        self.saved.append(document_)
        return super().keep(document_)


def searched(study: Study | Journal[Study], bench: SimulatedBench, watcher: Silent | None = None) -> Study:
    bench.journal = study if isinstance(study, Journal) else Journal(study)
    return search(bench, watcher or Silent())
