"""Objects of Python that steps leave behind."""

from __future__ import annotations

import pytest

from dynotune.agent.tasks import count_objects
from dynotune.agent.tasks.count_objects import CountObjects
from dynotune.schema.events import ObjectsCounted

from .fake_program import fake_program


class Kept:
    pass


@pytest.fixture
def counted():
    """Gives the event of a task between whose counts a function ran for each of ten steps."""

    def run(step):
        program = fake_program(None)
        task = CountObjects(program, {"num_steps": 10})
        task.reached(5)
        for _ in range(10):
            step()
        task.reached(15)
        assert task.done and not program.errors
        (event,) = program.events
        return event

    return run


def test_objects_that_steps_keep_are_counted_by_their_type(counted):
    kept = []
    event = counted(lambda: kept.extend((Kept(), Kept())))
    (mine,) = [one for one in event["grown"] if one["name"].endswith("test_count_objects.Kept")]
    assert (event["event"], event["num_steps"], mine["growth"]) == ("objects", 10, 20)
    assert mine["num"] >= 20


def test_objects_that_steps_release_are_not_counted(counted):
    event = counted(Kept)
    assert not [one for one in event["grown"] if one["name"].endswith("test_count_objects.Kept")]


def test_counting_is_given_up_when_there_are_too_many_objects(counted, monkeypatch):
    monkeypatch.setattr(count_objects, "MOST_OBJECTS", 10)
    event = counted(Kept)
    assert (event["event"], event["kind"]) == ("given_up", "objects")
    assert "more than 10 objects" in event["reason"]


def test_objects_are_counted_in_a_program_without_torch(script, run_under_agent):
    loop = """
import dynotune
class Left:
    pass
kept = []
for _ in range(60):
    kept.append(Left())
    dynotune.step()
"""
    order = {"type": "count-objects", "at_step": 20, "num_steps": 20}
    ran = run_under_agent([script(loop)], tasks=[order])
    assert (ran.returncode, ran.stderr) == (0, "")
    (record,) = ran.records
    assert ran.stepping.errors == []
    (event,) = record.all(ObjectsCounted)
    assert {one.name: one.growth for one in event.grown}["__main__.Left"] == 20
