"""Pins the answers of the search on tables of `benchmarks/search_replay.py`: a redesign of the code moves
none of them.

A change that is meant to move answers writes the file anew:
`PYTHONPATH=src:. python tests/search/test_replay.py`.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path

import msgspec
import pytest

from dynotune.measure.comparison import launched
from lab.provenance import RESULTS
from lab.search.problems import Problem, few, helping, of_parts, recorded, slow_start, synthetic
from lab.search.simulated_bench import SimulatedBench, searched
from lab.search.studies import study_of

FILE = Path(__file__).with_name("replayed.json")
ROWS = tomllib.loads(Path(__file__).with_name("replayed_launched.toml").read_text())["rows"]
"""Arms that were launched, as the package kept them when the answers were recorded: more rows move the
answers."""


def rows_as_recorded() -> tuple[launched.Launched, ...]:
    return tuple(msgspec.convert(ROWS, list[launched.Launched]))


@pytest.fixture(autouse=True)
def as_recorded(monkeypatch):
    monkeypatch.setattr(launched, "rows", rows_as_recorded)


def problems() -> dict[str, Problem]:
    made = {
        **{f"synthetic {seed}": synthetic(seed, 0.02, 30) for seed in range(4)},
        **{f"few {seed}": few(seed, 0.005, 18) for seed in range(3)},
        **{f"parts {seed}": of_parts(seed, 0.02, 30) for seed in range(3)},
        **{f"nothing helps {seed}": helping(0.0, 0.02, seed) for seed in range(2)},
        **{f"one gains 10% {seed}": helping(0.1, 0.005, seed) for seed in range(2)},
        **{f"slow start, nothing helps {seed}": slow_start(0.0, 0.02, seed) for seed in range(3)},
        **{f"slow start, the bundle gains 20% {seed}": slow_start(0.2, 0.005, seed) for seed in range(3)},
    }
    tables = sorted((RESULTS / "tuning_tables").glob("*.json"))
    return made | {f"recorded {path.stem}": recorded(path, 0, 0.25) for path in tables}


def answer(problem: Problem) -> dict[str, object]:
    bench = SimulatedBench(
        problem.table,
        budget_s=problem.budget_s,
        noise=problem.noise,
        seed=problem.seed,
        switch_sd=problem.switch_sd,
    )
    asked = study_of(problem.candidates, budget_s=problem.budget_s, seed=problem.seed)
    study = searched(asked, bench)
    confirmed = study.confirmed
    return {
        "recipe": sorted(map(str, study.recipe or [])),
        "verdict": study.verdict,
        "outcomes": {id_: outcome.kind for id_, outcome in study.outcomes.items()},
        "num_trials": len(study.trials),
        "trials": hashlib.sha256(
            repr([(one.arm, one.phase, one.block) for one in study.trials]).encode()
        ).hexdigest(),
        "confirmed": None if confirmed is None else [confirmed.verdict, confirmed.speedup, confirmed.ci],
        "pairs": 0 if confirmed is None else len(confirmed.pairs),
        "clock_s": bench.clock_s,
    }


PINNED: dict[str, dict[str, object]] = json.loads(FILE.read_text()) if FILE.exists() else {}


@pytest.mark.parametrize("name", sorted(problems()))
def test_search_answers_as_recorded_when_a_table_is_replayed(name: str) -> None:
    found = json.loads(json.dumps(answer(problems()[name])))
    clock_s, confirmed = found.pop("clock_s"), found.pop("confirmed")
    pinned = dict(PINNED[name])
    assert clock_s == pytest.approx(pinned.pop("clock_s"))
    known = pinned.pop("confirmed")
    assert (confirmed is None) == (known is None)
    if confirmed is not None:
        assert confirmed[0] == known[0]
        assert confirmed[1] == pytest.approx(known[1])
        assert confirmed[2] == (known[2] and pytest.approx(known[2]))
    assert found == pinned


if __name__ == "__main__":
    launched.rows = rows_as_recorded  # type: ignore[assignment]
    FILE.write_text(
        json.dumps({name: answer(problem) for name, problem in problems().items()}, indent=1) + "\n"
    )
