"""Runs at values: what is planned anew for each value, and what a run shows that ends too late."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dynotune.measure.bench import ValueBench, value_runs
from dynotune.schema.errors import CannotRunHere, CommandFailed, TooLong
from dynotune.schema.largest import Limit

from ...fakes import spec


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A bench whose launches are kept, and raise what `raises` holds for the value."""
    bench = ValueBench(
        spec(command=["serve", "{batch}"], cwd=tmp_path),
        "batch",
        [Limit("throughput", 1.0)],
        fps=None,
        window_s=10.0,
        folder=tmp_path,
        facts={},
    )
    kept = SimpleNamespace(bench=bench, launches=[], raises={})

    def launch(run, settings, name, window):
        kept.launches.append((name, window))
        if window is not None and (error := kept.raises.get(settings[-1].value)) is not None:
            raise error
        return name

    monkeypatch.setattr(bench, "_launch", launch)
    monkeypatch.setattr(value_runs, "plan_window", lambda run, pilots: f"window of {pilots[0]}")
    monkeypatch.setattr(value_runs.summary, "unit", lambda pilots: "step")
    monkeypatch.setattr(value_runs.objective, "value", lambda outcome, measured, unit: 0.5)
    monkeypatch.setattr(value_runs.objective, "interval", lambda outcome, measured, value: (0.4, 0.6))
    return kept


def test_window_is_planned_anew_when_the_value_is_another(made):
    for number, value in enumerate((1, 64, 64)):
        made.bench.run(value, number)
    assert [window for _, window in made.launches if window is not None] == [
        "window of 000-1-throughput-pilot",
        "window of 001-64-throughput-pilot",
        "window of 001-64-throughput-pilot",
    ]


def test_value_is_open_when_a_run_takes_longer_than_its_limit(made):
    made.raises = {
        "64": TooLong("The run took longer than 96 s."),
        64: TooLong("The run took longer than 96 s."),
    }
    assert made.bench.run(1, 0).verdict([Limit("throughput", 1.0)]) == "holds"
    found = made.bench.run(64, 1)
    assert (found.failed, found.cut_off) == ("", "The run took longer than 96 s.")
    assert found.verdict([Limit("throughput", 1.0)]) == "open"


def test_value_breaks_when_the_command_fails_after_a_smaller_one_ran(made):
    failed = CommandFailed("It failed.", command_exit_code=1, last_lines=("out of memory",))
    made.raises = {"64": failed, 64: failed}
    made.bench.run(1, 0)
    assert made.bench.run(64, 1).verdict([Limit("throughput", 1.0)]) == "breaks"


def test_run_is_refused_when_the_first_takes_too_long(made):
    made.raises = {"1": TooLong("late"), 1: TooLong("late")}
    with pytest.raises(CannotRunHere, match="late"):
        made.bench.run(1, 0)
