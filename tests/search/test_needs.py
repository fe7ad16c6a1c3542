"""Settings that mean something only beside others: never in an arm without them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.recipes import writing
from dynotune.report.study.commands import compares
from dynotune.report.study.rows import saved, tried
from dynotune.schema.arm import Arm
from dynotune.schema.recipe import read, text, write
from dynotune.schema.setting import Setting
from dynotune.schema.study import Study, without
from dynotune.search.bench import complete, dependants, needed_first
from lab.search.simulated_bench import SimulatedBench, searched
from lab.search.studies import candidate, study_of
from lab.search.tables import Noise, Table

NOISE = Noise(sd=0.003, stalls=0.0)
BUDGET_S = 1800.0
WORKERS = [candidate(f"loader.num_workers={num}", needs_warm_cache=False) for num in (2, 4)]
NEEDED = [one.id for one in WORKERS]
BESIDE = [
    candidate("loader.prefetch_factor=4", needs_warm_cache=False, needs=NEEDED),
    candidate("loader.persistent_workers=true", needs_warm_cache=True, needs=NEEDED),
]
OTHERS = [candidate(f"idle{at}=1", needs_warm_cache=False) for at in range(4)]
ALL = [*WORKERS, *BESIDE, *OTHERS]
PREFETCH, PERSISTENT = (one.id for one in BESIDE)


class Strict(SimulatedBench):
    """A command that cannot be run with what means nothing there."""

    def made(self, arm: Arm, phase, block, *lane):
        ids = [str(setting) for setting in arm.settings]
        assert not {PREFETCH, PERSISTENT} & set(ids) or set(NEEDED) & set(ids), arm.key
        return super().made(arm, phase, block)


def tuned(table: Table, candidates=ALL, *, seed: int = 0, budget_s: float = BUDGET_S, **bench) -> Study:
    made = Strict(table, budget_s=budget_s, noise=NOISE, seed=seed, **bench)
    return searched(study_of(candidates, budget_s=budget_s, seed=seed), made)


def kept(study: Study) -> set[str]:
    return {str(setting) for setting in study.recipe or []}


def gains(workers: float = 0.0, prefetch: float = 0.0) -> Table:
    return Table({"loader.num_workers=4": workers, "loader.num_workers=2": workers / 2, PREFETCH: prefetch})


@pytest.mark.parametrize("seed", range(3))
def test_needing_setting_is_found_beside_the_needed_one_and_proved_apart(seed: int, tmp_path) -> None:
    study = tuned(gains(workers=0.2, prefetch=0.1), seed=seed)
    assert kept(study) == {"loader.num_workers=4", PREFETCH}
    reason = study.outcomes["loader.num_workers=4"].reason
    assert f"With it and {PREFETCH}, {PERSISTENT}, which need it, the whole is " in reason
    told = [one for one in study.estimates if PREFETCH in one.arm and PREFETCH not in one.against]
    (worth,) = [one for one in told if "loader.num_workers" in one.against]
    assert worth.speedup == pytest.approx(math.exp(0.1), rel=0.03)
    made = writing.recipe_of(study)
    proofs = {proof.knob: proof.speedup for proof in made.proof}
    assert proofs["loader.prefetch_factor"] == pytest.approx(math.exp(0.1), rel=0.03)
    assert proofs["loader.num_workers"] == pytest.approx(math.exp(0.3), rel=0.04)
    assert {proof.knob: proof.left_out_too for proof in made.proof} == {
        "loader.num_workers": ["loader.prefetch_factor", "loader.persistent_workers"],
        "loader.prefetch_factor": [],
    }
    words = " ".join(text(made).replace("\n#", "").split())
    assert "with it and loader.prefetch_factor and loader.persistent_workers against without" in words
    write(tmp_path / "recipe.toml", made)
    assert read(tmp_path / "recipe.toml").proof == made.proof


@pytest.mark.parametrize("seed", range(3))
def test_workers_that_do_nothing_by_themselves_stay_for_what_needs_them(seed: int) -> None:
    assert PREFETCH in kept(tuned(gains(prefetch=0.2), seed=seed))


@pytest.mark.parametrize("seed", range(3))
def test_tune_leaves_out_a_setting_without_effect_beside_workers_and_keeps_them(seed: int) -> None:
    study = tuned(gains(workers=0.2), seed=seed)
    assert kept(study) == {"loader.num_workers=4"}
    assert study.outcomes[PREFETCH].kind in ("no-effect", "unproved", "not-needed")


def test_needing_setting_is_in_no_run_when_the_needed_one_fails() -> None:
    table = Table({PREFETCH: 0.2}, ends={frozenset({one.id}): "failed" for one in WORKERS})
    study = tuned(table)
    assert kept(study) == set()
    assert study.outcomes[PREFETCH].kind == "not-tried"
    assert study.outcomes[PREFETCH].reason == (
        "It only matters together with loader.num_workers=2 or 4, which did not run."
    )


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("budget_s", [80.0, 200.0, 500.0, 1000.0])
def test_needing_setting_never_stands_without_the_needed_one_whatever_the_budget(
    seed: int, budget_s: float
) -> None:
    ends = {frozenset({"loader.num_workers=4", "idle0=1"}): "failed"} if seed % 2 else {}
    worth = {
        "loader.num_workers=4": 0.03 * seed,
        PREFETCH: 0.2 - 0.03 * seed,
        PERSISTENT: 0.05,
        "idle0=1": 0.05,
    }
    study = tuned(Table(worth, ends=ends), seed=seed, budget_s=budget_s, voids=0.05)
    assert set(study.outcomes) == {one.id for one in ALL}
    for arm in (
        study.recipe or [],
        study.selected or [],
        *(one.whole for one in study.rounds),
        *(one for round_ in study.rounds for one in [*round_.arms.values(), *round_.values.values()]),
    ):
        assert complete(arm, ALL) == list(arm)


def test_alone_with_its_workers_it_is_tried_too() -> None:
    study = tuned(gains(workers=0.1, prefetch=0.1), [WORKERS[1], *BESIDE[:1]])
    assert "loader.num_workers=4" in kept(study)
    assert all(kind.kind != "not-tried" for kind in study.outcomes.values())


def test_a_report_tells_it_beside_what_it_needs_and_gives_a_command_that_can_be_run() -> None:
    study = tuned(gains(workers=0.2, prefetch=0.1))
    row = next(row for row in tried(study) if row.candidate.id == PREFETCH)
    assert row.worth is not None and row.worth.speedup == pytest.approx(math.exp(0.1), rel=0.03)
    made = {command.what: " ".join(command.words) for command in compares(study)}
    assert not any(one.candidate.needs for one in saved(study))
    (line,) = [line for what, line in made.items() if what.startswith(f"{PREFETCH} beside")]
    assert (
        " loader.prefetch_factor=4 loader.num_workers=" in line and " --baseline loader.num_workers=" in line
    )
    with_all = made["The recipe with and without loader.num_workers=4"]
    assert "--baseline loader.prefetch_factor" not in with_all


# What belongs together


@given(st.permutations(ALL), st.integers(0, len(ALL)))
def test_of_any_choice_what_is_left_means_something(order, num: int) -> None:
    chosen = order[:num]
    left = complete([one.setting for one in chosen], ALL)
    assert complete(left, ALL) == left
    assert all(one.setting in left for one in chosen if not one.needs)
    ordered = [one.setting for one in needed_first(chosen) if one.setting in left]
    assert sorted(map(str, ordered)) == sorted(map(str, left))
    assert all(complete(ordered[:at], ALL) == ordered[:at] for at in range(len(ordered) + 1))


def test_an_arm_loses_a_setting_with_what_needs_it() -> None:
    rest = frozenset({"a=1", "b= with spaces"})
    ids = rest | {"loader.num_workers=4", PREFETCH}
    assert without(ids, "loader.num_workers=4", ALL) == rest
    assert without(ids, PREFETCH, ALL) == rest | {"loader.num_workers=4"}
    assert without(ids, "loader.num_workers=2", ALL) is None
    whole = [Setting("loader.num_workers", 4), Setting("loader.prefetch_factor", 4)]
    assert dependants("loader.num_workers=4", whole, ALL) == whole[1:]
    assert dependants(PREFETCH, whole, ALL) == []
