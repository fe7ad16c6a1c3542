"""From candidates to a recipe in four stages, on commands that are tables."""

from __future__ import annotations

import itertools
import math
import os
import random
import re

import pytest
from msgspec.structs import replace

from dynotune.measure.bench import Journal
from dynotune.measure.live import lanes
from dynotune.schema import document
from dynotune.schema.arm import arm
from dynotune.schema.comparison import MAX_PAIRS, MIN_PAIRS
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Unknown
from dynotune.schema.study import Ended, Study
from dynotune.search.switch import switched
from lab.search.simulated_bench import Kept, SimulatedBench, searched
from lab.search.studies import candidate, study_of
from lab.search.tables import Noise, Table
from lab.silent import Silent

# Without stalls: whether a proof succeeds among them is the benchmark's question.
SOME_NOISE = Noise(sd=0.003, stalls=0.0)
BUDGET_S = 1500.0
RUN_S = 10.0
"""Of the baseline, as a table has it."""


def tuned(table: Table, candidates, *, budget_s=BUDGET_S, noise=SOME_NOISE, seed=0, **bench) -> Study:
    return run(
        study_of(candidates, budget_s=budget_s, seed=seed), table, budget_s=budget_s, noise=noise, **bench
    )[0]


def run(study: Study, table: Table, **bench) -> tuple[Study, SimulatedBench, Silent]:
    watcher = Silent()
    made = SimulatedBench(table, seed=study.run.seed, **bench)
    return searched(study, made, watcher), made, watcher


def recipe(study: Study) -> set[str]:
    return {str(setting) for setting in study.recipe or []}


def kinds(study: Study) -> dict[str, str]:
    return {id_: outcome.kind for id_, outcome in study.outcomes.items()}


def same_work(one: str, other: str, gain: float) -> Table:
    """Two settings of which either saves the same."""
    return Table({one: gain, other: gain}, {frozenset({one, other}): -gain})


IDLE = [candidate(f"idle{at}=1", needs_warm_cache=False) for at in range(6)]


# Know


def test_candidates_are_not_tried_when_they_cannot_gain_the_margin_unless_the_user_asks() -> None:
    candidates = [
        candidate("small=1", bound=0.001, bound_by="a share"),
        candidate("asked=1", bound=0.001, asked=True),
        candidate("good=1"),
    ]
    study = tuned(Table({"good=1": 0.1}), candidates)
    assert (
        kinds(study)["small=1"] == "not-tried"
        and "0.1% at most (a share)" in study.outcomes["small=1"].reason
    )
    assert not any("small=1" in trial.arm for trial in study.trials)
    assert any("asked=1" in trial.arm for trial in study.trials)


def test_without_candidates_there_is_nothing_to_try() -> None:
    study = tuned(Table(), [])
    assert study.verdict == "There was nothing to try." and study.recipe == [] and study.finished


def test_pilot_runs_alone_when_no_setting_can_gain_the_margin() -> None:
    study = tuned(Table(), [candidate("small=1", bound=0.001), candidate("none=1", bound=0.0)])
    assert study.verdict.startswith("Nothing was tried: by the diagnosis")
    assert {trial.phase for trial in study.trials} <= {"pilot"}


# Switch


QUICK = [candidate(f"quick{at}=1", in_process=True) for at in range(3)]
COMPILED = [candidate("compile.mode=default", in_process=True)]


def test_candidates_without_effect_within_one_process_have_no_run_of_their_own() -> None:
    study = tuned(Table({"quick0=1": 0.2}), [*QUICK, candidate("slow=1")], switch_sd=0.002)
    assert recipe(study) == {"quick0=1"}
    assert (
        kinds(study)["quick1=1"] == "no-effect" and "within one process" in study.outcomes["quick1=1"].reason
    )
    assert not any("quick1=1" in trial.arm for trial in study.trials)


def test_candidates_are_called_slower_when_they_slow_steps_within_one_process() -> None:
    study = tuned(Table({"quick0=1": -0.2}), QUICK, switch_sd=0.005)
    assert kinds(study)["quick0=1"] == "slower"
    assert study.verdict == "Nothing helps: none of the 3 settings makes a difference worth having."


@pytest.mark.parametrize("seed", range(4))
def test_of_two_that_save_the_same_one_is_left_within_one_process(seed: int) -> None:
    study = tuned(same_work("quick0=1", "quick1=1", 0.2), QUICK, switch_sd=0.002, seed=seed)
    assert len(recipe(study)) == 1
    assert sorted(kinds(study).values()) == ["no-effect", "not-needed", "proved"]


def test_fresh_runs_tell_when_nothing_can_be_switched() -> None:
    study = tuned(Table({"quick0=1": 0.2}), QUICK, switch_sd=None)
    assert recipe(study) == {"quick0=1"}


def test_the_live_run_goes_before_any_other() -> None:
    """It goes on from the diagnosis, and ends when something else runs."""
    order: list[str] = []

    class Live(SimulatedBench):
        def made(self, arm, phase, block, *lane):
            order.append(phase)
            return super().made(arm, phase, block)

        def test(self, arm, plan, error, limit_s, first_s):
            order.append("test")
            return super().test(arm, plan, error, limit_s, first_s)

        def switch(self, arms, limit_s):
            order.append("switch")
            return super().switch(arms, limit_s)

    searched(study_of(QUICK), Live(Table({"quick0=1": 0.2}), switch_sd=0.005))
    assert order[:2] == ["test", "switch"] and order.count("switch") == 1


@pytest.mark.parametrize(("num_lanes", "blocks"), [(1, 6), (2, 6), (4, 4), (5, 5), (8, 6)])
def test_a_second_round_in_lanes_leaves_no_lane_waiting(num_lanes: int, blocks: int) -> None:
    class Several(SimulatedBench):
        def all_lanes(self):
            cores = frozenset(os.sched_getaffinity(0))
            return [lanes.Lane(number, cpus=cores) for number in range(num_lanes)]

    journal = Kept(study_of(QUICK, budget_s=4000.0))
    searched(journal, Several(Table({"quick0=1": 0.2}), budget_s=4000.0))
    before = next(one for one in journal.saved if one.rounds)
    assert before.rounds[0].num_blocks == blocks


# Proof within one process, where starts leave no time for fresh pairs


class ChecksWhatRounds(SimulatedBench):
    """Checks the results of all arms but that of the one setting which is exact, as the real bench does."""

    exact = "kept=1"

    def check_s(self, arm):
        return super().check_s(arm) if arm.key != self.exact else 0.0

    def check(self, arm):
        return super().check(arm) if arm.key != self.exact else None


SLOW_START = {"start_s": 40.0, "window_s": 4.0}
THREE_MINUTES_S = 180.0


def within(table: Table, candidates, *, budget_s=THREE_MINUTES_S, **bench):
    return run(study_of(candidates, budget_s=budget_s), table, budget_s=budget_s, noise=SOME_NOISE, **bench)


def test_the_bundle_is_proved_within_one_process_where_the_time_holds_no_fresh_pairs() -> None:
    study, bench, _ = within(Table({"quick0=1": 0.4, "quick1=1": 0.2}, **SLOW_START), QUICK, switch_sd=0.01)
    assert recipe(study) == {"quick0=1", "quick1=1"}
    assert study.confirmed is not None and study.confirmed.within and study.confirmed.verdict == "faster"
    assert "blocks within one process" in study.verdict
    assert any("time only the steps" in warning for warning in study.warnings)
    assert {phase for _, phase, _ in bench.ran} == {"pilot"}, (
        "it is started once with the recipe, and no more"
    )
    assert bench.tested[0] == arm(one.setting for one in QUICK).key


def test_another_value_that_is_faster_than_the_proved_bundle_is_proved_in_its_place() -> None:
    values = [candidate(f"quick0={value}", in_process=True) for value in (5, 8)]
    table = Table({"quick0=5": 0.4, "quick0=8": 0.9}, **SLOW_START)
    study, bench, _ = within(table, [*values, *QUICK[1:2]], switch_sd=0.01)
    assert "quick0=5" in bench.tested[0] and bench.tested[1:] == ["quick0=8"]
    assert recipe(study) == {"quick0=8"} and kinds(study)["quick0=5"] == "not-needed"
    assert "With quick0=5, quick1=1 it is" in study.outcomes["quick0=5"].reason


def test_a_bundle_with_a_setting_that_costs_time_is_pruned_of_what_does_nothing_too() -> None:
    study, _, _ = within(Table({"quick0=1": 0.4, "quick2=1": -0.2}, **SLOW_START), QUICK, switch_sd=0.01)
    assert recipe(study) == {"quick0=1"}


@pytest.mark.parametrize("ended", ["out-of-memory", "wrong-results"])
def test_recipe_is_the_value_proved_first_when_the_faster_value_fails_from_the_start(ended: Ended) -> None:
    class FailsFromTheStart(SimulatedBench):
        def made(self, arm, phase, block, *lane):
            trial = super().made(arm, phase, block)
            return (
                replace(trial, ended=ended, detail="planned") if values[1].setting in arm.settings else trial
            )

    values = [candidate(f"quick0={value}", in_process=True) for value in (5, 8)]
    table = Table({"quick0=5": 0.4, "quick0=8": 0.9}, **SLOW_START)
    bench = FailsFromTheStart(table, budget_s=THREE_MINUTES_S, switch_sd=0.01)
    study = searched(study_of(values, budget_s=THREE_MINUTES_S), bench)
    assert recipe(study) == {"quick0=5"} and kinds(study)["quick0=8"] == ended


def test_a_bundle_that_holds_what_does_nothing_stands_if_there_is_no_time_to_prune_it() -> None:
    table = Table({"quick0=1": 0.4}, start_s=40.0, window_s=60.0)
    study, bench, _ = within(table, QUICK, switch_sd=0.01)
    assert recipe(study) == {"quick0=1", "quick1=1", "quick2=1"} and len(bench.tested) == 1


@pytest.mark.parametrize(("bound", "proved"), [(0.4, {"kept=1"}), (0.02, {"quick0=1"})])
def test_search_gives_fresh_runs_the_time_when_what_cannot_switch_promises_more(
    bound: float, proved: set[str]
) -> None:
    """The time holds seven runs of one setting, and not the check of results that the others need."""

    candidates = [candidate("kept=1", bound=bound)]
    candidates += [replace(one, bound=0.3 * bound + 0.02, effect="numerics") for one in QUICK[:1]]
    table = Table({"kept=1": -math.log1p(-0.4), "quick0=1": 0.3}, start_s=6.0, window_s=4.0)
    bench = ChecksWhatRounds(table, budget_s=85.0, check_s=10.0, switch_sd=0.001, noise=SOME_NOISE)
    study = searched(study_of(candidates, budget_s=85.0), bench)
    assert recipe(study) == proved
    if proved == {"kept=1"}:
        assert bench.tested == [] and "kept=1" in study.outcomes["quick0=1"].reason


@pytest.mark.parametrize("more", [{"asked": True}, {"bound": Unknown("no finding names it")}])
def test_search_leaves_out_no_setting_that_the_user_asks_for_or_that_may_gain_anything(more) -> None:
    candidates = [candidate("kept=1", bound=0.4), replace(QUICK[0], bound=0.02, effect="numerics")]
    candidates[1] = replace(candidates[1], **more)
    table = Table({"quick0=1": 0.3}, start_s=6.0, window_s=4.0)
    bench = SimulatedBench(table, budget_s=85.0, check_s=10.0, switch_sd=0.001, noise=SOME_NOISE)
    searched(study_of(candidates, budget_s=85.0), bench)
    assert any("quick0=1" in key for key in bench.tested)


def test_settings_of_one_finding_promise_its_share_once() -> None:
    """Workers of 41% promise more than three settings that the same launches of 20% name."""
    candidates = [candidate("kept=1", bound=0.41, why=["workers"])]
    candidates += [replace(one, bound=0.2, why=["launch-bound"], effect="numerics") for one in QUICK]

    table = Table({"kept=1": 0.5}, start_s=6.0, window_s=4.0)
    bench = ChecksWhatRounds(table, budget_s=85.0, check_s=10.0, switch_sd=0.001, noise=SOME_NOISE)
    assert recipe(searched(study_of(candidates, budget_s=85.0), bench)) == {"kept=1"}


def test_blocks_leave_fresh_runs_their_time_when_what_cannot_switch_promises_more() -> None:
    class Timed(SimulatedBench):
        left_at_run_s = None

        def run(self, arm, phase, block, *lane):
            self.left_at_run_s = self.left_at_run_s or self.left_s()
            return super().run(arm, phase, block, *lane)

    candidates = [candidate("kept=1", bound=0.4), *(replace(one, bound=0.03) for one in QUICK[:2])]
    table = Table({"kept=1": -math.log1p(-0.4)}, start_s=6.0, window_s=8.0)
    bench = Timed(table, budget_s=102.0, switch_sd=0.5, noise=SOME_NOISE)
    searched(study_of(candidates, budget_s=102.0), bench)
    assert bench.tested and bench.left_at_run_s is not None
    # Seven runs, but for the start of the live run and the few blocks that a test has.
    assert bench.left_at_run_s >= 7 * 14.0 - 6.0 - 3 * 4.0


def test_candidates_that_compile_are_tested_after_those_that_do_not() -> None:
    candidates = [*QUICK, *COMPILED]
    table = Table({"quick0=1": 0.4, "compile.mode=default": 0.3}, **SLOW_START)
    study, bench, _ = within(table, candidates, switch_sd=0.01)
    assert [("compile.mode" in key) for key in bench.tested] == [False, True]
    assert recipe(study) == {"quick0=1", "quick1=1", "quick2=1", "compile.mode=default"}


@pytest.mark.parametrize(("graphs_log", "by_user"), [(0.8, False), (0.8, True), (-0.2, False)])
def test_compiling_without_graphs_has_no_turn_when_graphs_are_proved_unless_the_user_asks(
    graphs_log: float, by_user: bool
) -> None:
    compiled = [candidate(f"compile.mode={mode}", in_process=True) for mode in ("reduce-overhead", "default")]
    compiled[1] = replace(compiled[1], asked=by_user)
    table = Table({"compile.mode=reduce-overhead": graphs_log, "compile.mode=default": 0.4}, **SLOW_START)
    study, bench, _ = within(table, compiled, switch_sd=0.01)
    has_turn = "compile.mode=default" in [*bench.tested, *bench.switched]
    assert has_turn is (by_user or graphs_log < 0)
    assert recipe(study) == {"compile.mode=reduce-overhead" if graphs_log > 0 else "compile.mode=default"}
    assert has_turn or kinds(study)["compile.mode=default"] == "not-tried"


@pytest.mark.parametrize(("check_s", "proved"), [(60.0, {"quick0=1"}), (1.0, {"quick0=1", "quick1=1"})])
def test_the_exact_part_is_proved_when_the_time_holds_no_check_of_what_rounds(
    check_s: float, proved: set[str]
) -> None:
    candidates = [QUICK[0], replace(QUICK[1], effect="numerics")]
    table = Table({"quick0=1": 0.5, "quick1=1": 0.1}, start_s=40.0, window_s=8.0)
    bench = ChecksWhatRounds(table, budget_s=125.0, check_s=check_s, switch_sd=0.01, noise=SOME_NOISE)
    bench.exact = "quick0=1"
    assert recipe(searched(study_of(candidates, budget_s=125.0), bench)) == proved


def test_settings_that_need_what_compiles_are_tested_with_it_only() -> None:
    behind = candidate("behind=1", in_process=True, needs=["compile.mode=default"])
    table = Table({"quick0=1": 0.1, "compile.mode=default": 0.6, "behind=1": 0.4}, **SLOW_START)
    study, bench, _ = within(table, [*QUICK[:1], behind, *COMPILED], switch_sd=0.01)
    assert ["behind" in key for key in bench.tested[:2]] == [False, True]
    assert all("compile.mode" in key for key in [*bench.tested, *bench.switched] if "behind" in key)
    assert recipe(study) == {"quick0=1", "compile.mode=default", "behind=1"}


def test_candidates_that_compile_for_too_long_take_nothing_from_those_proved_without_them() -> None:
    whole = arm([*(one.setting for one in QUICK), COMPILED[0].setting])
    table = Table({"quick0=1": 0.4, "compile.mode=default": 0.3}, **SLOW_START)
    study, _, _ = within(table, [*QUICK, *COMPILED], switch_sd=0.01, cold_s={whole.key: 500.0})
    assert "quick0=1" in recipe(study) and "compile.mode=default" not in recipe(study)
    assert kinds(study)["compile.mode=default"] != "proved"


def test_a_bundle_goes_on_until_it_is_decided_or_the_time_is_up() -> None:
    table = Table({"quick0=1": 0.1}, start_s=20.0, window_s=48.0)
    study, _, _ = within(table, QUICK, switch_sd=0.5)
    assert study.within[0].num_pairs == MAX_PAIRS


def test_candidates_are_left_out_and_the_rest_is_proved_when_a_call_fails() -> None:
    table = Table({"quick0=1": 0.4}, ends={frozenset({"quick1=1"}): "failed"}, **SLOW_START)
    study, _, _ = within(table, QUICK, switch_sd=0.01)
    assert (
        kinds(study)["quick1=1"] == "failed" and "a call failed" in study.outcomes["quick1=1"].reason.lower()
    )
    assert recipe(study) == {"quick0=1"}


def test_recipe_is_empty_when_the_arm_does_not_run_from_the_start_whatever_one_process_said() -> None:
    class NotLaunched(SimulatedBench):
        def made(self, arm, phase, block, *lane):
            trial = super().made(arm, phase, block)
            return replace(trial, ended="rejected", detail="it did not act") if arm.settings else trial

    made = NotLaunched(Table({"quick0=1": 0.4}, **SLOW_START), budget_s=THREE_MINUTES_S, switch_sd=0.01)
    study = searched(study_of(QUICK, budget_s=THREE_MINUTES_S), made)
    assert study.recipe == [] and "did not act" in study.verdict


def test_verdict_gives_the_interval_of_one_process_when_it_leaves_a_setting_open() -> None:
    study, _, _ = within(Table(**SLOW_START), QUICK[:1], switch_sd=0.2)
    assert study.recipe == [] and study.confirmed is not None
    assert "within one process" in study.verdict and "%" in study.verdict


def test_settings_that_do_nothing_are_never_proved_within_one_process_more_often_than_in_one_of_twenty() -> (
    None
):
    proved = sum(
        bool(
            searched(
                study_of(QUICK, budget_s=THREE_MINUTES_S, seed=seed),
                SimulatedBench(Table(**SLOW_START), budget_s=THREE_MINUTES_S, switch_sd=0.02, seed=seed),
            ).recipe
        )
        for seed in range(200)
    )
    assert proved <= 18  # of 200 at 5%: more come in one of a hundred such tests


class Planned(SimulatedBench):
    """Plans the window of all runs from the baseline's pilot, as the real bench does."""

    def run(self, arm, phase, block, *lane):
        pilots = [
            trial for trial in self.journal.document.trials if (trial.arm, trial.phase) == ("", "pilot")
        ]
        assert pilots or phase == "pilot"
        return super().run(arm, phase, block, *lane)


@pytest.mark.parametrize("start_s", [2.0, 8.0, 15.0, 22.0, 30.0, 40.0])
def test_search_starts_the_unchanged_command_first_when_its_diagnosis_left_no_pilot(start_s: float) -> None:
    table = Table({"quick0=1": 0.4}, start_s=start_s, window_s=4.0)
    bench = Planned(table, budget_s=THREE_MINUTES_S, switch_sd=0.01, guessed=2.0)
    study = searched(study_of(QUICK, budget_s=THREE_MINUTES_S), bench)
    assert "quick0=1" in recipe(study)


def test_search_states_the_launched_number_when_only_the_guess_of_a_run_says_that_no_pairs_fit() -> None:
    """The first start reads files from a cold disk, and later ones take half as long."""
    table = Table({"quick0=1": 0.4}, start_s=16.0, window_s=4.0)
    study, _bench, _ = within(table, QUICK[:1], switch_sd=0.01, check_s=15.0, spent_s=40.0, guessed=2.0)
    assert study.confirmed is not None and not study.confirmed.within
    assert study.confirmed.verdict == "faster" and study.confirmed.num_pairs >= MIN_PAIRS


def test_search_states_the_launched_number_when_a_single_setting_is_proved_and_a_start_of_it_is_long() -> (
    None
):
    """Other values of its knob leave nothing to prune; a start of its own would take the time of pairs."""
    compiled = [candidate(f"compile.mode={mode}", in_process=True) for mode in ("default", "reduce-overhead")]
    table = Table(
        {"compile.mode=default": 1.0, "compile.mode=reduce-overhead": 1.1}, start_s=4.0, window_s=4.0
    )
    cold_s = {one.id: 40.0 for one in compiled}
    study, _bench, _ = within(table, compiled, switch_sd=0.01, spent_s=50.0, cold_s=cold_s)
    assert study.confirmed is not None and not study.confirmed.within
    assert study.confirmed.verdict == "faster"


def test_search_starts_the_recipe_once_when_pairs_were_begun_and_do_not_fit() -> None:
    table = Table({"quick0=1": 0.4}, start_s=36.0, window_s=4.0)
    study, bench, _ = within(table, QUICK[:1], switch_sd=0.01, spent_s=60.0)
    assert recipe(study) == {"quick0=1"} and study.confirmed is not None and study.confirmed.within
    assert "quick0=1" in {key for key, _, _ in bench.ran}


def test_search_gives_what_compiles_the_rest_of_the_time_when_nothing_is_proved_without_it() -> None:
    """Time for pairs is kept in vain as long as there is nothing that pairs could state."""
    table = Table({"compile.mode=default": 0.5}, start_s=15.0, window_s=4.0)
    whole = arm([*(one.setting for one in QUICK), COMPILED[0].setting])
    study, _, _ = within(table, [*QUICK, *COMPILED], switch_sd=0.01, cold_s={whole.key: 80.0}, spent_s=40.0)
    assert "compile.mode=default" in recipe(study)


@pytest.mark.parametrize("seed", range(5))
def test_search_proves_the_part_of_a_bundle_that_helps_when_another_part_costs_as_much(seed: int) -> None:
    """Casting costs a host-bound program what another setting gains; and what compiles takes longer than
    there is."""
    candidates = [*QUICK, *COMPILED]
    cold_s = {arm([*(one.setting for one in QUICK), COMPILED[0].setting]).key: 500.0}
    table = Table({"quick0=1": 0.3, "quick1=1": -0.35}, start_s=20.0, window_s=4.0)
    bench = SimulatedBench(
        table, budget_s=THREE_MINUTES_S, switch_sd=0.02, seed=seed, cold_s=cold_s, spent_s=40.0
    )
    study = searched(study_of(candidates, budget_s=THREE_MINUTES_S, seed=seed), bench)
    assert recipe(study) & {"quick0=1", "quick1=1"} == {"quick0=1"}, study.verdict


@pytest.mark.parametrize(("num_cores", "has_both"), [(2, False), (16, True)])
def test_search_leaves_threads_out_of_the_bundle_when_workers_need_the_cores(
    num_cores: int, has_both: bool
) -> None:
    """There is time to confirm a bundle, and none to find out which of its settings it needs."""
    settings = ("loader.num_workers=2", "host.num_threads=2")
    together = {frozenset(settings): 0.0 if has_both else -0.55}
    gains = {"loader.num_workers=2": 0.5, "host.num_threads=2": 0.1}
    table = Table(gains, together, start_s=3.0, window_s=3.0)
    asked = replace(study_of(map(candidate, settings)), facts={"host.num_cores": num_cores})
    study, _bench, _ = run(asked, table, budget_s=75.0, noise=SOME_NOISE)
    assert recipe(study) == (set(settings) if has_both else {"loader.num_workers=2"})


# Prune


def test_a_setting_that_helps_is_proved_among_idle_ones_and_each_has_its_outcome_in_a_sentence() -> None:
    study = tuned(Table({"good=1": 0.10}), [*IDLE, candidate("good=1")])
    assert recipe(study) == {"good=1"}
    assert study.confirmed is not None and study.confirmed.verdict == "faster"
    assert study.confirmed.speedup == pytest.approx(math.exp(0.10), rel=0.02)
    assert study.verdict.startswith("Proved: with good=1 it is ")
    assert set(study.outcomes) == {one.id for one in study.candidates}
    assert all(kind in ("no-effect", "not-needed") for id_, kind in kinds(study).items() if id_ != "good=1")
    for outcome in study.outcomes.values():
        assert outcome.reason.endswith(".") and any(character.isdigit() for character in outcome.reason)


def test_several_settings_that_help_are_proved_one_by_one() -> None:
    gains = {"a=1": 0.20, "b=1": 0.08, "c=1": 0.05}
    study = tuned(Table(gains), [*IDLE, *map(candidate, gains)])
    assert recipe(study) == set(gains)
    for id_, gain in gains.items():
        (added,) = [
            one for one in study.estimates if one.against and id_ in one.arm and id_ not in one.against
        ]
        assert added.speedup == pytest.approx(math.exp(gain), rel=0.03)
        assert added.p is not None and added.p <= 0.05 and added.corrected_over == 9
        assert "With it the whole is" in study.outcomes[id_].reason


@pytest.mark.parametrize("seed", range(4))
def test_a_pair_that_helps_only_together_is_found(seed: int) -> None:
    table = Table({}, {frozenset({"a=1", "b=1"}): 0.2})
    assert recipe(tuned(table, [*IDLE[:2], candidate("a=1"), candidate("b=1")], seed=seed)) == {"a=1", "b=1"}


@pytest.mark.parametrize("seed", range(4))
def test_of_two_that_save_the_same_one_stays(seed: int) -> None:
    study = tuned(same_work("a=1", "b=1", 0.2), [*IDLE[:2], candidate("a=1"), candidate("b=1")], seed=seed)
    assert len(recipe(study)) == 1 and recipe(study) <= {"a=1", "b=1"}
    assert study.confirmed is not None and study.confirmed.speedup == pytest.approx(math.exp(0.2), rel=0.02)


def test_candidates_go_and_the_rest_is_proved_when_they_cost_beside_the_others() -> None:
    gains = {"a=1": 0.2, "b=1": 0.1, "bad=1": -0.6}
    study = tuned(Table(gains), [*map(candidate, gains)], budget_s=600.0)
    assert recipe(study) == {"a=1", "b=1"} and kinds(study)["bad=1"] == "slower"


def test_candidates_run_alone_when_the_bundle_does_not_win() -> None:
    table = Table({"a=1": 0.2, "b=1": 0.2}, {frozenset({"a=1", "b=1"}): -0.5})
    study = tuned(table, [candidate("a=1"), candidate("b=1")])
    assert len(recipe(study)) == 1
    assert study.confirmed is not None and study.confirmed.speedup == pytest.approx(math.exp(0.2), rel=0.02)


def test_the_best_value_of_a_knob_is_taken() -> None:
    table = Table({"knob=1": 0.05, "knob=2": 0.2, "knob=4": 0.1, "a=1": 0.1})
    study = tuned(table, [candidate("a=1"), *(candidate(f"knob={num}") for num in (1, 2, 4))])
    assert recipe(study) == {"a=1", "knob=2"}
    assert kinds(study)["knob=1"] == "not-needed" and "knob=2 was faster" in study.outcomes["knob=1"].reason


def test_values_of_one_knob_alone_are_compared_too() -> None:
    study = tuned(Table({"knob=1": 0.05, "knob=2": 0.2}), [candidate("knob=1"), candidate("knob=2")])
    assert recipe(study) == {"knob=2"}


def test_number_of_a_rounds_blocks_is_on_disk_before_its_first_run() -> None:
    journal = Kept(study_of([*IDLE, candidate("a=1")]))
    bench = SimulatedBench(Table({"a=1": 0.1}), noise=SOME_NOISE, budget_s=BUDGET_S)
    searched(journal, bench)
    before = next(one for one in journal.saved if one.rounds)
    assert not any(trial.phase == "prune" for trial in before.trials)
    assert journal.document.rounds[0] == before.rounds[0]


def test_whole_is_proved_when_the_time_leaves_nothing_out() -> None:
    gains = {"a=1": 0.3, "b=1": 0.2}
    study = tuned(Table(gains), [*IDLE[:2], *map(candidate, gains)], budget_s=12 * RUN_S)
    assert recipe(study) >= set(gains) and not study.rounds
    assert study.confirmed is not None and study.confirmed.verdict == "faster"


# Runs that give no value


@pytest.mark.parametrize(
    ("ended", "kind"),
    [
        ("failed", "failed"),
        ("out-of-memory", "out-of-memory"),
        ("rejected", "rejected"),
        ("timeout", "failed"),
    ],
)
def test_a_setting_that_ends_the_run_is_an_answer(ended: str, kind: str) -> None:
    table = Table({"good=1": 0.10}, ends={frozenset({"bad=1"}): ended})
    study = tuned(table, [*IDLE[:3], candidate("good=1"), candidate("bad=1")])
    assert recipe(study) == {"good=1"}
    assert kinds(study)["bad=1"] == kind and f"planned: {ended}" in study.outcomes["bad=1"].reason


def test_two_that_only_fail_together_are_both_known_and_one_is_taken() -> None:
    table = Table({"a=1": 0.2, "b=1": 0.1}, ends={frozenset({"a=1", "b=1"}): "failed"})
    study = tuned(table, [candidate("a=1"), candidate("b=1")])
    assert recipe(study) == {"a=1"}
    assert kinds(study)["b=1"] == "failed" and "beside a=1" in study.outcomes["b=1"].reason


def test_a_value_that_fails_gives_way_to_another_of_its_knob() -> None:
    table = Table({"knob=2": 0.2}, ends={frozenset({"knob=1"}): "out-of-memory"})
    study = tuned(table, [candidate("knob=1"), candidate("knob=2"), candidate("idle=1")])
    assert recipe(study) == {"knob=2"}


def test_without_what_the_others_need_to_run_the_whole_fails_and_it_stays() -> None:
    class Needy(SimulatedBench):
        def made(self, arm, phase, block, *lane):
            ids = {str(setting) for setting in arm.settings}
            self.table = Table({"a=1": 0.2}, ends={frozenset({"a=1"}): "failed"} if "b=1" not in ids else {})
            return super().made(arm, phase, block)

    study = searched(
        study_of([candidate("a=1"), candidate("b=1")]),
        Needy(Table(), noise=SOME_NOISE, budget_s=BUDGET_S),
        Silent(),
    )
    assert recipe(study) == {"a=1", "b=1"}


def test_search_proves_nothing_and_raises_nothing_when_every_candidate_fails() -> None:
    table = Table(ends={frozenset({one.id}): "failed" for one in IDLE})
    study = tuned(table, IDLE)
    assert study.verdict == "Nothing is proved: none of the 6 settings could be measured."
    assert set(kinds(study).values()) == {"failed"}


def test_a_command_that_fails_as_written_cannot_be_tuned() -> None:
    journal = Journal(study_of(IDLE))
    bench = SimulatedBench(Table(ends={frozenset(): "failed"}))
    with pytest.raises(CannotRunHere, match="as written"):
        searched(journal, bench)
    assert len(journal.document.trials) == 1


# Results


def test_a_setting_that_makes_results_wrong_is_in_no_recipe_and_the_others_are_proved() -> None:
    table = Table({"good=1": 0.10, "bad=1": 0.30}, ends={frozenset({"bad=1"}): "wrong-results"})
    study = tuned(table, [*IDLE[:2], candidate("good=1"), candidate("bad=1")])
    assert recipe(study) == {"good=1"}
    assert kinds(study)["bad=1"] == "wrong-results"


def test_results_are_checked_once_of_the_bundle_before_time_goes_into_it() -> None:
    study, bench, _ = run(study_of([*IDLE[:2], candidate("a=1")]), Table({"a=1": 0.2}), budget_s=BUDGET_S)
    assert recipe(study) == {"a=1"}
    assert bench.checked[0] == "a=1 idle0=1 idle1=1" and set(bench.checked[1:]) <= {"a=1"}


# Confirm


def test_a_single_candidate_goes_straight_to_its_confirmation() -> None:
    study = tuned(Table({"good=1": 0.05}), [candidate("good=1")])
    assert recipe(study) == {"good=1"}
    assert {trial.phase for trial in study.trials} == {"pilot", "confirm"}


def test_the_confirmation_uses_its_own_runs_only_in_balanced_order() -> None:
    study = tuned(Table({"good=1": 0.10}), [*IDLE, candidate("good=1")])
    assert study.confirmed is not None
    values = {trial.value for trial in study.trials if trial.phase == "confirm"}
    others = {trial.value for trial in study.trials if trial.phase != "confirm"}
    used = {value for pair in study.confirmed.pairs for value in (pair.baseline_s, pair.candidate_s)}
    assert used == values and not used & others
    firsts = [pair.first for pair in study.confirmed.pairs]
    assert all(one != other for one, other in zip(firsts[::2], firsts[1::2], strict=False))


def test_spread_of_earlier_runs_makes_few_fresh_pairs_enough_and_is_kept() -> None:
    study = tuned(Table({"good=1": 0.3}), [*IDLE[:3], candidate("good=1")])
    assert study.confirmed is not None and study.confirmed.seen is not None and study.confirmed.seen.df > 0
    assert document.decode(document.encode(study), Study, name="study").confirmed == study.confirmed


@pytest.mark.parametrize("ids", [["a=1"], ["a=1", "b=1"]])
def test_confirmation_tells_the_unit_and_the_window_of_its_runs(ids: list[str]) -> None:
    class ByStep(SimulatedBench):
        def __init__(self, *table) -> None:
            super().__init__(*table)
            self.planned = {"unit": "s/step", "warmup_steps": 5, "window_steps": 50, "step": "call Model"}

    study = study_of([candidate(id_) for id_ in ids], budget_s=1000.0)
    confirmed = searched(study, ByStep(Table({"a=1": 0.3}))).confirmed
    assert confirmed is not None and (confirmed.unit, confirmed.step) == ("step", "call Model")
    assert (confirmed.run.warmup_steps, confirmed.run.window_steps) == (5, 50)
    assert confirmed.baseline.s_per_step == pytest.approx(0.1) and confirmed.baseline.s_per_sample is None


def test_a_proof_that_the_time_does_not_hold_is_not_begun_and_what_it_takes_is_said() -> None:
    study = tuned(Table({"good=1": 0.3}), [candidate("good=1")], budget_s=3.4 * RUN_S)
    assert study.recipe == [] and kinds(study)["good=1"] == "not-tried" and study.trials == []
    assert study.verdict == "Nothing was tried: the time was too short."
    (said,) = study.warnings
    needed_s = float(re.search(r"--budget of (\d+) s", said)[1])
    assert recipe(tuned(Table({"good=1": 0.3}), [candidate("good=1")], budget_s=needed_s + RUN_S)) == {
        "good=1"
    }


def test_a_first_guess_that_is_too_long_is_measured_before_a_proof_is_given_up() -> None:
    table, budget_s = Table({"good=1": 0.3}), 12 * RUN_S
    study = tuned(table, [candidate("good=1")], budget_s=budget_s, guessed=2.5)
    assert recipe(study) == {"good=1"} and not study.warnings
    (said,) = tuned(table, [candidate("good=1")], budget_s=6 * RUN_S).warnings
    assert "A run takes about 10 s" in said


@pytest.mark.parametrize(("gain", "is_slower"), [(-0.3, True), (0.0, False)])
def test_settings_that_ran_only_together_are_not_said_to_be_without_effect(
    gain: float, is_slower: bool
) -> None:
    candidates = [candidate("a=1"), candidate("b=1")]
    study = tuned(Table({"a=1": gain}), candidates, budget_s=13 * RUN_S, noise=Noise(sd=0.001, stalls=0.0))
    assert study.confirmed is not None and study.confirmed.verdict == ("slower" if is_slower else "same")
    assert study.verdict.startswith("Nothing is proved: with a=1, b=1 together it is")
    assert set(kinds(study).values()) == {"unproved"}
    assert all("no time to run each alone" in outcome.reason for outcome in study.outcomes.values())


def test_no_answer_contradicts_what_a_setting_did_by_itself() -> None:
    for seed in range(400):
        draw = random.Random(seed)
        candidates = [
            candidate(f"k{at}={value}", in_process=draw.random() < 0.3, asked=True)
            for at in range(draw.randint(2, 4))
            for value in range(1, draw.randint(1, 2) + 1)
        ]
        gains = {one.id: draw.choice([0.0, 0.0, -0.1, 0.1, 0.02]) for one in candidates}
        study = tuned(
            Table(gains),
            candidates,
            budget_s=draw.choice([12, 16, 20, 30, 50]) * RUN_S,
            seed=seed,
            noise=Noise(sd=0.002, stalls=0.0),
            switch_sd=draw.choice([None, 0.002]),
        )
        for one in study.candidates:
            alone = [each for each in study.estimates if each.arm == one.key and not each.against]
            single, outcome = alone[-1] if alone else switched(study).get(one.key), study.outcomes[one.id]
            if single is not None and single.ci is not None and outcome.kind in ("no-effect", "slower"):
                assert single.ci[0] <= 1 + study.margin, (seed, one.id, outcome)
        settings = study.confirmed.candidate_settings if study.confirmed is not None else []
        if study.verdict.startswith("Nothing helps"):
            assert all(study.outcomes[str(one)].kind != "unproved" for one in settings), (seed, study.verdict)


# Time, noise, disturbance


@pytest.mark.parametrize("budget_s", [20.0, 45.0, 90.0, 140.0, 250.0, 400.0, 800.0])
def test_a_study_ends_within_its_budget_and_one_run_when_settings_help(budget_s: float) -> None:
    gains = {"a=1": 0.2, "b=1": 0.1}
    for seed in range(4):
        study, bench, _ = run(
            study_of([*IDLE, *map(candidate, gains)], budget_s=budget_s, seed=seed),
            Table(gains),
            budget_s=budget_s,
            noise=SOME_NOISE,
        )
        assert study.finished and study.verdict
        assert bench.clock_s <= budget_s + RUN_S
        assert set(study.outcomes) == {one.id for one in study.candidates}


@pytest.mark.parametrize("budget_s", [200.0, 600.0, 1500.0])
def test_settings_that_do_nothing_are_hardly_ever_proved(budget_s: float) -> None:
    """Of 60 studies under heavy tails, drift and stalls; the benchmark counts more."""
    wins = sum(
        bool(tuned(Table(), IDLE, budget_s=budget_s, noise=Noise(), seed=seed).recipe) for seed in range(60)
    )
    assert wins <= 6


def test_disturbed_runs_count_for_nothing_and_are_repeated() -> None:
    study = tuned(Table({"good=1": 0.10}), [*IDLE[:3], candidate("good=1")], voids=0.07, budget_s=2500.0)
    assert recipe(study) == {"good=1"}
    assert any(trial.void for trial in study.trials)
    void = {trial.value for trial in study.trials if trial.void}
    assert study.confirmed is not None and not void & {pair.candidate_s for pair in study.confirmed.pairs}


def test_a_machine_that_is_never_quiet_proves_nothing() -> None:
    study = tuned(Table({"good=1": 0.10}), [*IDLE[:3], candidate("good=1")], voids=1.1)
    assert study.recipe == [] and study.finished
    assert re.search(r"Nothing is proved: .*\d+ of \d+ runs were disturbed from outside", study.verdict)


def test_wild_noise_is_said_with_the_pairs_that_it_would_need() -> None:
    study = tuned(Table({"good=1": 0.02}), [*IDLE[:2], candidate("good=1")], noise=Noise(sd=0.2, stalls=0.0))
    (warning,) = [text for text in study.warnings if "pairs" in text]
    assert re.search(r"would take about \d+ pairs", warning)


# Stopping and going on


def test_a_search_stopped_anywhere_goes_on_and_adds_no_look() -> None:
    gains = {"a=1": 0.15, "b=1": 0.06}
    candidates = [*IDLE[:3], candidate("a=1"), candidate("b=1")]
    whole = tuned(Table(gains), candidates)
    assert recipe(whole) == set(gains)
    for stop in range(0, len(whole.trials), 3):
        journal = Journal(study_of(candidates, budget_s=BUDGET_S))
        first = SimulatedBench(Table(gains), budget_s=BUDGET_S, noise=SOME_NOISE, stop_after=stop)
        with pytest.raises(KeyboardInterrupt):
            searched(journal, first)
        stopped = document.decode(document.encode(journal.document), Study, name="study")
        assert len(stopped.trials) == stop
        second = SimulatedBench(
            Table(gains), budget_s=BUDGET_S, noise=SOME_NOISE, seed=1, spent_s=first.clock_s
        )
        study = searched(stopped, second)
        assert study.finished and recipe(study) == set(gains)
        assert study.trials[:stop] == stopped.trials
        assert study.rounds[: len(stopped.rounds)] == stopped.rounds
        assert study.confirmed is not None
        if stopped.confirmed is not None:
            assert study.confirmed.max_pairs == stopped.confirmed.max_pairs
            assert study.confirmed.pairs[: len(stopped.confirmed.pairs)] == stopped.confirmed.pairs
        # A pair is of one sitting: one whose second run is missing is run anew.
        blocks: dict[int, set[str]] = {}
        for trial in study.trials:
            if trial.phase == "confirm":
                blocks.setdefault(trial.block, set()).add(trial.arm)
        assert sum(len(arms) == 2 for arms in blocks.values()) == study.confirmed.num_pairs


def test_resumed_search_does_not_switch_again_what_was_switched_before() -> None:
    journal = Journal(study_of(QUICK))
    first = SimulatedBench(Table({"quick0=1": 0.2}), switch_sd=0.005, stop_after=0)
    with pytest.raises(KeyboardInterrupt):
        searched(journal, first)
    second = SimulatedBench(Table({"quick0=1": 0.2}), switch_sd=0.005)
    study = searched(journal.document, second)
    assert recipe(study) == {"quick0=1"} and second.switched == []


def test_a_finished_study_is_left_as_it_is() -> None:
    study = tuned(Table({"good=1": 0.10}), [*IDLE, candidate("good=1")])
    bench = SimulatedBench(Table())
    assert searched(study, bench) is study
    assert bench.ran == []


def test_the_same_seed_gives_the_same_search() -> None:
    first, second = (tuned(Table({"a=1": 0.15}), [*IDLE, candidate("a=1")]) for _ in range(2))
    assert first == second


def test_search_tells_arms_apart_when_one_value_reads_as_two_settings() -> None:
    """The first candidate alone and the two others together would be one text, if texts were not quoted."""
    odd, first, second = candidate("env.A=1 env.B=2"), candidate("env.A=1"), candidate("env.B=2")
    assert arm([odd.setting]).key != arm([first.setting, second.setting]).key
    study = tuned(Table({odd.id: 0.10, second.id: -0.10}), [odd, second])
    assert recipe(study) == {odd.id}
    assert study.outcomes[second.id].kind == "slower"
    assert all({odd.id, second.id} >= trial.ids for trial in study.trials)


def test_search_resumes_when_an_earlier_version_recorded_values_with_spaces() -> None:
    odd = candidate("env.FLAGS=--a=1 --b=2")
    study = tuned(Table({odd.id: 0.10}), [*IDLE, odd])
    text = document.encode(study).decode().replace(odd.key, odd.id)
    resumed = document.decode(text.encode(), Study, name="an earlier study")
    assert odd.key != odd.id and odd.key not in text
    assert resumed == study


def test_values_with_spaces_and_equal_signs_are_settings_too() -> None:
    odd = candidate("env.FLAGS=--a=1 --b=2")
    study = tuned(Table({odd.id: 0.10}), [*IDLE, odd])
    assert recipe(study) == {odd.id}
    assert arm(study.recipe or []).settings[0].value == "--a=1 --b=2"


def test_an_unknown_bound_is_no_reason_to_leave_a_setting_out() -> None:
    study = tuned(Table({"a=1": 0.1}), [candidate("a=1", bound=Unknown("nothing bounds it"))])
    assert recipe(study) == {"a=1"}


def test_every_order_of_candidates_finds_the_same_settings() -> None:
    gains = {"a=1": 0.2, "b=1": 0.1}
    for order in itertools.permutations([IDLE[0], candidate("a=1"), candidate("b=1")]):
        assert recipe(tuned(Table(gains), order)) == set(gains)


def test_another_value_of_a_knob_has_its_turn_when_the_first_costs() -> None:
    two, one = candidate("workers=2", bound=0.6), candidate("workers=1", bound=0.5)
    beside = [candidate(f"beside{at}=1", bound=0.3) for at in range(3)]
    table = Table({"workers=2": math.log(0.85), "workers=1": math.log(1.4)})
    # It holds no block with the other value, beside all that is left out by turns.
    study = tuned(table, [two, one, *beside], budget_s=230.0)
    assert study.rounds[0].values == {}
    assert recipe(study) == {"workers=1"}


def test_the_value_that_the_live_run_showed_to_be_fastest_stands_for_its_knob() -> None:
    values = [candidate(f"workers={num}", in_process=True, needs_warm_cache=False) for num in (2, 4, 16)]
    table = Table({"workers=2": math.log(1.3), "workers=4": math.log(3.8), "workers=16": math.log(9.4)})
    # There is time to run one value against none, and no other.
    study = tuned(table, [*values, candidate("beside=1", in_process=True)], budget_s=160.0, switch_sd=0.01)
    assert study.rounds == [] or "workers=16" in map(str, study.rounds[0].whole)
    assert "workers=16" in recipe(study)


def test_search_makes_the_pairs_that_fit_when_the_guess_of_a_run_was_too_long() -> None:
    table = Table({"slow0=1": 0.05}, start_s=2.0, window_s=4.0)
    one = [candidate("slow0=1", needs_warm_cache=False)]
    bench = SimulatedBench(table, budget_s=120.0, noise=SOME_NOISE, guessed=4.0)
    study = searched(study_of(one, budget_s=120.0), bench)
    first = [trial for trial in study.trials if trial.phase == "confirm"][:2]
    left_s = 120.0 - first[-1].began_s - first[-1].wall_s
    assert study.confirmed is not None
    assert study.confirmed.max_pairs == 1 + int(left_s / sum(trial.wall_s for trial in first)) > 4


# Lanes


class InLanes(SimulatedBench):
    num_lanes = 2

    def all_lanes(self):
        cpus = frozenset(os.sched_getaffinity(0))
        return [lanes.Lane(number, f"GPU-{number}", cpus) for number in range(1, self.num_lanes + 1)]

    def made(self, arm, phase, block, lane=lanes.WHOLE):
        with self.journal.lock:
            return replace(super().made(arm, phase, block), lane=lane.number)


def test_blocks_and_confirming_pairs_stay_in_their_lanes_and_the_answer_is_that_of_one_lane() -> None:
    table = Table({"slow0=1": 0.2, "slow1=1": -0.1})
    candidates = [candidate(f"slow{at}=1", needs_warm_cache=False) for at in range(2)]
    bench = InLanes(table, budget_s=BUDGET_S, noise=SOME_NOISE)
    study = searched(study_of(candidates, budget_s=BUDGET_S), bench)
    assert recipe(study) == recipe(tuned(table, candidates)) == {"slow0=1"}
    in_lane: dict[tuple[str, int], set[int]] = {}
    for trial in study.trials:
        in_lane.setdefault((trial.phase, trial.block), set()).add(trial.lane)
    assert in_lane.pop(("pilot", 0)) == {0}
    assert {len(found) for found in in_lane.values()} == {1}
    assert set[int]().union(*(found for (phase, _), found in in_lane.items() if phase == "prune")) == {1, 2}
    assert study.confirmed is not None
    assert [pair.lane for pair in study.confirmed.pairs] == [
        1 + at // 2 % 2 for at in range(study.confirmed.num_pairs)
    ]


def test_no_lane_is_idle_while_blocks_of_a_round_remain() -> None:
    """The bundle gains nothing, so its round ends at the first look: until then each lane has a block."""
    candidates = [candidate(f"slow{at}=1", needs_warm_cache=False) for at in range(2)]
    bench = InLanes(Table({"slow0=1": -0.1, "slow1=1": -0.1}), budget_s=BUDGET_S, noise=SOME_NOISE)
    bench.num_lanes = 4
    study = searched(study_of(candidates, budget_s=BUDGET_S), bench)
    of_first = range(1, 1 + study.rounds[0].num_blocks)
    used = {
        (trial.block, trial.lane)
        for trial in study.trials
        if trial.phase == "prune" and trial.block in of_first
    }
    assert len({lane for _, lane in used}) == len(used) == 4


def test_a_baseline_that_fails_in_a_lane_ends_the_study_once_all_lanes_are_done() -> None:
    class Fails(InLanes):
        def made(self, arm, phase, block, lane=lanes.WHOLE):
            trial = super().made(arm, phase, block, lane)
            return replace(trial, ended="failed") if not trial.arm and lane.number == 2 else trial

    candidates = [candidate(f"slow{at}=1", needs_warm_cache=False) for at in range(2)]
    bench = Fails(Table({"slow0=1": 0.2}), budget_s=BUDGET_S, noise=SOME_NOISE)
    with pytest.raises(CannotRunHere, match="gave no measurement"):
        searched(study_of(candidates, budget_s=BUDGET_S), bench)
