"""What the blocks of an ablation leave open."""

from __future__ import annotations

import math
from random import Random

import pytest
from msgspec.structs import replace

from dynotune.schema.setting import Setting
from dynotune.schema.study import Ablation, Study, Trial
from dynotune.search import layout
from dynotune.search.ablation import outcome
from dynotune.search.running import Search
from dynotune.search.study import search

from .simulated import Noise, Silent, SimulatedBench, Table, candidate, study_of
from .test_search import recipe, run, tuned

CANDIDATES = [candidate(id_, needs_warm_cache=False) for id_ in ("big=1", "small=1")]
TABLE = Table({"big=1": 1.5, "small=1": 0.12})
NOISE = Noise(sd=0.05, stalls=0.0)


def open_after_the_plan(seed: int, **bench: object) -> tuple[Study, SimulatedBench, Silent]:
    """One that makes it 4.5 times as fast, one that adds 13%, and runs that differ by 5%."""
    return run(study_of(CANDIDATES, budget_s=230.0, seed=seed), TABLE, budget_s=230.0, noise=NOISE, **bench)


def test_what_the_planned_blocks_leave_open_has_more_where_these_and_the_proof_fit() -> None:
    for seed in (4, 6, 8):
        study, bench, watcher = open_after_the_plan(seed)
        (ablation,) = study.ablations
        assert ablation.undecided == ["small=1"] and ablation.num_extra_blocks
        more = {key for key, phase, at in bench.ran if phase == "ablate" and at > ablation.num_blocks}
        assert more == {"big=1 small=1", "big=1"}, "what is decided takes no more time"
        assert recipe(study) == {"big=1", "small=1"}
        assert study.confirmed is not None and study.confirmed.num_pairs >= 4
        assert bench.clock_s <= 230.0
        assert any(text.startswith("Open: small=1, in ") for text in watcher.said)


def test_what_stayed_after_the_planned_blocks_stays_whatever_more_of_them_say() -> None:
    study, bench, _ = open_after_the_plan(4)
    (ablation,) = study.ablations
    work = Search(study, bench, lambda study: None, Silent())
    early, late = outcome(work, replace(ablation, num_extra_blocks=0, undecided=[])), outcome(work, ablation)
    assert early.stays("big=1") and not early.stays("small=1")
    assert late.ps["big=1"] == early.ps["big=1"] and late.stays("small=1")


def test_what_adds_nothing_is_seldom_given_more_and_seldom_kept() -> None:
    candidates = [candidate(id_, needs_warm_cache=False) for id_ in ("big=1", "idle=1")]
    kept = 0
    for seed in range(40):
        found = tuned(Table({"big=1": 1.5}), candidates, budget_s=230.0, noise=NOISE, seed=seed)
        kept += "idle=1" in recipe(found)
    assert kept <= 4


def test_without_time_for_more_nothing_more_is_planned() -> None:
    for seed in range(8):
        found = tuned(TABLE, CANDIDATES, budget_s=150.0, noise=NOISE, seed=seed)
        assert all(ablation.num_extra_blocks == 0 for ablation in found.ablations)


@pytest.mark.parametrize("stop_after", range(8, 30, 2))
def test_more_blocks_that_were_stopped_go_on(stop_after: int) -> None:
    whole, _, _ = open_after_the_plan(4)
    kept = [study_of(CANDIDATES, budget_s=230.0, seed=4)]
    bench = SimulatedBench(TABLE, seed=4, budget_s=230.0, noise=NOISE, stop_after=stop_after)
    try:
        kept.append(search(kept[0], bench, kept.append, Silent()))
    except KeyboardInterrupt:
        bench = SimulatedBench(TABLE, seed=4, budget_s=230.0, noise=NOISE, spent_s=bench.clock_s)
        kept.append(search(kept[-1], bench, kept.append, Silent()))
    runs = [(trial.arm, trial.phase, trial.block) for trial in kept[-1].trials]
    assert len(runs) == len(set(runs)), "nothing is run twice"
    assert "big=1" in recipe(kept[-1]) and len(whole.ablations) == 1


class FailsLater(SimulatedBench):
    """An arm fails once, in the first of the further blocks."""

    fails = ""

    def run(self, arm, phase, block):
        trial = super().run(arm, phase, block)
        failed_before = any(key == self.fails and at == 3 for key, of, at in self.ran[:-1] if of == "ablate")
        if (arm.key, phase, block) != (self.fails, "ablate", 3) or failed_before:
            return trial
        return replace(trial, ended="out-of-memory", value=None, detail="planned")


def after_a_failure(fails: str, candidates, table: Table, seed: int) -> Study:
    bench = FailsLater(table, seed=seed, budget_s=330.0, noise=NOISE)
    bench.fails = fails
    return search(study_of(candidates, budget_s=330.0, seed=seed), bench, lambda study: None, Silent())


def test_where_the_whole_fails_in_more_blocks_what_stayed_before_stays() -> None:
    candidates = [candidate(id_, needs_warm_cache=False) for id_ in ("big=1", "mid=1", "small=1")]
    table = Table({"big=1": 1.5, "mid=1": 0.6, "small=1": 0.1})
    opened = 0
    for seed in range(24):
        study = after_a_failure("big=1 mid=1 small=1", candidates, table, seed)
        if study.ablations and study.ablations[0].num_extra_blocks:
            opened += 1
            assert len(study.ablations) == 1 and recipe(study) == {"big=1", "mid=1"}
    assert opened


def test_what_ran_and_failed_once_later_shows_nothing_to_be_needed() -> None:
    opened = 0
    for seed in range(24):
        study = after_a_failure("big=1", CANDIDATES, TABLE, seed)
        if any(trial.ended == "out-of-memory" for trial in study.trials):
            opened += 1
            assert "does not run" not in study.outcomes["small=1"].reason
    assert opened


def test_a_setting_that_adds_nothing_stays_at_all_its_looks_together_in_at_most_5_percent() -> None:
    """Holm tests the idle setting at the full level, as the other one is surely worth its place."""
    whole = [Setting("big", 1), Setting("idle", 1)]
    ablation = Ablation(whole, ["big=1", "idle=1"], 1, 4, undecided=["idle=1"], num_extra_blocks=6)
    of_arms = {"": 0.0, "big=1": -0.9, "idle=1": 0.0, "big=1 idle=1": -0.9}
    random, num_studies, num_kept = Random(7), 1000, 0
    for _ in range(num_studies):
        trials = [
            Trial(arm=key, phase="ablate", block=block, ended="measured", value=math.exp(log + random.gauss(0, 0.05)))
            for block in range(1, 11)
            for key, log in of_arms.items()
            if block <= 4 or key in ("big=1", "big=1 idle=1")
        ]
        study = replace(study_of(CANDIDATES), trials=trials, ablations=[ablation])
        work = Search(study, SimulatedBench(TABLE), lambda study: None, Silent())
        num_kept += outcome(work, ablation).stays("idle=1")
    assert num_kept <= 0.05 * num_studies + 2 * math.sqrt(0.05 * 0.95 * num_studies)


def test_the_levels_of_the_looks_sum_to_no_more_than_the_error() -> None:
    """So the promise holds even if the second look is on blocks of its own."""
    assert 0 < layout.level(0) < layout.level(1)
    assert layout.level(0) + layout.level(1) <= layout.ERROR
