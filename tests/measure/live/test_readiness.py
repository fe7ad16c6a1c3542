"""When a run has made enough steps, from records that are made up."""

from __future__ import annotations

from types import SimpleNamespace

from dynotune.measure.live.readiness import Steadiness, UntilStep

from ...fakes import record, spec


def test_a_run_without_a_step_says_once_how_one_is_named(monkeypatch):
    now, told = [0.0], []
    monkeypatch.setattr("dynotune.measure.live.readiness.time", SimpleNamespace(monotonic=lambda: now[0]))
    until = UntilStep(lambda records: len(records) > 1, told.append)
    for at_s in (1.0, 19.0, 21.0, 200.0):
        now[0] = at_s
        assert not until([])
    assert len(told) == 1 and "--step-function" in told[0]
    now[0] = 0.0
    compiling = UntilStep(lambda records: len(records) > 1, told.append, lambda: True)
    for now[0] in (61.0, 200.0):
        assert not compiling([])
    assert len(told) == 2 and "compiles" in told.pop()
    stepping = UntilStep(lambda records: len(records) > 1, told.append)
    assert not stepping([record([0.1])])
    now[0] = 1000.0
    assert stepping([record([0.1]), record([0.1])]) and len(told) == 1


def test_a_pilot_goes_on_until_it_has_been_steady_for_a_while():
    enough = Steadiness(spec())
    assert not enough([])
    assert not enough([record([0.01] * 40)])
    assert enough([record([0.1] * 100)])


def test_a_pilot_whose_window_is_given_goes_on_to_its_end():
    enough = Steadiness(spec(warmup_steps=3, window_steps=20))
    assert not enough([record([0.01] * 22)])
    assert enough([record([0.01] * 23)])


def test_a_pilot_that_never_becomes_steady_ends_all_the_same():
    restless = [2.0 - 0.002 * index for index in range(100)]
    assert Steadiness(spec())([record(restless)])
