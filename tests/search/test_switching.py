"""Settings that can change at any step: known from within one process, and proved in fresh ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dynotune.schema.study import Candidate, Ended, Estimate, Phase, Study, Trial
from dynotune.search.bench import Arm
from dynotune.search.budget import ToTry, afforded, to_try
from dynotune.search.fates import verdict
from dynotune.search.model import PROCESS_SD, Model
from dynotune.search.study import search
from dynotune.search.switching import switched, told

from .simulated import Noise, Silent, SimulatedBench, Table, candidate, study_of

AUTOCAST, TF32, PIN = "precision.autocast=bf16", "matmul.fp32_precision=high", "loader.pin_memory=true"
# A training in float32: either of two settings speeds its products up, and pinned memory helps once one of them did.
TRAINING = Table(
    {AUTOCAST: 0.685, TF32: 0.574},
    {frozenset([AUTOCAST, TF32]): -0.63, frozenset([AUTOCAST, PIN]): 0.09},
    start_s=9.0, window_s=6.0,
)  # fmt: skip
KERNELS = [
    candidate(AUTOCAST, group="kernels", in_process=True, needs_warm_cache=False),
    candidate(TF32, group="kernels", in_process=True, needs_warm_cache=False),
]
OTHER = candidate(PIN, group="input", needs_warm_cache=False)


def tuned(
    candidates: Sequence[Candidate] = (*KERNELS, OTHER), *, budget_s: float = 550.0, seed: int = 0,
    table: Table = TRAINING, screen_sd: float | None = 0.01,
) -> tuple[Study, SimulatedBench]:  # fmt: skip
    bench = SimulatedBench(
        table, budget_s=budget_s, noise=Noise(sd=0.025), seed=seed, check_s=14.0, screen_sd=screen_sd
    )
    study = search(study_of(candidates, budget_s=budget_s, seed=seed), bench, lambda study: None, Silent())
    return study, bench


def recipe(study: Study) -> set[str]:
    return {str(setting) for setting in study.recipe or []}


# What is worth proving


def test_of_two_that_do_the_same_the_time_goes_into_the_proof_of_one_not_into_what_the_other_adds() -> None:
    nearly_the_same = {frozenset([AUTOCAST, TF32]): 0.695 - 0.685 - 0.574}
    table = Table({AUTOCAST: 0.685, TF32: 0.574}, nearly_the_same, start_s=9.0, window_s=6.0)
    for seed in range(5):
        study, _ = tuned(KERNELS, table=table, budget_s=400.0, seed=seed, screen_sd=0.003)
        assert recipe(study) == {AUTOCAST} and study.ablations == []


@pytest.mark.parametrize("budget_s", [232.0, 244.0, 300.0])
def test_where_the_time_proves_one_setting_it_is_that_which_gains_most_by_itself(budget_s: float) -> None:
    """Each of the first two adds less to the other than the third does."""
    together = {frozenset([AUTOCAST, TF32]): 0.68 - 0.65 - 0.64}
    table = Table({AUTOCAST: 0.65, TF32: 0.64, PIN: 0.12}, together, start_s=9.0, window_s=6.0)
    for seed in range(6):
        study, _ = tuned(table=table, budget_s=budget_s, seed=seed)
        assert recipe(study) & {AUTOCAST, TF32}


# What is screened


def test_those_of_one_group_are_switched_alone_and_together() -> None:
    _, bench = tuned()
    assert bench.screened == [AUTOCAST, TF32, f"{TF32} {AUTOCAST}"]


def test_two_values_of_a_knob_are_never_together_and_arms_are_few() -> None:
    knobs = [candidate(f"{name}={value}", group="kernels", in_process=True) for name in "abc" for value in "12"]
    _, bench = tuned(knobs, table=Table())
    assert bench.screened[:6] == [one.id for one in knobs] and len(bench.screened) == 8
    for key in bench.screened:
        names = [word.partition("=")[0] for word in key.split()]
        assert len(set(names)) == len(names)


def test_what_interacts_with_nothing_is_switched_alone() -> None:
    _, bench = tuned([candidate("a=1", in_process=True), candidate("b=1", in_process=True)], table=Table())
    assert bench.screened == ["a=1", "b=1"]


def test_one_setting_alone_is_proved_at_once() -> None:
    study, bench = tuned(KERNELS[:1])
    assert bench.screened == [] and recipe(study) == {AUTOCAST}


def test_where_the_time_holds_little_more_than_a_proof_nothing_that_interacts_is_screened() -> None:
    _, bench = tuned(budget_s=15.0 + 8 * 15.0 + 20.0)
    assert bench.screened == []


def test_it_happens_once_in_a_study_whatever_the_sittings() -> None:
    saved: list[Study] = []
    first = SimulatedBench(TRAINING, budget_s=550.0, noise=Noise(sd=0.025), screen_sd=0.01, stop_after=3)
    with pytest.raises(KeyboardInterrupt):
        search(study_of([*KERNELS, OTHER], budget_s=550.0), first, saved.append, Silent())
    second = SimulatedBench(
        TRAINING, budget_s=550.0, noise=Noise(sd=0.025), seed=1, spent_s=first.clock_s, screen_sd=0.01
    )
    study = search(saved[-1], second, saved.append, Silent())
    assert first.screened and not second.screened and AUTOCAST in recipe(study)


def test_what_was_best_within_one_process_is_said_and_that_it_is_not_proved() -> None:
    watcher = Silent()
    bench = SimulatedBench(TRAINING, budget_s=550.0, noise=Noise(sd=0.025), screen_sd=0.01)
    search(study_of([*KERNELS, OTHER], budget_s=550.0), bench, lambda study: None, watcher)
    (said_,) = [text for text in watcher.said if "within one process" in text]
    assert AUTOCAST in said_ and "to be proved" in said_
    idle = Silent()
    search(
        study_of(KERNELS, budget_s=550.0),
        SimulatedBench(Table(), budget_s=550.0, screen_sd=0.001),
        lambda study: None,
        idle,
    )
    assert any("nothing was faster" in text for text in idle.said)


# What it is good for


def test_what_was_screened_has_no_run_of_a_race_alone_and_is_proved_in_fresh_processes() -> None:
    study, _ = tuned()
    raced = [trial.arm for trial in study.trials if trial.phase == "race"]
    assert raced.count("") == 1 and PIN in raced and not {AUTOCAST, TF32} & set(raced)
    assert study.confirmed is not None and study.confirmed.verdict == "faster" and study.confirmed.num_pairs >= 2


def test_the_time_that_it_saves_proves_what_helps_beside_the_best() -> None:
    with_it = [recipe(tuned(seed=seed)[0]) for seed in range(12)]
    without = [recipe(tuned(seed=seed, screen_sd=None)[0]) for seed in range(12)]
    assert all(AUTOCAST in found for found in [*with_it, *without])
    assert sum(PIN in found for found in with_it) >= sum(PIN in found for found in without) + 4


def test_what_helps_alone_and_adds_nothing_beside_the_recipe_is_not_needed() -> None:
    study, _ = tuned()
    fate = study.outcomes[TF32]
    assert fate.kind == "not-needed" and f"not beside {AUTOCAST}" in fate.reason


@pytest.mark.parametrize("seed", range(4))
def test_where_one_process_says_what_fresh_ones_do_not_nothing_is_proved(seed: int) -> None:
    class Mistaken(SimulatedBench):
        def screen(self, candidates: Sequence[Arm], left_s: float) -> list[Estimate]:
            ci = (1.28, 1.32)
            return [
                Estimate(arm=one.key, against="", phase="screen", speedup=1.3, ci=ci, num_blocks=8)
                for one in candidates
            ]

    bench = Mistaken(Table(), budget_s=600.0, noise=Noise(sd=0.02), seed=seed)
    study = search(study_of(KERNELS, budget_s=600.0, seed=seed), bench, lambda study: None, Silent())
    assert not study.recipe and study.finished


@given(st.integers(0, 10_000), st.floats(60.0, 900.0))
def test_the_deadline_holds_and_every_setting_has_a_fate(seed: int, budget_s: float) -> None:
    study, bench = tuned(budget_s=budget_s, seed=seed)
    assert bench.clock_s <= budget_s + 30.0
    assert set(study.outcomes) == {one.id for one in study.candidates} and study.verdict


def test_idle_settings_that_can_change_at_any_step_come_into_hardly_any_recipe() -> None:
    idle = [candidate(f"idle{at}=1", group="kernels" if at % 2 else "", in_process=True) for at in range(6)]
    found = [recipe(tuned(idle, seed=seed, table=Table(), budget_s=900.0)[0]) for seed in range(40)]
    assert sum(bool(one) for one in found) <= 3


# What is planned


def test_what_is_known_costs_no_run_of_its_own() -> None:
    estimate = Estimate(arm=TF32, against="", phase="screen", speedup=1.8, ci=(1.7, 1.9), num_blocks=8)
    study = study_of([*KERNELS, OTHER])
    assert to_try(study)[:2] == (3, 0)
    known = to_try(replace(study, estimates=[estimate]))
    assert (known.num_alone, known.num_beside, known.num_known) == (2, 0, 1)


@given(st.floats(1.0, 5000.0), st.floats(1.0, 60.0), st.integers(0, 6), st.integers(0, 6))
def test_a_plan_never_sets_aside_more_than_there_is(left_s: float, run_s: float, num: int, known: int) -> None:
    plan = afforded(left_s, run_s, ToTry(num, num_known=known))
    spent = plan.num_arms + 2 * plan.num_pairs + plan.num_ablation_runs
    assert plan.num_pairs == 0 or spent <= plan.num_runs
    assert plan.text.endswith(".") and "all 0" not in plan.text and "0 of" not in plan.text


def test_what_all_is_known_of_leaves_the_time_to_the_proofs() -> None:
    plan = afforded(400.0, 10.0, ToTry(0, num_known=2))
    assert plan.num_arms == 0 and plan.num_pairs >= 4 and plan.num_ablation_runs >= 10
    few = afforded(90.0, 10.0, ToTry(0, num_known=2))
    assert few.num_pairs == 4 and few.num_ablation_runs == 0
    assert afforded(50.0, 10.0, ToTry(0, num_known=2)).num_pairs == 0


# What the model makes of it


def model(told_: Sequence[Estimate], trials: Sequence[Trial] = ()) -> Model:
    arms = {"": frozenset[str]()} | dict(switched(KERNELS))
    return Model(KERNELS, arms, trials, told_)


def said(key: str, speedup: float, reach: float, num_blocks: int = 8) -> Estimate:
    ci = (speedup * math.exp(-reach), speedup * math.exp(reach))
    return Estimate(arm=key, against="", phase="screen", speedup=speedup, ci=ci, num_blocks=num_blocks)


@given(st.floats(0.5, 3.0), st.floats(1e-4, 0.05))
def test_what_one_process_says_is_believed_to_within_its_interval_and_what_fresh_ones_differ_by(
    speedup: float, reach: float
) -> None:
    gain = model([said(TF32, speedup, reach)]).gain(frozenset([TF32]))
    assert abs(gain.log - math.log(speedup)) <= 4 * (reach + PROCESS_SD) and gain.num_blocks == 8
    assert 0 < gain.se <= reach + PROCESS_SD
    assert gain.lower(0.025) <= math.log(speedup) + 1e-9 or speedup < 1


def test_of_both_together_it_tells_what_one_adds_beside_the_other() -> None:
    both = f"{TF32} {AUTOCAST}"
    found = model([said(AUTOCAST, 2.0, 0.01), said(TF32, 1.8, 0.01), said(both, 1.9, 0.01)])
    adds = found.gain(frozenset([AUTOCAST, TF32]), frozenset([AUTOCAST]))
    assert adds.upper(0.05) < 0.0 < found.gain(frozenset([TF32])).lower(0.025)
    assert found.is_told(TF32) and not found.is_told(PIN)


def test_without_an_interval_it_says_nothing() -> None:
    found = model([Estimate(arm=TF32, against="", phase="screen", speedup=2.0, ci=None, num_blocks=1)])
    assert found.gain(frozenset([TF32])).num_blocks == 0 and not found.is_told(TF32) and found.num_runs == 0


def test_only_what_stands_against_the_baseline_counts() -> None:
    raced = Estimate(arm=TF32, against="", phase="race", speedup=2.0, ci=None, num_blocks=1)
    beside = Estimate(arm=AUTOCAST, against=TF32, phase="screen", speedup=2.0, ci=None, num_blocks=8)
    study = study_of(KERNELS)
    assert told(replace(study, estimates=[raced, beside])) == {}


# Where one process misleads


class OnlyThere(SimulatedBench):
    """In turns within one process every arm runs, whatever becomes of it in one of its own."""

    def screen(self, candidates: Sequence[Arm], left_s: float) -> list[Estimate]:
        self.clock_s += self.table.start_s + self.table.window_s
        return [self._screened(one, 8) for one in candidates]


@pytest.mark.parametrize("end", ["failed", "out-of-memory", "rejected"])
def test_where_the_best_does_not_start_in_a_process_of_its_own_the_next_best_is_proved(end: Ended) -> None:
    table = Table({AUTOCAST: 0.4, TF32: 0.2}, ends={frozenset([AUTOCAST]): end}, start_s=9.0, window_s=6.0)
    bench = OnlyThere(table, budget_s=900.0, noise=Noise(sd=0.01), screen_sd=0.01)
    study = search(study_of(KERNELS, budget_s=900.0), bench, lambda study: None, Silent())
    assert recipe(study) == {TF32} and study.outcomes[AUTOCAST].kind == end


def test_where_what_was_to_be_proved_fails_that_is_said_and_not_that_the_time_was_short() -> None:
    ended = Trial(arm=AUTOCAST, phase="ablate", block=1, ended="out-of-memory", detail="CUDA out of memory")
    study = replace(study_of(KERNELS), selected=[KERNELS[0].setting], trials=[ended])
    text = verdict(study, None)
    assert "memory ran out with it" in text and "too short" not in text
    assert "too short" in verdict(replace(study, trials=[replace(ended, ended="measured", value=1.0)]), None)


@pytest.mark.parametrize("seed", range(6))
def test_of_a_rival_that_ran_once_a_stalled_baseline_drops_nothing_that_is_known(seed: int) -> None:
    class Stalled(SimulatedBench):
        def run(self, arm: Arm, phase: Phase, block: int) -> Trial:
            trial = super().run(arm, phase, block)
            stalled = trial.value is not None and phase == "race" and not arm.settings
            return replace(trial, value=1.2 * trial.value) if stalled and trial.value else trial

    other = candidate("precision.autocast=fp16", group="kernels", needs_warm_cache=False)
    table = Table({AUTOCAST: 0.05}, start_s=9.0, window_s=6.0)
    bench = Stalled(table, budget_s=900.0, noise=Noise(sd=0.01), seed=seed, screen_sd=0.01)
    study = search(study_of([*KERNELS, other], budget_s=900.0, seed=seed), bench, lambda study: None, Silent())
    assert study.outcomes[AUTOCAST].kind in ("proved", "unproved")


@pytest.mark.parametrize("budget_s", [170.0, 180.0])
def test_what_was_seen_to_be_slower_does_not_take_the_turn_of_what_was_not_tried(budget_s: float) -> None:
    candidates = [KERNELS[0], candidate(PIN, group="input", needs_warm_cache=False)]
    study, _ = tuned(candidates, table=Table({AUTOCAST: -0.1, PIN: 0.3}, start_s=9.0, window_s=6.0), budget_s=budget_s)
    assert study.outcomes[PIN].kind != "not-tried"
    assert study.confirmed is None or [str(one) for one in study.confirmed.settings] != [AUTOCAST]


@pytest.mark.parametrize("budget_s", [185.0, 190.0])
@pytest.mark.parametrize("num", [2, 4])
def test_more_is_tried_only_where_the_proof_of_what_is_known_still_fits(budget_s: float, num: int) -> None:
    more = [candidate(f"x{at}=1", needs_warm_cache=False) for at in range(num)]
    table = Table({AUTOCAST: 0.5, TF32: 0.1}, {frozenset([AUTOCAST, TF32]): -0.1}, start_s=9.0, window_s=6.0)
    noise = Noise(sd=0.01, tails=0, stalls=0.0)
    bench = SimulatedBench(table, budget_s=budget_s, noise=noise, screen_sd=0.005)
    study = search(study_of([*KERNELS, *more], budget_s=budget_s), bench, lambda study: None, Silent())
    assert recipe(study) == {AUTOCAST}


def test_a_study_stopped_between_the_screening_and_its_fates_goes_on_as_one_that_was_not() -> None:
    quick = [candidate(f"{name}=1", in_process=name != "c", needs_warm_cache=False) for name in "abc"]
    table, saved = Table({"a=1": -0.2, "b=1": -0.3}, start_s=9.0, window_s=6.0), list[Study]()

    def save(study: Study) -> None:
        saved.append(study)
        if any(one.phase == "screen" for one in study.estimates):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first = SimulatedBench(table, budget_s=600.0, screen_sd=0.01)
        search(study_of(quick, budget_s=600.0), first, save, Silent())
    assert not saved[-1].outcomes
    second = SimulatedBench(table, budget_s=600.0, screen_sd=0.01, spent_s=first.clock_s)
    study = search(saved[-1], second, lambda study: None, Silent())
    assert all("within one process" in study.outcomes[id_].reason for id_ in ("a=1", "b=1"))
    assert not {"a=1", "b=1"} & {id_ for key, _, _ in second.ran for id_ in key.split()}
