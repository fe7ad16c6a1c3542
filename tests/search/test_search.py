"""From candidates to a recipe, on commands that are tables."""

from __future__ import annotations

import itertools
import math
import re

import pytest
from msgspec.structs import replace

from dynotune.schema import document
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Unknown
from dynotune.schema.study import Ablation, Ended, Estimate, Study, Trial
from dynotune.search.bench import Arm, arm
from dynotune.search.budget import ToTry, afforded
from dynotune.search.study import search

from ..fakes import changed
from .simulated import OTHERS, Noise, Silent, SimulatedBench, Table, candidate, study_of

# Without stalls: whether a proof succeeds among them is the benchmark's question.
SOME_NOISE = Noise(sd=0.003, stalls=0.0)
BUDGET_S = 1500.0


def tuned(table: Table, candidates, *, budget_s=BUDGET_S, noise=SOME_NOISE, seed=0, **bench) -> Study:
    return run(study_of(candidates, budget_s=budget_s, seed=seed), table, budget_s=budget_s, noise=noise, **bench)[0]


def run(study: Study, table: Table, **bench) -> tuple[Study, SimulatedBench, Silent]:
    watcher = Silent()
    made = SimulatedBench(table, seed=study.run.seed, **bench)
    return search(study, made, lambda study: None, watcher), made, watcher


def recipe(study: Study) -> set[str]:
    return {str(setting) for setting in study.recipe or []}


def fates(study: Study) -> dict[str, str]:
    return {id_: fate.kind for id_, fate in study.outcomes.items()}


IDLE = [candidate(f"idle{at}=1", needs_warm_cache=False) for at in range(6)]


# What is found


def test_a_setting_that_helps_is_proved_among_idle_ones_and_every_candidate_has_its_fate_in_a_sentence() -> None:
    study = tuned(Table({"good=1": 0.10}), [*IDLE, candidate("good=1")])
    assert recipe(study) == {"good=1"}
    assert study.confirmed is not None and study.confirmed.verdict == "faster"
    assert study.confirmed.speedup == pytest.approx(math.exp(0.10), rel=0.02)
    assert study.verdict.startswith("Proved: with good=1 it is ")
    assert set(study.outcomes) == {one.id for one in study.candidates}
    assert fates(study)["good=1"] == "proved"
    assert all(kind in ("no-effect", "unproved") for id_, kind in fates(study).items() if id_ != "good=1")
    for fate in study.outcomes.values():
        assert fate.reason.endswith(".") and any(character.isdigit() for character in fate.reason)


def test_several_settings_that_help_are_proved_one_by_one() -> None:
    gains = {"a=1": 0.20, "b=1": 0.08, "c=1": 0.05}
    study = tuned(Table(gains), [*IDLE, *map(candidate, gains)])
    assert recipe(study) == set(gains)
    added = {one.against: one for one in study.estimates if one.phase == "ablate" and one.against}
    for id_, gain in gains.items():
        rest = " ".join(sorted(set(gains) - {id_}))
        assert added[rest].speedup == pytest.approx(math.exp(gain), rel=0.03)
        assert added[rest].p is not None and added[rest].p <= 0.05
        assert added[rest].corrected_over >= 3


@pytest.mark.parametrize("seed", range(3))
def test_a_pair_that_helps_only_together_is_found(seed: int) -> None:
    pair = [candidate(f"workers={n}", group="loader") for n in (2, 4)]
    pair += [candidate(f"prefetch={n}", group="loader") for n in (2, 4)]
    table = Table({}, {frozenset({"workers=4", "prefetch=4"}): 0.15})
    assert recipe(tuned(table, [*IDLE, *pair], seed=seed)) == {"workers=4", "prefetch=4"}


@pytest.mark.parametrize("seed", range(3))
def test_of_a_pair_that_hurts_together_only_the_better_one_is_taken(seed: int) -> None:
    pair = [candidate("compile=1", group="graph"), candidate("channels_last=1", group="graph")]
    table = Table({"compile=1": 0.12, "channels_last=1": 0.08}, {frozenset({"compile=1", "channels_last=1"}): -0.2})
    assert recipe(tuned(table, [*IDLE, *pair], seed=seed)) == {"compile=1"}


@pytest.mark.parametrize("group", ["", "same"])
def test_of_two_settings_that_do_the_same_one_stays(group: str) -> None:
    twins = [candidate("one=1", group=group), candidate("other=1", group=group)]
    table = Table({"one=1": 0.10, "other=1": 0.10, "third=1": 0.08}, {frozenset({"one=1", "other=1"}): -0.10})
    study = tuned(table, [*twins, candidate("third=1"), *IDLE], budget_s=3000.0)
    assert "third=1" in recipe(study)
    assert len(recipe(study) & {"one=1", "other=1"}) == 1


def twins(budget_s: float, seed: int) -> Study:
    """Two that do the same, a third that gains less than either."""
    candidates = [candidate(id_, needs_warm_cache=False) for id_ in ("one=1", "other=1", "third=1")]
    table = Table({"one=1": 0.5, "other=1": 0.5, "third=1": 0.3}, {frozenset({"one=1", "other=1"}): -0.5})
    return tuned(table, [*candidates, *IDLE[:2]], budget_s=budget_s, noise=Noise(sd=0.02, stalls=0.0), seed=seed)


@pytest.mark.parametrize("seed", range(4))
def test_of_two_that_do_the_same_one_stays_where_the_time_holds_a_short_second_round_only(seed: int) -> None:
    study = twins(500.0, seed)
    assert [round_.num_blocks for round_ in study.ablations][1:] in ([2], [3])
    assert recipe(study) in ({"one=1", "third=1"}, {"other=1", "third=1"})


@pytest.mark.parametrize("seed", range(2, 6))
def test_what_gains_most_by_itself_stays_where_beside_what_does_much_of_the_same_it_adds_less(seed: int) -> None:
    gains = {"half=1": 1.6, "tf32=high": 1.05, "tf32=medium": 1.05}
    shared = {frozenset({"half=1", other}): -1.03 for other in ("tf32=high", "tf32=medium")}
    candidates = [candidate(id_, group="kernels", effect="numerics") for id_ in (*gains, "fused=1")]
    table = Table(gains, {**shared, frozenset({"half=1", "fused=1"}): 0.03})
    noise = Noise(sd=0.02, stalls=0.0)
    study = tuned(table, candidates, budget_s=220.0, noise=noise, seed=seed, check_s=10.0)
    assert len(study.ablations) == 1 and "half=1" in recipe(study)


@pytest.mark.parametrize("seed", range(1, 3))
def test_where_the_time_holds_no_second_round_what_gains_more_alone_is_proved_alone(seed: int) -> None:
    study = twins(350.0, seed)
    assert len(study.ablations) == 1 and recipe(study) in ({"one=1"}, {"other=1"})


BESIDE_WORKERS = {frozenset({"workers=8", "fused=1"}): 0.15, frozenset({"workers=8", "compile=1"}): 0.2}
HIDDEN = Table({"workers=8": 0.9}, BESIDE_WORKERS)


def hides_something(*, seed: int = 0, **bench) -> tuple[Study, SimulatedBench]:
    """Time for a race and one proof, in which nothing but the workers shows anything alone."""
    hidden = [candidate(id_, needs_warm_cache=id_ == "compile=1") for id_ in ("workers=8", "fused=1", "compile=1")]
    study = study_of([*hidden, *IDLE[:1]], budget_s=270.0, seed=seed)
    return run(study, bench.pop("table", HIDDEN), budget_s=270.0, noise=SOME_NOISE, **bench)[:2]


@pytest.mark.parametrize("seed", range(5))
def test_what_shows_only_once_the_step_is_shorter_is_proved_in_a_short_tune(seed: int) -> None:
    study, _ = hides_something(seed=seed)
    assert recipe(study) == {"workers=8", "fused=1", "compile=1"}, (seed, study.verdict, fates(study))
    assert study.confirmed is not None and study.confirmed.speedup == pytest.approx(math.exp(1.25), rel=0.02)


def test_what_compiles_runs_on_top_of_the_others_not_in_each_of_their_arms() -> None:
    study, bench = hides_something()
    first = study.ablations[0]
    assert [str(setting) for setting in first.added] == ["compile=1"]
    assert "compile=1" not in map(str, first.arm)
    warmed = [key for key, phase, _ in bench.ran if phase == "pilot" and "compile=1" in key]
    assert warmed == ["compile=1", arm([*first.arm, *first.added]).key]


def test_what_fails_on_top_of_the_others_is_said_and_they_stay() -> None:
    table = HIDDEN._replace(ends={frozenset({"workers=8", "compile=1"}): "out-of-memory"})
    study, _ = hides_something(table=table)
    assert recipe(study) == {"workers=8", "fused=1"}
    fate = study.outcomes["compile=1"]
    assert fate.kind == "out-of-memory" and fate.reason.startswith("On top of fused=1")


def test_where_the_whole_fails_what_was_to_run_on_top_of_it_has_its_turn_on_top_of_the_rest() -> None:
    table = HIDDEN._replace(ends={frozenset({"workers=8", "fused=1"}): "failed"})
    candidates = [candidate(id_, needs_warm_cache=id_ == "compile=1") for id_ in ("workers=8", "fused=1", "compile=1")]
    study = tuned(table, candidates, budget_s=260.0)
    assert [list(map(str, one.added)) for one in study.ablations] == [["compile=1"], ["compile=1"]]
    assert recipe(study) == {"workers=8", "compile=1"}


def test_what_can_gain_next_to_nothing_beside_the_others_either_is_not_hoped_for() -> None:
    bounded = [replace(candidate(id_, needs_warm_cache=False), bound=0.011) for id_ in ("fused=1", "pin=1")]
    study = tuned(Table({"workers=8": 0.3}), [candidate("workers=8", needs_warm_cache=False), *bounded], budget_s=200.0)
    assert recipe(study) == {"workers=8"} and study.ablations == []


def test_what_is_hoped_for_and_makes_results_wrong_costs_the_others_no_proof() -> None:
    wrong: dict[frozenset[str], Ended] = {frozenset({"fused=1"}): "wrong-results"}
    study, _ = hides_something(table=HIDDEN._replace(ends=wrong), check_s=10.0)
    assert recipe(study) == {"workers=8"}
    assert any("give wrong results together: workers=8 do not" in text for text in study.warnings)


def test_of_one_setting_and_what_runs_on_top_of_it_the_corrected_p_is_told() -> None:
    table = Table({"workers=8": 0.9}, {frozenset({"workers=8", "compile=1"}): 0.2})
    study = tuned(
        table,
        [candidate("workers=8", needs_warm_cache=False), candidate("compile=1", needs_warm_cache=True)],
        budget_s=230.0,
    )
    assert recipe(study) == {"workers=8", "compile=1"} and len(study.ablations[0].arm) == 1
    told = [one for one in study.estimates if one.phase == "ablate" and one.arm == "workers=8" and not one.against]
    assert [one.corrected_over for one in told] == [2]


@pytest.mark.parametrize("budget_s", [160.0, 180.0, 200.0])
def test_a_second_round_leaves_fresh_pairs_of_a_command_that_takes_longer_without_what_stays(budget_s: float) -> None:
    table = Table({"a=1": 1.0, "one=1": 0.25, "other=1": 0.25}, {frozenset({"one=1", "other=1"}): -0.25})
    table = table._replace(start_s=1.0, window_s=9.0)
    candidates = [candidate(id_, needs_warm_cache=False) for id_ in ("a=1", "one=1", "other=1")]
    for seed in range(8):
        study = tuned(table, candidates, budget_s=budget_s, noise=Noise(sd=0.02, stalls=0.0), seed=seed)
        assert "a=1" in recipe(study), (seed, study.verdict)
        assert len(study.ablations) < 2 or study.confirming == "confirm", seed


def test_what_was_beside_the_best_and_showed_nothing_is_not_hoped_for() -> None:
    study = tuned(Table({"workers=8": 0.9}), [candidate("workers=8"), *IDLE], budget_s=800.0)
    assert recipe(study) == {"workers=8"}
    joint = [set(map(str, one)) for one in study.joint_arms or []]
    met = set().union(*(one for one in joint if "workers=8" in one))
    assert not {id_ for one in study.ablations for id_ in one.dropped} & (met - {"workers=8"})


def test_of_several_values_of_a_knob_the_best_is_taken() -> None:
    values = {"workers=2": 0.05, "workers=4": 0.20, "workers=8": 0.10}
    study = tuned(Table(values), [*map(candidate, values), *IDLE])
    assert recipe(study) == {"workers=4"}
    assert fates(study)["workers=2"] == fates(study)["workers=8"] == "not-needed"


def test_what_makes_it_slower_is_said_to() -> None:
    study = tuned(Table({"bad=1": -0.10}), [*IDLE, candidate("bad=1")])
    assert recipe(study) == set()
    assert fates(study)["bad=1"] == "slower"
    assert "slower" in study.outcomes["bad=1"].reason
    assert study.confirmed is None or study.confirmed.verdict != "faster"


@pytest.mark.parametrize("seed", range(6))
def test_what_cannot_gain_the_margin_is_said_so_with_an_interval_below_it(seed: int) -> None:
    noise = Noise(sd=0.01, stalls=0.0)
    study = tuned(Table({"good=1": 0.1}), [*IDLE, candidate("good=1")], seed=seed, noise=noise, budget_s=3000.0)
    said = [fate.reason for fate in study.outcomes.values() if fate.reason.startswith("It cannot gain more than 1%")]
    for reason in said:
        high = re.search(r"to ([+−][\d.]+)%", reason)
        assert high is not None and float(high[1].replace("−", "-")) <= 1.0, reason
    assert seed or said


def test_before_the_noise_is_known_nothing_is_called_useless() -> None:
    wild = Noise(sd=0.05, stalls=0.0)
    for seed in range(8):
        study = tuned(Table({"good=1": 0.05}), [*IDLE, candidate("good=1")], seed=seed, noise=wild, budget_s=200.0)
        assert len(study.trials) > 8
        assert not {"no-effect", "slower"} & set(fates(study).values())


def test_where_nothing_helps_the_recipe_is_empty() -> None:
    studies = [tuned(Table(), IDLE, seed=seed, budget_s=800.0, noise=Noise(sd=0.02)) for seed in range(20)]
    assert sum(bool(study.recipe) for study in studies) <= 1
    assert all(study.finished and study.recipe is not None and study.verdict for study in studies)


def test_a_single_candidate_goes_straight_to_its_confirmation() -> None:
    study = tuned(Table({"good=1": 0.05}), [candidate("good=1")])
    assert recipe(study) == {"good=1"}
    assert {trial.phase for trial in study.trials} == {"pilot", "confirm"}


def test_without_candidates_there_is_nothing_to_try() -> None:
    study = tuned(Table(), [])
    assert study.verdict == "There was nothing to try." and study.recipe == [] and study.finished


# Proofs stand on runs that chose nothing


def test_the_confirmation_uses_its_own_runs_only_in_balanced_order() -> None:
    study = tuned(Table({"good=1": 0.10}), [*IDLE, candidate("good=1")])
    assert study.confirmed is not None
    values = {trial.value for trial in study.trials if trial.phase == "confirm"}
    others = {trial.value for trial in study.trials if trial.phase != "confirm"}
    used = {value for pair in study.confirmed.pairs for value in (pair.baseline_s, pair.candidate_s)}
    assert used == values and not used & others
    for first, second in itertools.batched(study.confirmed.pairs, 2) if hasattr(itertools, "batched") else ():
        assert first.first != second.first


def test_where_no_fresh_pairs_fit_the_blocks_that_show_what_each_adds_confirm_the_whole() -> None:
    table = Table({"a=1": 0.3, "b=1": 0.2})
    candidates = [candidate("a=1", needs_warm_cache=False), candidate("b=1", needs_warm_cache=False)]
    study = tuned(table, candidates, budget_s=135.0)
    assert recipe(study) == {"a=1", "b=1"} and study.verdict.startswith("Proved: ")
    assert study.confirming == "ablate" and not [trial for trial in study.trials if trial.phase == "confirm"]
    confirmed = study.confirmed
    assert confirmed is not None and confirmed.ci is not None and confirmed.ci[0] < math.exp(0.5) < confirmed.ci[1]
    in_blocks = [trial for trial in study.trials if trial.phase == "ablate" and trial.arm in ("", "a=1 b=1")]
    used = [value for pair in confirmed.pairs for value in (pair.baseline_s, pair.candidate_s)]
    assert sorted(used) == sorted(trial.value for trial in in_blocks if trial.value)
    for pair in confirmed.pairs:
        runs = [trial.run for trial in in_blocks]
        assert (pair.first == "baseline") == (runs.index(pair.baseline_run) < runs.index(pair.candidate_run))
    assert confirmed.baseline.s_per_sample and confirmed.candidate.time_to_first_step_s


def ablated(table: Table, *ids: str, blocks: int = 3, left_s: float = 0.0, **bench) -> Study:
    """A search whose next thing to do is to leave each of these settings out in turn, and that has no time beyond."""
    candidates = [candidate(id_, needs_warm_cache=False) for id_ in ids]
    settings = [one.setting for one in candidates]
    num_runs = blocks * len({arm(settings), arm([]), *(arm(settings).without(one.knob) for one in settings)})
    budget_s = 11.0 * num_runs + left_s
    round_ = Ablation(settings, list(ids), 1, blocks)
    raced = [
        Trial(
            arm=id_, phase="race", block=block, ended="measured", began_s=0.0, wall_s=0.0,
            value=0.1 * math.exp(-table.gains.get(id_, 0.0)),
        )
        for block in (1, 2)
        for id_ in ["", *ids]
    ]  # fmt: skip
    asked = replace(study_of(candidates, budget_s=budget_s), selected=settings, ablations=[round_], trials=raced)
    return run(asked, table, budget_s=budget_s, noise=SOME_NOISE, **bench)[0]


def test_what_is_left_without_one_setting_ran_in_the_blocks_too() -> None:
    study = ablated(Table({"a=1": 0.1, "b=1": 0.08}), "a=1", "b=1", "idle=1")
    assert recipe(study) == {"a=1", "b=1"} and study.confirming == "ablate"
    assert study.confirmed is not None and study.confirmed.speedup == pytest.approx(math.exp(0.18), rel=0.01)


def test_blocks_that_took_all_the_time_confirm() -> None:
    """Whether results are right is known, and asking again costs nothing."""
    for budget_s in range(119, 127):
        study = ablated(Table({"a=1": 0.1, "b=1": 0.08}), "a=1", "b=1", left_s=budget_s - 132.0)
        ran = [trial for trial in study.trials if trial.phase == "ablate"]
        assert recipe(study) == {"a=1", "b=1"}, (budget_s, len(ran), study.verdict)


def test_where_the_time_ends_inside_a_round_its_whole_blocks_stand() -> None:
    study = ablated(Table({"a=1": 0.1, "b=1": 0.08}), "a=1", "b=1", blocks=4, left_s=-25.0)
    assert len([trial for trial in study.trials if trial.phase == "ablate"]) < 16
    assert recipe(study) == {"a=1", "b=1"}
    assert study.confirmed is not None and study.confirmed.num_pairs in (3, 4)
    one_block = ablated(Table({"a=1": 0.1, "b=1": 0.08}), "a=1", "b=1", blocks=2, left_s=-20.0)
    # Of a block and a half, only those that ran in both tell something: the strongest alone.
    assert recipe(one_block) == {"a=1"}


def test_what_ran_in_no_block_is_not_proved_without_fresh_pairs() -> None:
    study = ablated(Table({"a=1": 0.1}), "a=1", "idle=1", "idle2=1")
    assert study.recipe == [] and "Nothing is proved" in study.verdict


def test_settings_that_earn_their_place_in_a_whole_no_better_than_the_baseline_are_in_no_recipe() -> None:
    table = Table({"a=1": -0.3, "b=1": -0.3}, {frozenset({"a=1", "b=1"}): 0.6})
    assert ablated(table, "a=1", "b=1").recipe == []


def test_where_fresh_pairs_fit_they_confirm() -> None:
    study = ablated(Table({"a=1": 0.1, "b=1": 0.08}), "a=1", "b=1", left_s=100.0)
    assert recipe(study) == {"a=1", "b=1"} and study.confirming == "confirm"


def test_how_earlier_runs_spread_makes_few_fresh_pairs_enough_and_is_kept_with_them() -> None:
    study = ablated(Table({"a=1": 0.3, "b=1": 0.2}), "a=1", "b=1", left_s=40.0)
    confirmed = study.confirmed
    assert recipe(study) == {"a=1", "b=1"} and study.confirming == "confirm" and confirmed is not None
    assert confirmed.num_pairs in (2, 3) and confirmed.seen is not None and confirmed.seen.df == 4
    assert 0.1 * SOME_NOISE.sd**2 < confirmed.seen.variance < 8 * SOME_NOISE.sd**2
    assert confirmed.ci is not None and confirmed.ci[0] < math.exp(0.5) < confirmed.ci[1]


def test_of_pairs_as_many_run_as_the_time_holds_not_only_as_many_as_a_look_asks_for() -> None:
    planned = {
        confirmed.max_pairs
        for left_s in range(40, 160, 6)
        if (confirmed := ablated(Table({"a=1": 0.1, "b=1": 0.08}), "a=1", "b=1", left_s=left_s).confirmed) is not None
    }
    assert planned == {2, 3, 4, 5, 6, 7, 8}


def test_a_single_candidate_has_no_earlier_runs_and_needs_four_pairs() -> None:
    study = tuned(Table({"a=1": 0.3}), [candidate("a=1", needs_warm_cache=False)])
    assert study.confirmed is not None and study.confirmed.seen is None and study.confirmed.num_pairs >= 4


def test_what_was_kept_for_later_goes_into_a_proof_that_needs_it() -> None:
    table, one = Table({"a=1": 0.3}), candidate("a=1", needs_warm_cache=False)
    # A pilot, four pairs, and then nothing left.
    assert recipe(tuned(table, [one], budget_s=105.0, reserve_s=40.0)) == {"a=1"}
    assert recipe(tuned(table, [one], budget_s=80.0, reserve_s=40.0)) == set()


def test_where_nothing_earns_its_place_the_strongest_alone_has_its_chance() -> None:
    # Either of two does the same, so neither is missed when it is left out.
    table = Table({"a=1": 0.3, "b=1": 0.3}, together={frozenset({"a=1", "b=1"}): -0.3})
    study = ablated(table, "a=1", "b=1", left_s=100.0)
    assert len(recipe(study)) == 1


def test_what_takes_long_to_start_is_proved_without_a_race_where_others_may_gain_far_less() -> None:
    table = Table({"slow=1": 0.5})
    slow = candidate("slow=1", needs_warm_cache=True, bound=0.8)
    others = [candidate(f"small{at}=1", needs_warm_cache=False, bound=0.04) for at in range(2)]

    def tried(*candidates, budget_s: float) -> Study:
        return tuned(table, candidates, budget_s=budget_s, cold_s={"slow=1": 60.0})

    study = tried(slow, *others, budget_s=310.0)
    assert recipe(study) == {"slow=1"} and not [trial for trial in study.trials if trial.phase == "race"]
    assert "to prove slow=1, which may gain far more" in study.outcomes["small0=1"].reason
    alike = tried(slow, candidate("small0=1", needs_warm_cache=False, bound=0.5), budget_s=310.0)
    assert "to prove it takes" in alike.outcomes["slow=1"].reason
    assert "to prove it takes" in tried(slow, *others, budget_s=200.0).outcomes["slow=1"].reason


@pytest.mark.parametrize("why", [[], ["launch-bound"]])
def test_what_nothing_bounds_is_no_reason_to_leave_out_others(why: list[str]) -> None:
    slow = replace(candidate("slow=1", needs_warm_cache=True), bound=Unknown("nothing bounds it"))
    fast = replace(candidate("fast=1", needs_warm_cache=False), bound=Unknown("nothing bounds it"), why=why)
    study = tuned(Table({"fast=1": 0.5}), [slow, fast], budget_s=310.0, cold_s={"slow=1": 60.0})
    assert recipe(study) == {"fast=1"}


def test_what_was_asked_for_is_raced_beside_what_may_gain_far_more() -> None:
    slow = candidate("slow=1", needs_warm_cache=True, bound=0.8)
    asked = replace(candidate("fast=1", needs_warm_cache=False, bound=0.04), asked=True)
    study = tuned(Table({"fast=1": 0.5}), [slow, asked], budget_s=310.0, cold_s={"slow=1": 60.0})
    assert recipe(study) == {"fast=1"}


def test_of_several_that_take_long_to_start_those_that_may_gain_least_give_way() -> None:
    table = Table({"a=1": 0.9, "b=1": 0.3})
    small = candidate("small=1", needs_warm_cache=False, bound=0.04)
    costly = [candidate("b=1", needs_warm_cache=True, bound=0.6), candidate("a=1", needs_warm_cache=True, bound=0.8)]
    for budget_s in range(350, 450, 10):
        study = tuned(table, [*costly, small], budget_s=float(budget_s), cold_s={"a=1": 60.0, "b=1": 60.0})
        assert "a=1" in recipe(study) or study.outcomes["a=1"].kind == "not-tried", (budget_s, study.verdict)
        assert study.recipe, (budget_s, study.verdict)


def test_what_is_reserved_gives_way_to_the_proof_of_what_takes_long_and_to_pairs_after_void_ones() -> None:
    slow = candidate("slow=1", needs_warm_cache=True, bound=0.8)
    study = tuned(Table({"slow=1": 0.5}), [slow], budget_s=320.0, cold_s={"slow=1": 60.0}, reserve_s=60.0)
    assert recipe(study) == {"slow=1"}
    for seed in range(20):
        one = [candidate("a=1", needs_warm_cache=False)]
        study = tuned(Table({"a=1": 0.3}), one, budget_s=180.0, reserve_s=60.0, seed=seed, voids=0.1)
        assert recipe(study) == {"a=1"} or "void" in study.verdict, (seed, study.verdict)


def test_the_strongest_alone_that_its_pairs_do_not_prove_is_told_by_them() -> None:
    # What the races saw of both was luck.
    luck = {frozenset({"a=1"}): -0.05, frozenset({"b=1"}): -0.04}
    study = ablated(Table({"a=1": 0.05, "b=1": 0.04}, luck), "a=1", "b=1", left_s=200.0)
    assert study.confirmed is not None and study.confirmed.verdict in ("same", "undecided")
    assert "on fresh pairs" in study.outcomes["a=1"].reason
    assert "together" in study.outcomes["b=1"].reason


def test_how_many_blocks_an_ablation_has_is_on_disk_before_its_first_run() -> None:
    saved: list[Study] = []
    table = Table({"a=1": 0.2, "b=1": 0.1})
    study = study_of([*IDLE, candidate("a=1"), candidate("b=1")], budget_s=BUDGET_S)
    search(study, SimulatedBench(table, budget_s=BUDGET_S, noise=SOME_NOISE), saved.append, Silent())
    planned = [one.ablations for one in saved if any(trial.phase == "ablate" for trial in one.trials)]
    assert len(planned) > 1 and all(one == planned[0] and len(one) == 1 for one in planned)


# Arms that give no measurement


@pytest.mark.parametrize(
    ("ended", "kind"),
    [
        ("failed", "failed"),
        ("out-of-memory", "out-of-memory"),
        ("rejected", "rejected"),
        ("timeout", "failed"),
    ],
)
@pytest.mark.parametrize("warms", [True, False])
def test_a_setting_that_ends_the_run_is_an_answer(ended: str, kind: str, warms: bool) -> None:
    table = Table({"good=1": 0.10}, ends={frozenset({"bad=1"}): ended})
    study = tuned(table, [*IDLE[:3], candidate("good=1"), candidate("bad=1", needs_warm_cache=warms)])
    assert recipe(study) == {"good=1"}
    assert fates(study)["bad=1"] == kind
    assert f"planned: {ended}" in study.outcomes["bad=1"].reason
    assert sum("bad=1" in trial.arm.split() for trial in study.trials) == 1


@pytest.mark.parametrize("warms", [True, False])
def test_a_setting_that_makes_results_wrong_gives_way_to_those_that_do_not(warms: bool) -> None:
    table = Table({"good=1": 0.10, "bad=1": 0.30}, ends={frozenset({"bad=1"}): "wrong-results"})
    study = tuned(table, [*IDLE[:3], candidate("good=1"), candidate("bad=1", needs_warm_cache=warms)])
    assert recipe(study) == {"good=1"}
    assert fates(study)["bad=1"] == "wrong-results"
    assert "planned: wrong-results" in study.outcomes["bad=1"].reason


def test_where_some_were_not_tried_it_is_not_said_that_none_helps() -> None:
    table = Table({"bad=1": 0.6, "good=1": 0.3}, ends={frozenset({"bad=1"}): "wrong-results"})
    candidates = [
        candidate(f"{name}=1", needs_warm_cache=False, bound=bound) for name, bound in (("bad", 0.6), ("good", 0.4))
    ]
    study, _, _ = run(study_of(candidates, budget_s=108.0), table, budget_s=108.0, noise=SOME_NOISE)
    assert fates(study) == {"bad=1": "wrong-results", "good=1": "not-tried"}
    assert study.verdict == "Nothing is proved: of 2 settings, 1 could not be tried in the time."


def test_one_setting_alone_that_makes_results_wrong_is_in_no_recipe() -> None:
    study = tuned(Table({"bad=1": 0.30}, ends={frozenset({"bad=1"}): "wrong-results"}), [candidate("bad=1")])
    assert recipe(study) == set() and fates(study)["bad=1"] == "wrong-results"


def test_of_two_that_make_results_wrong_only_together_the_stronger_is_kept() -> None:
    table = Table({"a=1": 0.30, "b=1": 0.10}, ends={frozenset({"a=1", "b=1"}): "wrong-results"})
    study = tuned(table, [*IDLE, candidate("a=1"), candidate("b=1")])
    assert recipe(study) == {"a=1"}
    assert any("wrong results together" in text for text in study.warnings)


def test_a_gain_of_what_makes_results_wrong_is_not_credited_to_its_companions() -> None:
    table = Table({"bad=1": 0.9, "good=1": 0.08}, ends={frozenset({"bad=1"}): "wrong-results"})
    for seed in range(6):
        study = tuned(table, [*IDLE[:4], candidate("bad=1"), candidate("good=1")], seed=seed)
        found = {one.arm: one.speedup for one in study.estimates if one.phase == "race"}
        assert fates(study)["bad=1"] == "wrong-results"
        assert recipe(study) == {"good=1"}
        assert all(abs(math.log(found[one.id])) < 0.05 for one in IDLE[:4]), found


def test_of_three_of_which_two_are_wrong_together_the_innocent_one_stays() -> None:
    table = Table({"a=1": 0.30, "b=1": 0.25, "c=1": 0.10}, ends={frozenset({"a=1", "b=1"}): "wrong-results"})
    study = tuned(table, [*IDLE[:3], candidate("a=1"), candidate("b=1"), candidate("c=1")])
    assert recipe(study) == {"a=1", "c=1"}


@pytest.mark.parametrize("budget_s", [260.0, 280.0, 300.0, 400.0])
def test_looking_at_results_leaves_the_time_for_the_proof(budget_s: float) -> None:
    candidates = [candidate(f"idle{at}=1", needs_warm_cache=False, effect="numerics") for at in range(5)]
    candidates.append(candidate("good=1", needs_warm_cache=False, effect="numerics"))
    bench = SimulatedBench(Table({"good=1": 0.30}), budget_s=budget_s, noise=SOME_NOISE, check_s=10.0)
    study = search(study_of(candidates, budget_s=budget_s), bench, lambda study: None, Silent())
    assert recipe(study) == {"good=1"}, study.verdict


def test_a_search_stopped_while_results_are_looked_at_looks_again() -> None:
    class Stopped(SimulatedBench):
        def check(self, arm):
            raise KeyboardInterrupt

    table = Table({"bad=1": 0.30}, ends={frozenset({"bad=1"}): "wrong-results"})
    saved: list[Study] = []
    with pytest.raises(KeyboardInterrupt):
        search(study_of([candidate("bad=1")]), Stopped(table, noise=SOME_NOISE), saved.append, Silent())
    study = search(saved[-1], SimulatedBench(table, noise=SOME_NOISE), lambda study: None, Silent())
    assert recipe(study) == set() and fates(study)["bad=1"] == "wrong-results"


def test_results_are_checked_only_of_what_is_to_be_proved() -> None:
    table = Table({"good=1": 0.30})
    study, bench, _ = run(study_of([*IDLE, candidate("good=1")]), table, noise=SOME_NOISE)
    assert recipe(study) == {"good=1"}
    assert set(bench.checked) == {"good=1"}


@pytest.mark.parametrize("gains", [(0.79, 0.72), (0.47, 0.0), (1.1, 0.05)])
def test_settings_that_make_it_twice_as_fast_are_found_in_few_runs(gains: tuple[float, float]) -> None:
    """One slow run of the baseline beside two fast ones is no stall of the baseline."""
    table = Table({"a=1": gains[0], "b=1": gains[1]}, {frozenset({"a=1", "b=1"}): -gains[1]})
    candidates = [candidate("a=1", group="kernels"), candidate("b=1", group="kernels")]
    for seed in range(10):
        study, _, _ = run(study_of(candidates, budget_s=150.0, seed=seed), table, budget_s=150.0, noise=SOME_NOISE)
        assert study.recipe, (seed, study.verdict)


def test_what_never_ran_together_has_no_estimate_together_and_few_runs_give_no_interval() -> None:
    table = Table({"a=1": 0.7, "b=1": 0.6})
    candidates = [
        candidate("a=1", group="kernels", needs_warm_cache=False),
        candidate("b=1", group="kernels", needs_warm_cache=False),
    ]
    study, bench, _ = run(study_of(candidates, budget_s=140.0), table, budget_s=140.0, noise=SOME_NOISE)
    ran = {key for key, _, _ in bench.ran}
    raced = [one for one in study.estimates if one.phase in ("race", "join")]
    assert {one.arm for one in raced} == {"a=1", "b=1"} <= ran
    assert all(one.ci is None for one in raced)


def test_where_every_candidate_fails_nothing_is_proved_and_nothing_raised() -> None:
    table = Table(ends={frozenset({one.id}): "failed" for one in IDLE})
    study = tuned(table, IDLE)
    assert set(fates(study).values()) == {"failed"}
    assert study.recipe == [] and "none of the 6 settings could be measured" in study.verdict


def test_of_a_single_setting_it_is_not_said_that_none_of_one_helps() -> None:
    failing = Table(ends={frozenset({"a=1"}): "failed"})
    assert tuned(failing, [candidate("a=1")]).verdict == (
        "Nothing is proved: a=1, all there was to try, could not be measured."
    )


def test_two_that_only_fail_together_are_both_known_and_one_is_taken() -> None:
    table = Table({"a=1": 0.15, "b=1": 0.10}, ends={frozenset({"a=1", "b=1"}): "out-of-memory"})
    study = tuned(table, [*IDLE, candidate("a=1"), candidate("b=1")])
    assert recipe(study) == {"a=1"}
    assert fates(study)["b=1"] in ("unproved", "not-needed")


def test_a_command_that_fails_as_written_cannot_be_tuned() -> None:
    saved: list[Study] = []
    bench = SimulatedBench(Table(ends={frozenset(): "failed"}))
    with pytest.raises(CannotRunHere, match="as written"):
        search(study_of(IDLE), bench, saved.append, Silent())
    assert len(saved[-1].trials) == 1


# What stands beside the answer


@pytest.mark.parametrize("ids", [["a=1"], ["a=1", "b=1"]])
def test_what_is_confirmed_tells_the_unit_and_the_window_of_its_runs(ids: list[str]) -> None:
    class ByStep(SimulatedBench):
        def add_to(self, study: Study) -> Study:
            planned = {"unit": "s/step", "warmup_steps": 5, "window_steps": 50, "step": "call Model"}
            return changed(study, **planned) if self.is_planned else study

    study = study_of([candidate(id_, needs_warm_cache=False) for id_ in ids], budget_s=1000.0)
    confirmed = search(study, ByStep(Table({"a=1": 0.3})), lambda study: None, Silent()).confirmed
    assert confirmed is not None and (confirmed.unit, confirmed.step) == ("step", "call Model")
    assert (confirmed.run.warmup_steps, confirmed.run.window_steps) == (5, 50)
    assert confirmed.baseline.s_per_step == pytest.approx(0.1) and confirmed.baseline.s_per_sample is None


# Disturbed runs


def test_disturbed_runs_count_for_nothing_and_are_repeated() -> None:
    table = Table({"good=1": 0.10})
    study = tuned(table, [*IDLE[:3], candidate("good=1")], voids=0.07, budget_s=2500.0)
    assert recipe(study) == {"good=1"}
    assert any(trial.void for trial in study.trials)
    assert study.confirmed is not None and study.confirmed.speedup == pytest.approx(math.exp(0.10), rel=0.02)
    void = {trial.value for trial in study.trials if trial.void}
    assert not void & {pair.candidate_s for pair in study.confirmed.pairs}


def test_a_machine_that_is_never_quiet_proves_nothing() -> None:
    study = tuned(Table({"good=1": 0.10}), [*IDLE[:3], candidate("good=1")], voids=0.9)
    assert study.recipe == [] and study.finished
    assert re.search(r"Nothing is proved: .*\d+ of \d+ runs were disturbed from outside", study.verdict)
    never = tuned(Table({"good=1": 0.10}), [*IDLE[:3], candidate("good=1", needs_warm_cache=False)], voids=1.1)
    assert "disturbed from outside" in never.verdict
    assert {fate.reason for fate in never.outcomes.values()} == {f"None of its runs counted: {OTHERS}."}


@pytest.mark.parametrize("disturbed", range(1, 7))
def test_of_few_pairs_a_void_one_is_made_again(disturbed: int) -> None:
    study = ablated(Table({"a=1": 0.3, "b=1": 0.2}), "a=1", "b=1", left_s=45.0, void_runs=[disturbed])
    confirmed = study.confirmed
    assert confirmed is not None and confirmed.max_pairs == 3 and len(confirmed.voided) == 1
    # As many as the time then holds.
    assert recipe(study) == {"a=1", "b=1"} and confirmed.num_pairs in (2, 3)
    void = {trial.run for trial in study.trials if trial.void}
    assert not void & {run for pair in confirmed.pairs for run in (pair.baseline_run, pair.candidate_run)}


def test_of_a_void_pair_the_second_run_is_spared_for_one_that_counts() -> None:
    planned = set()
    for left_s in range(20, 30):
        study = ablated(Table({"a=1": 0.3, "b=1": 0.2}), "a=1", "b=1", left_s=float(left_s), void_runs=[1])
        assert study.confirmed is not None and len(study.confirmed.voided) == 1
        assert [trial.block for trial in study.trials if trial.phase == "confirm"][:3] == [1, 2, 2]
        planned.add((study.confirmed.max_pairs, study.confirmed.num_pairs, bool(study.recipe)))
    assert (2, 2, True) in planned


def test_of_few_pairs_two_void_ones_are_made_again_where_there_is_time() -> None:
    study = ablated(Table({"a=1": 0.3, "b=1": 0.2}), "a=1", "b=1", left_s=45.0, void_runs=[1, 2])
    confirmed = study.confirmed
    assert confirmed is not None and len(confirmed.voided) == 2 and confirmed.num_pairs == 2
    assert recipe(study) == {"a=1", "b=1"}


def test_which_arm_was_disturbed_is_told_where_the_other_ran_too() -> None:
    """A run that is spared could have been disturbed as well."""
    for disturbed, num_told in (1, 0), (2, 1):
        study = ablated(Table({"a=1": 0.3, "b=1": 0.2}), "a=1", "b=1", left_s=45.0, void_runs=[disturbed])
        assert study.confirmed is not None
        (pair,) = study.confirmed.voided
        assert len(pair.arms) == num_told


def test_of_few_pairs_three_void_ones_are_too_many() -> None:
    study = ablated(Table({"a=1": 0.3, "b=1": 0.2}), "a=1", "b=1", left_s=45.0, void_runs=[1, 2, 3, 4])
    assert study.recipe == [] and study.confirmed is not None
    assert study.confirmed.verdict == "undecided" and "3 of 3 pairs were void" in study.confirmed.reason


@pytest.mark.parametrize("cut", [5, 6])
def test_of_few_pairs_one_that_took_until_the_deadline_is_not_done_without(cut: int) -> None:
    """How long a run takes is what is measured: without it the rest would look better than it is."""
    study = ablated(Table({"a=1": 0.3, "b=1": 0.2}), "a=1", "b=1", left_s=45.0, cut=[cut])
    confirmed = study.confirmed
    assert study.recipe == [] and confirmed is not None and confirmed.verdict == "undecided"
    assert "did not end in the time left" in confirmed.reason and len(confirmed.pairs) == 2


# The budget


@pytest.mark.parametrize("budget_s", [0.0, 5.0, 60.0, 130.0, 200.0, 350.0, 600.0, 1000.0])
def test_the_deadline_holds(budget_s: float) -> None:
    gains = {"a=1": 0.20, "b=1": 0.10}
    candidates = [*IDLE, *map(candidate, gains)]
    study, bench, _ = run(study_of(candidates, budget_s=budget_s), Table(gains), budget_s=budget_s, noise=SOME_NOISE)
    # A run begins only if it should end in time; how long it takes is known to some percent.
    assert bench.clock_s <= budget_s + 1.0
    assert study.finished and study.verdict and set(study.outcomes) == {one.id for one in candidates}
    proved = {id_ for id_, kind in fates(study).items() if kind == "proved"}
    assert proved == recipe(study)
    if not proved:
        assert "Proved" not in study.verdict


def test_what_could_not_be_confirmed_in_time_is_unproved_and_not_in_the_recipe() -> None:
    gains = {"a=1": 0.20}
    asked = study_of([candidate("a=1"), *IDLE[:2]], budget_s=1000.0)
    # The clock jumps when confirmation begins: another program held the machine.
    bench = SimulatedBench(Table(gains), budget_s=1000.0, noise=SOME_NOISE)
    saved: list[Study] = []

    def save(study: Study) -> None:
        saved.append(study)
        if study.confirmed is not None and not study.confirmed.pairs:
            bench.clock_s = 1000.0 - 15.0

    study = search(asked, bench, save, Silent())
    assert study.recipe == [] and fates(study)["a=1"] == "unproved"
    assert "Nothing is proved" in study.verdict


def test_a_candidate_that_cannot_gain_the_margin_is_not_tried_unless_asked_for() -> None:
    small = candidate("small=1", bound=0.004, bound_by="the wait for input")
    asked = candidate("asked=1", bound=0.004, asked=True)
    study = tuned(Table(), [*IDLE[:2], small, asked])
    assert fates(study)["small=1"] == "not-tried"
    assert "0.4%" in study.outcomes["small=1"].reason and "the wait for input" in study.outcomes["small=1"].reason
    assert fates(study)["asked=1"] != "not-tried"


def test_of_what_was_asked_for_that_has_its_turn_first_which_a_finding_names() -> None:
    unknown = {"bound": Unknown("no finding names it"), "why": (), "asked": True, "needs_warm_cache": False}
    asked = [candidate(f"asked{at}=1", **unknown) for at in range(3)]
    named = candidate("named=1", bound=0.6, asked=True, needs_warm_cache=False)
    study = tuned(Table({"named=1": 0.8}), [*asked, named], budget_s=115.0)
    assert [fate.kind for fate in study.outcomes.values()].count("not-tried") >= 2
    assert recipe(study) == {"named=1"}


def few_of_four(runs: int, seed: int, **fields: object) -> Study:
    """The plan takes fewer than all of them; the last but one of them is the best by far."""
    names = ("early=1", "idle=1", "late=1", "last=1")
    candidates = [candidate(id_, group="kernels", effect="numerics", needs_warm_cache=False) for id_ in names]
    table = Table({"early=1": 1.0, "late=1": 1.6}, {frozenset({"early=1", "late=1"}): -1.0})
    asked = changed(study_of(candidates, budget_s=10.0 * runs, seed=seed), **fields)
    bench = {"noise": Noise(sd=0.01, stalls=0.0), "check_s": 10.0, "budget_s": 10.0 * runs}
    return run(asked, table, **bench)[0]


def test_what_is_to_be_proved_leaves_the_time_to_look_at_its_results_first() -> None:
    candidates = [candidate(id_, group="kernels", needs_warm_cache=False) for id_ in ("a=1", "b=1", "idle=1")]
    table = Table({"a=1": 0.9, "b=1": 0.8}, {frozenset({"a=1", "b=1"}): -0.5})
    for seed in range(4):
        noise = Noise(sd=0.02, stalls=0.0)
        assert recipe(tuned(table, candidates, budget_s=140.0, noise=noise, seed=seed, check_s=10.0)) == {"a=1"}


@pytest.mark.parametrize("runs", [14, 15, 16])
def test_where_runs_are_shorter_than_planned_for_more_of_them_are_tried(runs: int) -> None:
    for seed in range(4):
        study = few_of_four(runs, seed)
        assert recipe(study) == {"late=1"}
        assert study.confirmed is not None and study.confirmed.verdict == "faster"


def test_where_a_better_one_may_take_longer_no_more_are_tried_than_planned() -> None:
    assert list(fates(few_of_four(15, 0, objective="memory")).values()).count("not-tried") == 2
    assert list(fates(few_of_four(15, 0)).values()).count("not-tried") < 2


def test_the_time_set_aside_for_many_proofs_is_not_left_over_where_none_is_worth_one() -> None:
    # Too noisy for anything to stand out after the race, and too short to join with all that the proofs want set aside.
    candidates = [candidate("good=1", needs_warm_cache=False), candidate("idle=1", needs_warm_cache=False)]
    for seed in range(6):
        noise = Noise(sd=0.1, stalls=0.0)
        study, bench, _ = run(
            study_of(candidates, budget_s=300.0, seed=seed), Table({"good=1": 0.05}), budget_s=300.0, noise=noise
        )
        assert study.selected or bench.left_s() < 160.0, (seed, bench.left_s())


def test_what_the_budget_does_not_afford_is_what_may_gain_least() -> None:
    candidates = [candidate(f"knob{at}=1", bound=0.02 + 0.02 * at) for at in range(12)]
    study, _, watcher = run(study_of(candidates), Table(), budget_s=300.0, noise=SOME_NOISE)
    left_out = [
        int(id_.removeprefix("knob").removesuffix("=1")) for id_, kind in fates(study).items() if kind == "not-tried"
    ]
    assert 0 < len(left_out) < 12
    assert sorted(left_out) == list(range(len(left_out)))
    assert watcher.said[0].startswith("The budget affords about ")


MANY = [candidate(f"knob{at}=1", needs_warm_cache=False, bound=0.7 - 0.04 * at) for at in range(14)]


def test_what_the_plan_left_out_has_its_turn_where_nothing_of_what_it_took_is_worth_proving() -> None:
    table = Table({"knob13=1": 0.6})
    study, bench, _ = run(study_of(MANY), table, budget_s=280.0, noise=SOME_NOISE)
    raced = [(key, block) for key, phase, block in bench.ran if phase == "race"]
    assert ("knob13=1", 1) not in raced, "the plan affords fewer"
    assert recipe(study) == {"knob13=1"}


def test_the_one_that_was_left_out_goes_straight_to_its_proof() -> None:
    candidates = [candidate(f"fails{at}=1", needs_warm_cache=False) for at in range(2)]
    candidates.append(candidate("good=1", needs_warm_cache=False, bound=0.5))
    table = Table({"good=1": 0.6}, ends={frozenset([f"fails{at}=1"]): "failed" for at in range(2)})
    study, bench, _ = run(study_of(candidates), table, budget_s=130.0, noise=SOME_NOISE)
    assert "race" not in [phase for key, phase, _ in bench.ran if key == "good=1"]
    assert recipe(study) == {"good=1"}


def test_where_the_time_holds_a_proof_and_no_more_it_is_made_without_a_first_run() -> None:
    candidates = [
        candidate("good=1", needs_warm_cache=False, bound=0.5),
        candidate("idle=1", needs_warm_cache=False, bound=0.4),
    ]
    for budget_s, phases in ((93.0, {"confirm"}), (103.0, {"pilot", "confirm"}), (88.0, set())):
        study, bench, _ = run(study_of(candidates), Table({"good=1": 0.6}), budget_s=budget_s, noise=SOME_NOISE)
        assert {phase for key, phase, _ in bench.ran if key == "good=1"} == phases
        assert recipe(study) == ({"good=1"} if phases else set())


def test_what_fails_in_its_proof_is_said_to_fail() -> None:
    candidates = [
        candidate("bad=1", needs_warm_cache=False, bound=0.5),
        candidate("idle=1", needs_warm_cache=False, bound=0.4),
    ]
    table = Table(ends={frozenset({"bad=1"}): "failed"})
    study, _, _ = run(study_of(candidates), table, budget_s=93.0, noise=SOME_NOISE)
    assert fates(study)["bad=1"] == "failed"
    assert "a run of it failed" in study.verdict and "too short" not in study.verdict


def test_where_all_of_a_second_turn_fail_the_baseline_does_not_run_by_itself() -> None:
    ends = {frozenset([one.id]): "failed" for one in MANY[6:]}
    candidates = [*MANY[:6], *(replace(one, needs_warm_cache=True) for one in MANY[6:])]
    study, bench, _ = run(study_of(candidates), Table(ends=ends), budget_s=420.0, noise=SOME_NOISE)
    assert [key for key, phase, _ in bench.ran if phase == "pilot" and key in {one.id for one in MANY[6:]}]
    blocks = {block for _, phase, block in bench.ran if phase == "race"}
    assert all(any(key for key, phase, at in bench.ran if (phase, at) == ("race", block)) for block in blocks)
    assert recipe(study) == set()


@pytest.mark.parametrize("stop_after", range(2, 26))
def test_a_second_turn_that_was_stopped_goes_on(stop_after: int) -> None:
    table, study = Table({"knob13=1": 0.6}), study_of(MANY)
    kept = [study]
    bench = SimulatedBench(table, seed=study.run.seed, budget_s=280.0, noise=SOME_NOISE, stop_after=stop_after)
    try:
        kept.append(search(study, bench, kept.append, Silent()))
    except KeyboardInterrupt:
        spent_s = bench.clock_s
        bench = SimulatedBench(table, seed=study.run.seed, budget_s=280.0, noise=SOME_NOISE, spent_s=spent_s)
        kept.append(search(kept[-1], bench, kept.append, Silent()))
    assert recipe(kept[-1]) == {"knob13=1"}
    runs = [(trial.arm, trial.phase, trial.block) for trial in kept[-1].trials]
    assert len(runs) == len(set(runs)), "nothing is run twice"


def test_a_first_run_that_takes_the_time_leaves_the_rest_to_the_others() -> None:
    table = Table({"compile=1": 0.5, "good=1": 0.25})
    candidates = [candidate("compile=1"), candidate("good=1", needs_warm_cache=False)]
    study, _, _ = run(study_of(candidates), table, budget_s=300.0, noise=SOME_NOISE, cold_s={"compile=1": 90.0})
    assert recipe(study) == {"good=1"}
    assert fates(study)["compile=1"] == "not-tried"
    assert study.outcomes["compile=1"].reason.startswith("A run with it takes 5")


def test_what_a_budget_affords_grows_with_it() -> None:
    found = [afforded(60.0 * minutes, 10.0, ToTry(12, num_pilots=3, num_checks=2)) for minutes in range(0, 60, 3)]
    for less, more in itertools.pairwise(found):
        assert less.num_runs <= more.num_runs and less.num_arms <= more.num_arms
    assert found[0].num_arms == 0 and "too few" in found[0].text and "A longer --budget" in found[0].text
    first = next(one for one in found if one.num_arms)
    assert first.num_runs >= 8 + 2 + 1 + 2
    assert found[-1].num_arms == 12 and "all 12 settings" in found[-1].text
    for one in found:
        reserved = 2 * one.num_pairs + one.num_ablation_runs + one.num_checks if one.num_arms else 0
        assert reserved + one.num_arms <= one.num_runs


def test_wild_noise_is_said_with_the_pairs_that_it_would_need() -> None:
    study = tuned(Table({"good=1": 0.05}), [*IDLE, candidate("good=1")], noise=Noise(sd=0.2))
    assert study.noise is not None and study.noise > 0.1
    [warning] = study.warnings
    assert "pairs" in warning and "%" in warning
    quiet = tuned(Table({"good=1": 0.05}), [*IDLE, candidate("good=1")])
    assert quiet.warnings == []


# Screening inside one process


class Screening(SimulatedBench):
    screened: tuple[Arm, ...] = ()

    def screen(self, candidates, left_s):
        self.screened = tuple(candidates)
        return [
            Estimate(arm=one.key, against="", phase="screen", speedup=speedup, ci=ci, num_blocks=8)
            for one in candidates
            for speedup, ci in [(1.1, (1.08, 1.12)) if one.key == "good=1" else (1.0, (0.995, 1.005))]
        ]


def test_screening_drops_the_hopeless_without_a_run_of_theirs() -> None:
    quick = [candidate("good=1", in_process=True), candidate("idle=1", in_process=True)]
    bench = Screening(Table({"good=1": 0.10}), budget_s=BUDGET_S, noise=SOME_NOISE)
    study = search(study_of([*quick, *IDLE[:2]], budget_s=BUDGET_S), bench, lambda study: None, Silent())
    assert {one.key for one in bench.screened} == {"good=1", "idle=1"}
    assert fates(study)["idle=1"] == "no-effect" and recipe(study) == {"good=1"}
    assert not any("idle=1" in trial.arm.split() for trial in study.trials)
    assert any(one.phase == "screen" for one in study.estimates)


# Interruption


def test_a_search_stopped_anywhere_goes_on_and_adds_no_look() -> None:
    gains = {"a=1": 0.15, "b=1": 0.06}
    candidates = [*IDLE[:3], candidate("a=1", needs_warm_cache=False), candidate("b=1")]
    whole = tuned(Table(gains), candidates)
    assert recipe(whole) == set(gains)
    for stop in range(0, len(whole.trials), 3):
        saved = [study_of(candidates, budget_s=BUDGET_S)]
        first = SimulatedBench(Table(gains), budget_s=BUDGET_S, noise=SOME_NOISE, stop_after=stop)
        with pytest.raises(KeyboardInterrupt):
            search(saved[0], first, saved.append, Silent())
        stopped = document.decode(document.encode(saved[-1]), Study, name="study")
        assert len(stopped.trials) == stop
        second = SimulatedBench(Table(gains), budget_s=BUDGET_S, noise=SOME_NOISE, seed=1, spent_s=first.clock_s)
        study = search(stopped, second, lambda study: None, Silent())
        assert study.finished and recipe(study) == set(gains)
        assert study.trials[:stop] == stopped.trials
        assert study.confirmed is not None
        if stopped.confirmed is not None:
            assert study.confirmed.max_pairs == stopped.confirmed.max_pairs
            assert study.confirmed.pairs[: len(stopped.confirmed.pairs)] == stopped.confirmed.pairs
        assert study.confirmed.num_pairs <= study.confirmed.max_pairs
        if stopped.ablations:
            assert study.ablations[: len(stopped.ablations)] == stopped.ablations
        # A pair is of one sitting: one whose second run is missing is run anew.
        blocks: dict[int, set[str]] = {}
        for trial in study.trials:
            if trial.phase == "confirm":
                blocks.setdefault(trial.block, set()).add(trial.arm)
        assert sum(len(arms) == 2 for arms in blocks.values()) == study.confirmed.num_pairs


def test_a_finished_study_is_left_as_it_is() -> None:
    study = tuned(Table({"good=1": 0.10}), [*IDLE, candidate("good=1")])
    bench = SimulatedBench(Table())
    assert search(study, bench, lambda study: None, Silent()) is study
    assert bench.ran == []


def test_each_setting_that_ran_has_an_estimate_alone_with_an_interval_that_holds_its_gain() -> None:
    study = tuned(Table({"a=1": 0.15, "bad=1": -0.08}), [*IDLE, candidate("a=1"), candidate("bad=1")])
    alone = {one.arm: one for one in study.estimates if one.phase == "race" and not one.against}
    assert set(alone) == {one.id for one in study.candidates}
    for id_, one in alone.items():
        assert one.ci is not None and one.num_blocks >= 1
        assert one.ci[0] - 0.01 <= math.exp({"a=1": 0.15, "bad=1": -0.08}.get(id_, 0.0)) <= one.ci[1] + 0.01


def test_a_study_survives_its_file() -> None:
    study = tuned(Table({"a=1": 0.15, "b=1": 0.06}), [*IDLE, candidate("a=1"), candidate("b=1")])
    assert document.decode(document.encode(study), Study, name="study") == study


def test_the_same_seed_gives_the_same_search() -> None:
    first, second = (tuned(Table({"a=1": 0.15}), [*IDLE, candidate("a=1")]) for _ in range(2))
    assert replace(first) == replace(second)
    assert [trial.arm for trial in first.trials] == [trial.arm for trial in second.trials]


def test_values_with_spaces_and_equal_signs_are_settings_too() -> None:
    odd = candidate("env.FLAGS=--a=1 --b=2")
    study = tuned(Table({odd.id: 0.10}), [*IDLE, odd])
    assert recipe(study) == {odd.id}
    assert arm(study.recipe or []).settings[0].value == "--a=1 --b=2"
