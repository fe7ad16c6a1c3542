"""What is worth proving beside what: settings that spare the same work, and numbers of workers that gain as much."""

from __future__ import annotations

import pytest

from dynotune.schema.study import Study
from dynotune.search.study import search

from ..fakes import changed
from .simulated import Noise, Silent, SimulatedBench, Table, candidate, study_of

HALF, TF32, FUSED, IDLE = "precision.autocast=bf16", "matmul.fp32_precision=high", "fused=1", "idle=1"
FEW, MANY = "loader.num_workers=4", "loader.num_workers=12"


def tuned(table: Table, ids, *, num_runs: int, sd: float = 0.005, seed: int = 0, **asked) -> Study:
    candidates = [candidate(id_, group=_group_of(id_), needs_warm_cache=False) for id_ in ids]
    budget_s = num_runs * (table.start_s + table.window_s)
    bench = SimulatedBench(table, budget_s=budget_s, noise=Noise(sd=sd, stalls=0.0), seed=seed)
    study = changed(study_of(candidates, budget_s=budget_s, seed=seed), **asked)
    return search(study, bench, lambda study: None, Silent())


def _group_of(id_: str) -> str:
    return "input" if id_.startswith(("loader.", "host.")) else "kernels"


def recipe(study: Study) -> set[str]:
    return {str(setting) for setting in study.recipe or []}


# TF32 and autocast


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("tf32", [0.55, 0.64])
def test_a_short_tune_does_not_ask_what_tf32_adds_to_autocast(seed: int, tf32: float) -> None:
    table = Table({HALF: 0.65, TF32: tf32, FUSED: 0.1}, {frozenset({HALF, TF32}): -tf32})
    study = tuned(table, [TF32, HALF, FUSED, IDLE], num_runs=26, seed=seed)
    assert recipe(study) == {HALF, FUSED}
    assert all(TF32 not in ablation.dropped for ablation in study.ablations)
    assert study.outcomes[TF32].kind == "unproved"
    assert f"{HALF} spares the same work" in study.outcomes[TF32].reason


@pytest.mark.parametrize("seed", range(6))
def test_where_tf32_surely_gains_more_it_is_autocast_that_is_left_out(seed: int) -> None:
    table = Table({HALF: 0.3, TF32: 0.5, FUSED: 0.1}, {frozenset({HALF, TF32}): -0.3})
    assert recipe(tuned(table, [HALF, TF32, FUSED, IDLE], num_runs=26, seed=seed)) == {TF32, FUSED}


@pytest.mark.parametrize("seed", range(6))
def test_where_runs_do_not_tell_which_gains_more_it_is_autocast(seed: int) -> None:
    table = Table({HALF: 0.5, TF32: 0.5, FUSED: 0.2}, {frozenset({HALF, TF32}): -0.5})
    assert recipe(tuned(table, [HALF, TF32, FUSED, IDLE], num_runs=26, seed=seed)) == {HALF, FUSED}


@pytest.mark.parametrize("seed", range(3))
def test_where_runs_with_both_show_that_tf32_adds_to_autocast_both_are_proved(seed: int) -> None:
    table = Table({HALF: 0.6, TF32: 0.4, FUSED: 0.1}, {frozenset({HALF, TF32}): -0.2})
    assert recipe(tuned(table, [HALF, TF32, FUSED, IDLE], num_runs=150, seed=seed)) == {HALF, TF32, FUSED}


@pytest.mark.parametrize("seed", range(3))
def test_where_runs_with_both_show_that_tf32_adds_next_to_nothing_one_of_the_two_is_proved(seed: int) -> None:
    table = Table({HALF: 0.6, TF32: 0.6, FUSED: 0.1}, {frozenset({HALF, TF32}): -0.59})
    study = tuned(table, [HALF, TF32, FUSED, IDLE], num_runs=100, sd=0.02, seed=seed)
    assert any({HALF, TF32} <= set(map(str, joint)) for joint in study.joint_arms or [])
    assert len(recipe(study) & {HALF, TF32}) == 1


def test_a_rival_that_gave_way_to_what_turns_out_too_unsure_has_its_turn() -> None:
    table = Table({TF32: 0.05, HALF: 0.03, FUSED: 0.1}, {frozenset({TF32, HALF}): -0.03})
    found = [recipe(tuned(table, [TF32, HALF, FUSED], num_runs=30, sd=0.01, seed=seed)) for seed in range(20)]
    assert sum(TF32 in one for one in found) >= 6


# Numbers of workers


@pytest.mark.parametrize("seed", range(6))
def test_of_numbers_of_workers_that_gain_as_much_the_largest_is_taken(seed: int) -> None:
    table = Table({FEW: 0.8, MANY: 0.8, FUSED: 0.1})
    assert recipe(tuned(table, [FEW, MANY, FUSED, IDLE], num_runs=40, seed=seed)) == {MANY, FUSED}


@pytest.mark.parametrize("seed", range(6))
def test_where_noise_may_make_the_difference_the_largest_number_is_taken(seed: int) -> None:
    table = Table({FEW: 0.81, MANY: 0.8, FUSED: 0.3})
    assert MANY in recipe(tuned(table, [FEW, MANY, FUSED], num_runs=24, sd=0.01, seed=seed))


@pytest.mark.parametrize(("num_runs", "many"), [(24, 0.6), (40, 0.7)])
@pytest.mark.parametrize("seed", range(6))
def test_more_workers_that_surely_gain_less_are_not_taken(num_runs: int, many: float, seed: int) -> None:
    table = Table({FEW: 0.8, MANY: many, FUSED: 0.1})
    assert recipe(tuned(table, [FEW, MANY, FUSED, IDLE], num_runs=num_runs, seed=seed)) == {FEW, FUSED}


@pytest.mark.parametrize("seed", range(6))
def test_more_workers_that_cost_something_beside_the_others_are_not_taken(seed: int) -> None:
    threads = "host.num_threads=4"
    table = Table({FEW: 0.3, MANY: 0.3, threads: 0.2}, {frozenset({MANY, threads}): -0.15})
    assert recipe(tuned(table, [FEW, MANY, threads], num_runs=60, seed=seed)) == {FEW, threads}


def test_where_nothing_else_may_shorten_the_step_workers_are_taken_by_what_they_gain() -> None:
    assert recipe(tuned(Table({FEW: 0.803, MANY: 0.8}), [FEW, MANY], num_runs=40, sd=0.0005)) == {FEW}


@pytest.mark.parametrize(("objective", "taken"), [("throughput", MANY), ("memory", FEW)])
def test_room_for_a_shorter_step_is_worth_something_where_steps_are_what_counts(objective: str, taken: str) -> None:
    table = Table({FEW: 0.803, MANY: 0.8, FUSED: 0.1})
    study = tuned(table, [FEW, MANY, FUSED], num_runs=40, sd=0.0005, objective=objective)
    assert recipe(study) == {taken, FUSED}
