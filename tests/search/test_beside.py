"""A second start that compiles beside the live run: what begins it, what ends it, and what is said of it."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import pytest

from dynotune.measure.live import lane_order
from dynotune.schema.arm import arm
from dynotune.schema.errors import CommandFailed
from dynotune.schema.setting import Setting
from dynotune.search import beside
from dynotune.search.beside import STEPS, Beside
from lab.search.simulated_bench import SimulatedBench, searched
from lab.search.studies import candidate, study_of
from lab.search.tables import Table
from lab.silent import Silent

COMPILED = arm([Setting("compile.mode", "default")])


@pytest.fixture(autouse=True)
def no_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cores of these tests are made up."""
    monkeypatch.setattr(lane_order.os, "sched_setaffinity", lambda pid, cpus: None)
    siblings = [[0, 2], [1, 3]]
    monkeypatch.setattr(
        beside.probe.host, "cores", lambda cpus: [each for each in siblings if {*each} & {*cpus}]
    )


def with_steps(num: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(steps=[None] * num)]


def test_second_start_takes_half_of_the_cores_and_ends_after_its_first_steps() -> None:
    seen: list[tuple[object, ...]] = []

    def launch(one, lane, enough, go_on):
        seen.append((one, lane.cpus, enough([]), enough(with_steps(STEPS - 1)), enough(with_steps(STEPS))))

    told = Silent()
    second = Beside(launch, [3, 1, 2, 0], told)
    assert second.begin(COMPILED) and not second.begin(COMPILED), "one at a time"
    second.wait(60.0)
    assert seen == [(COMPILED, frozenset({1, 3}), False, False, True)], "a whole core"
    assert told.said == ["A second start of the command compiles at the same time, on 2 cores."]


def test_no_second_start_begins_when_it_would_take_cores_from_the_run_that_is_measured() -> None:
    second = Beside(lambda *_: pytest.fail("it was launched"), [0, 1, 2], Silent())
    assert not second.begin(COMPILED)
    second.wait(60.0)
    second.end()


def test_second_start_is_ended_when_it_takes_longer_than_it_may() -> None:
    running, ended = threading.Event(), threading.Event()

    def launch(one, lane, enough, go_on):
        running.set()
        try:
            while True:
                go_on()
                os.sched_yield()
        finally:
            ended.set()

    told = Silent()
    second = Beside(launch, [0, 1, 2, 3], told)
    assert second.begin(COMPILED) and running.wait(60.0)
    second.wait(0.0)
    assert ended.is_set() and "was ended" in told.said[-1]


def test_second_start_that_fails_is_no_failure_of_the_arm_and_is_said() -> None:
    def launch(one, lane, enough, go_on):
        raise CommandFailed("address already in use", command_exit_code=1, last_lines=[])

    told = Silent()
    second = Beside(launch, [0, 1, 2, 3], told)
    assert second.begin(COMPILED)
    second.wait(60.0)
    assert "compilation is tried in the first one: address already in use" in told.said[-1]


def test_search_keeps_its_budget_when_what_compiles_for_long_is_compiled_beside() -> None:
    """Compiling takes 70 s, of which 40 s pass while the settings that switch at once are compared."""

    class InTurn(SimulatedBench):
        def compile_beside(self, arm):
            """There is no room for a second start."""

    candidates = [candidate("quick=1", in_process=True), candidate("compile.mode=default", in_process=True)]
    cold_s = {arm([one.setting for one in candidates]).key: 70.0}
    table = Table({"compile.mode=default": 0.5}, start_s=20.0, window_s=16.0)
    ended_s = []
    for kind in (SimulatedBench, InTurn):
        bench = kind(table, budget_s=180.0, switch_sd=0.05, spent_s=40.0, cold_s=cold_s, seed=1)
        assert "compile.mode=default" in map(str, searched(study_of(candidates), bench).recipe)
        ended_s.append(bench.clock_s)
    assert ended_s[0] < 180.0 < ended_s[1]
