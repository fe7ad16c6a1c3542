"""Settings that round: their results are checked before they enter a recipe, and what they add is told
apart."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from dynotune.measure.comparison import stats
from dynotune.schema.facts import Unknown
from dynotune.schema.study import Parts, Study
from dynotune.search.results import NO_TIME
from dynotune.search.tune import reopened
from lab.search.simulated_bench import SimulatedBench, searched
from lab.search.studies import candidate, study_of
from lab.search.tables import Noise, Table

BUDGET_S, THREE_MINUTES_S = 1500.0, 180.0
NOISE = Noise(sd=0.003, stalls=0.0)
EXACT, ROUNDING = candidate("exact=1"), candidate("rounding=1", effect="numerics")
GAINS = {"exact=1": 0.10, "rounding=1": 0.30}
SLOW_START = {"start_s": 40.0, "window_s": 4.0}
"""Costs of a run with which three minutes hold no fresh pairs."""
QUICK = [replace(one, in_process=True) for one in (EXACT, ROUNDING)]


class RealCosts(SimulatedBench):
    """A bench that, like the real one, takes no time to check an arm in which no setting rounds."""

    def check_s(self, arm):
        return super().check_s(arm) if ROUNDING.setting in arm.settings else 0.0

    def check(self, arm):
        return super().check(arm) if ROUNDING.setting in arm.settings else None


def tuned(table: Table, candidates, *, budget_s: float = BUDGET_S, **bench) -> Study:
    made = RealCosts(table, budget_s=budget_s, noise=NOISE, **bench)
    return searched(study_of(candidates, budget_s=budget_s), made)


def within(table: Table, candidates=QUICK, **bench) -> Study:
    return tuned(table, candidates, budget_s=THREE_MINUTES_S, switch_sd=0.01, **bench)


def recipe(study: Study) -> set[str]:
    return {str(setting) for setting in study.recipe or []}


@pytest.mark.parametrize("ended", ["unchecked", "wrong-results"])
def test_a_setting_that_rounds_stays_out_when_its_results_are_unchecked_or_wrong(ended):
    study = tuned(Table(GAINS, ends={frozenset({"rounding=1"}): ended}), [EXACT, ROUNDING])
    assert recipe(study) == {"exact=1"} and study.outcomes["rounding=1"].kind == ended
    assert "rounding=1 stays out of the recipe: " in study.verdict and f"planned: {ended}" in study.verdict


def test_a_setting_that_rounds_is_proved_when_its_results_are_right():
    study = tuned(Table(GAINS), [EXACT, ROUNDING])
    assert recipe(study) == {"exact=1", "rounding=1"} and "stays out" not in study.verdict


@pytest.mark.parametrize("ended", ["unchecked", "wrong-results"])
def test_a_proof_within_one_process_is_no_recipe_when_its_results_are_unchecked_or_wrong(ended):
    study = within(Table(GAINS, ends={frozenset({"rounding=1"}): ended}, **SLOW_START))
    assert "rounding=1" not in recipe(study) and study.outcomes["rounding=1"].kind == ended
    assert "the command is" in study.outcomes["rounding=1"].reason, "how fast it was is said, too"


def test_a_setting_that_rounds_stays_out_when_there_is_no_time_to_check_it():
    study = within(Table(GAINS, **SLOW_START), QUICK[1:], check_s=THREE_MINUTES_S)
    assert study.recipe == [] and study.outcomes["rounding=1"].kind == "unchecked"
    assert study.verdict.startswith("Nothing is proved. rounding=1 stays out of the recipe: ")
    assert NO_TIME in study.verdict and study.wants_time


def test_exact_settings_are_proved_when_there_is_no_time_to_check_those_that_round():
    study = tuned(Table(GAINS), [EXACT, ROUNDING], budget_s=400.0, check_s=1000.0)
    assert recipe(study) == {"exact=1"} and study.outcomes["rounding=1"].kind == "unchecked"


@pytest.mark.parametrize(("tune", "phase"), [(tuned, "prune"), (within, "switch")])
def test_parts_tell_the_gain_of_rounding_apart_when_a_recipe_holds_both(tune, phase):
    candidates = QUICK if tune is within else [EXACT, ROUNDING]
    study = tune(Table(GAINS, **(SLOW_START if tune is within else {})), candidates)
    assert recipe(study) == {"exact=1", "rounding=1"}
    assert isinstance(study.parts, Parts)
    assert (study.parts.exact.phase, study.parts.rounding.phase) == (phase, phase)
    for part, gain in ((study.parts.exact, 0.10), (study.parts.rounding, 0.30)):
        assert part.speedup == pytest.approx(math.exp(gain), rel=0.03) and part.ci is not None


@pytest.mark.parametrize("one", [EXACT, ROUNDING])
def test_nothing_is_told_apart_when_a_recipe_holds_one_kind(one):
    assert tuned(Table(GAINS), [one]).parts is None


def test_parts_are_unknown_when_the_time_was_too_short_to_measure_them():
    # The bundle's first blocks take all the time.
    study = tuned(Table(GAINS, start_s=40.0, window_s=150.0), QUICK, budget_s=THREE_MINUTES_S, switch_sd=0.01)
    assert recipe(study) == {"exact=1", "rounding=1"} and isinstance(study.parts, Unknown)


def test_a_proof_within_one_process_is_stated_by_fresh_pairs_when_more_time_is_given():
    table = Table(GAINS, **SLOW_START)
    study = within(table)
    assert study.wants_time and study.confirmed is not None and study.confirmed.within
    bench = SimulatedBench(table, budget_s=4 * BUDGET_S, noise=NOISE, spent_s=THREE_MINUTES_S, switch_sd=0.01)
    bench.guarded = {guarded.arm: guarded for guarded in study.guarded}
    again = searched(reopened(replace(study, budget_s=4 * BUDGET_S)), bench)
    assert recipe(again) == recipe(study) and not again.wants_time
    assert again.confirmed is not None and not again.confirmed.within
    assert again.trials[: len(study.trials)] == study.trials


def test_study_settles_what_is_open_when_the_time_that_it_names_is_given():
    table = Table(GAINS, **SLOW_START)
    study = within(table, QUICK[1:], check_s=THREE_MINUTES_S)
    assert study.settles_in_s is not None and study.settles_in_s > THREE_MINUTES_S
    budget_s = THREE_MINUTES_S + 1.25 * study.settles_in_s
    bench = RealCosts(table, budget_s=budget_s, noise=NOISE, spent_s=THREE_MINUTES_S, check_s=THREE_MINUTES_S)
    again = searched(reopened(replace(study, budget_s=budget_s)), bench)
    assert recipe(again) == {"rounding=1"} and not again.wants_time and again.settles_in_s is None


def test_time_to_settle_is_unnamed_when_no_number_of_blocks_is_known_to_be_enough(monkeypatch):
    monkeypatch.setattr(stats, "_MOST_TO_SETTLE", 2)
    study = tuned(Table(GAINS, **SLOW_START), QUICK[1:], budget_s=THREE_MINUTES_S, switch_sd=0.8)
    assert study.confirmed is not None and study.confirmed.verdict == "undecided"
    assert study.confirmed.num_pairs_to_settle is None
    assert study.wants_time and study.settles_in_s is None
