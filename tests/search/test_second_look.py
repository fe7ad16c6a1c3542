"""What holds a command up once its best settings are in, tried beside them."""

from __future__ import annotations

import msgspec
import pytest

from dynotune.schema.diagnosis import Diagnosis
from dynotune.schema.facts import Unknown
from dynotune.schema.study import Candidate, Fate, Study
from dynotune.search.bench import Look
from dynotune.search.second_look import beside
from dynotune.search.study import search

from .simulated import Silent, SimulatedBench, Table, candidate, study_of
from .test_search import BUDGET_S, IDLE, SOME_NOISE, fates, recipe, run

HALF = candidate("half=1", group="graph", warms=False)
WORKERS = candidate("workers=4", group="loader", warms=False)
BESIDE = Table({"half=1": 0.7}, {frozenset({"half=1", "workers=4"}): 0.15})
"""Workers spare nothing of a step that the device takes long for."""


def look(*named: Candidate) -> Look:
    unknown = Unknown("it is simulated")
    diagnosis = Diagnosis(
        command=["train"], verdict="It waits for its loader.", bottleneck="input", shares=unknown, findings=[],
        unknown=[], steps=unknown, busy_share=None, ceilings=unknown, limit=unknown, facts={}, notes=[],
    )  # fmt: skip
    return Look(diagnosis, list(named), [])


def tuned(candidates, *named: Candidate, budget_s: float = BUDGET_S, **more) -> tuple[Study, SimulatedBench, Silent]:
    study = study_of(candidates, budget_s=budget_s)
    return run(study, BESIDE, budget_s=budget_s, noise=SOME_NOISE, look=look(*named), **more)


@pytest.mark.parametrize("others", [[], IDLE])
def test_what_helps_only_beside_the_best_setting_is_found_there(others: list[Candidate]) -> None:
    study, bench, watcher = tuned([HALF, *others], WORKERS)
    assert recipe(study) == {"half=1", "workers=4"}
    assert [list(map(str, settings)) for settings in bench.looked] == [["half=1"]]
    assert study.looked is not None and study.looked.diagnosis.bottleneck == "input"
    assert "With half=1: It waits for its loader." in watcher.said
    assert "To try beside: workers=4." in watcher.said
    # It is in no run without the setting that it is tried beside.
    assert all("half=1" in trial.arm for trial in study.trials if "workers=4" in trial.arm)


def test_what_did_nothing_without_the_best_setting_gets_another_chance() -> None:
    study, _, _ = tuned([HALF, WORKERS, *IDLE], WORKERS, budget_s=3000.0)
    assert recipe(study) == {"half=1", "workers=4"}


def test_where_nothing_new_is_named_the_search_goes_on_as_it_was() -> None:
    study, bench, watcher = tuned([HALF, *IDLE], HALF)
    assert recipe(study) == {"half=1"}
    assert len(bench.looked) == 1
    assert not any(said.startswith("To try beside") for said in watcher.said)


def test_an_idle_setting_that_a_second_look_names_is_in_no_recipe() -> None:
    study, _, _ = tuned([HALF, *IDLE], candidate("more=1", warms=False))
    assert recipe(study) == {"half=1"}
    assert fates(study)["more=1"] in ("no-effect", "unproved")


def test_where_nothing_helps_nobody_looks_again() -> None:
    _, bench, _ = run(study_of(IDLE, budget_s=BUDGET_S), Table({}), budget_s=BUDGET_S, look=look(WORKERS))
    assert bench.looked == []


def test_no_second_look_takes_the_time_of_a_proof() -> None:
    study, bench, _ = tuned([HALF, *IDLE[:2]], WORKERS, budget_s=260.0)
    assert recipe(study) == {"half=1"}
    assert bench.looked == []


def test_a_search_with_a_second_look_stopped_anywhere_looks_once() -> None:
    whole, _, _ = tuned([HALF, *IDLE[:2]], WORKERS)
    for stop in range(1, len(whole.trials), 4):
        saved = [study_of([HALF, *IDLE[:2]], budget_s=BUDGET_S)]
        usual = {"budget_s": BUDGET_S, "noise": SOME_NOISE, "look": look(WORKERS)}
        first = SimulatedBench(BESIDE, stop_after=stop, **usual)
        with pytest.raises(KeyboardInterrupt):
            search(saved[0], first, saved.append, Silent())
        stopped = msgspec.json.decode(msgspec.json.encode(saved[-1]), type=Study)
        second = SimulatedBench(BESIDE, seed=1, spent_s=first.clock_s, **usual)
        study = search(stopped, second, lambda study: None, Silent())
        assert recipe(study) == {"half=1", "workers=4"}
        assert len(first.looked) + len(second.looked) == 1


@pytest.mark.parametrize(
    ("kind", "again"),
    [("not-tried", True), ("no-effect", True), ("slower", True), ("failed", False), ("wrong-results", False)],
)
def test_what_failed_is_not_tried_again_beside_others(kind: str, again: bool) -> None:
    study = study_of([HALF, WORKERS])
    study = msgspec.structs.replace(study, fates={"workers=4": Fate(kind, "So it was.")})
    found = beside(study, [HALF.setting], [WORKERS, HALF])
    assert [(one.id, one.needs) for one in found] == ([("workers=4", ["half=1"])] if again else [])


def test_another_value_of_a_knob_stands_alone() -> None:
    found = beside(study_of([WORKERS]), [WORKERS.setting], [candidate("workers=8", group="loader")])
    assert [(one.id, one.needs) for one in found] == [("workers=8", [])]


def test_a_first_run_that_takes_the_time_leaves_the_rest_to_the_others() -> None:
    table = Table({"compile=1": 0.5, "good=1": 0.25})
    candidates = [candidate("compile=1"), candidate("good=1", warms=False)]
    study, _, _ = run(study_of(candidates), table, budget_s=300.0, noise=SOME_NOISE, cold_s={"compile=1": 90.0})
    assert recipe(study) == {"good=1"}
    assert fates(study)["compile=1"] == "not-tried"
    assert study.fates["compile=1"].reason.startswith("A run with it takes 5")
