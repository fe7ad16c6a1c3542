"""What is worth proving beside what: settings that spare the same work, and numbers of workers that gain as much."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dynotune.schema.study import Study
from dynotune.search.study import search

from .simulated import Noise, Silent, SimulatedBench, Table, candidate, study_of

HALF, TF32, FUSED, IDLE = "precision.autocast=bf16", "matmul.fp32_precision=high", "fused=1", "idle=1"
FEW, MANY = "loader.num_workers=4", "loader.num_workers=12"


def tuned(table: Table, ids, *, num_runs: int, sd: float = 0.005, seed: int = 0, **asked) -> Study:
    candidates = [candidate(id_, group="input" if "workers" in id_ else "kernels", warms=False) for id_ in ids]
    budget_s = num_runs * (table.start_s + table.window_s)
    bench = SimulatedBench(table, budget_s=budget_s, noise=Noise(sd=sd, stalls=0.0), seed=seed)
    study = replace(study_of(candidates, budget_s=budget_s, seed=seed), **asked)
    return search(study, bench, lambda study: None, Silent())


def recipe(study: Study) -> set[str]:
    return {str(setting) for setting in study.recipe or []}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("tf32", [0.55, 0.64])
def test_a_short_tune_does_not_ask_what_tf32_adds_to_autocast(seed: int, tf32: float) -> None:
    table = Table({HALF: 0.65, TF32: tf32, FUSED: 0.1}, {frozenset({HALF, TF32}): -tf32})
    study = tuned(table, [TF32, HALF, FUSED, IDLE], num_runs=26, seed=seed)
    assert recipe(study) == {HALF, FUSED}
    assert all(TF32 not in ablation.left_out for ablation in study.ablations)
    assert study.fates[TF32].kind == "unproved"
    assert f"{HALF} spares the same work" in study.fates[TF32].reason


@pytest.mark.parametrize("seed", range(6))
def test_where_tf32_surely_gains_more_it_is_autocast_that_is_left_out(seed: int) -> None:
    table = Table({HALF: 0.3, TF32: 0.5, FUSED: 0.1}, {frozenset({HALF, TF32}): -0.3})
    assert recipe(tuned(table, [HALF, TF32, FUSED, IDLE], num_runs=26, seed=seed)) == {TF32, FUSED}


@pytest.mark.parametrize("seed", range(3))
def test_where_runs_with_both_show_that_tf32_adds_to_autocast_both_are_proved(seed: int) -> None:
    table = Table({HALF: 0.6, TF32: 0.4, FUSED: 0.1}, {frozenset({HALF, TF32}): -0.2})
    assert recipe(tuned(table, [HALF, TF32, FUSED, IDLE], num_runs=150, seed=seed)) == {HALF, TF32, FUSED}


@pytest.mark.parametrize("seed", range(6))
def test_of_numbers_of_workers_that_gain_as_much_the_largest_is_taken(seed: int) -> None:
    table = Table({FEW: 0.8, MANY: 0.8, FUSED: 0.1})
    assert recipe(tuned(table, [FEW, MANY, FUSED, IDLE], num_runs=40, seed=seed)) == {MANY, FUSED}


@pytest.mark.parametrize("seed", range(6))
def test_more_workers_that_surely_gain_less_are_not_taken(seed: int) -> None:
    table = Table({FEW: 0.8, MANY: 0.7, FUSED: 0.1})
    assert recipe(tuned(table, [FEW, MANY, FUSED, IDLE], num_runs=40, seed=seed)) == {FEW, FUSED}


@pytest.mark.parametrize(("objective", "taken"), [("throughput", MANY), ("memory", FEW)])
def test_room_for_a_shorter_step_is_worth_something_where_steps_are_what_counts(objective: str, taken: str) -> None:
    table = Table({FEW: 0.803, MANY: 0.8, FUSED: 0.1})
    study = tuned(table, [FEW, MANY, FUSED], num_runs=40, sd=0.0005, objective=objective)
    assert recipe(study) == {taken, FUSED}
