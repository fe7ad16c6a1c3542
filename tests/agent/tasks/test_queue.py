"""The queue of tasks: what it takes up, in which order, and what becomes of orders that cannot be carried
out."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from dynotune.agent.tasks import queue as queues
from dynotune.agent.tasks.queue import PAGE_HEAD, PAGE_MAGIC, PAGE_VERSION, TaskQueue
from dynotune.agent.tasks.task import NEVER, Task
from dynotune.launch.records.task_page import TaskPage
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.task import RecordTrace, TimeWindow

from .fake_program import fake_program


class Noted(Task):
    """A task that is done one step after it began."""

    event = "noted"

    def begin(self, num_steps):
        if self.order.get("fails"):
            raise ValueError("no luck")
        return num_steps + 1

    def step_ended(self, num_steps):
        self.complete(at=num_steps)
        return num_steps


@pytest.fixture
def program(tmp_path):
    torch = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False))
    return fake_program(torch, folder=tmp_path, num_steps=0)


@pytest.fixture(autouse=True)
def one_kind(monkeypatch):
    def class_of(kind):
        if kind in ("time-window", "record-trace"):
            return Noted
        raise ValueError(kind)

    monkeypatch.setattr(queues, "_class_of", class_of)


def run(queue, program, steps):
    """What the counting of steps does: asks only at the number that it was told."""
    stop = 0
    for number in steps:
        program.steps.num_steps = number
        if number >= stop:
            stop = queue.reached(number)
    return stop


def results(program):
    return [(event["task"], event["event"], event.get("at")) for event in program.events]


def test_planned_tasks_come_one_after_another_each_at_its_step(program):
    planned = [{"type": "time-window", "at_step": 5}, {"type": "time-window", "at_step": 9}]
    queue = TaskQueue(program, planned, live=False)
    assert run(queue, program, range(1, 20)) == NEVER
    assert results(program) == [(-1, "noted", 6), (-2, "noted", 10)]


def test_a_task_that_is_ordered_while_the_program_runs_is_taken_up_soon(program, tmp_path, monkeypatch):
    monkeypatch.setattr(queues, "perf_counter", iter(0.01 * at for at in range(1000)).__next__)
    page = TaskPage(tmp_path)
    queue = TaskQueue(program, [], live=True)
    run(queue, program, range(1, 10))
    assert program.events == []
    first, second = page.order(TimeWindow(num_steps=1)), page.order(RecordTrace(num_steps=1, at_step=40))
    run(queue, program, range(10, 60))
    (one, two) = results(program)
    assert (first, second) == (one[0], two[0]) == (1, 2)
    assert 10 < one[2] < 20
    assert two[2] == 41
    page.close()


def test_steps_between_looks_are_few_where_steps_are_slow_and_many_where_they_are_fast(
    program, tmp_path, monkeypatch
):
    page, now = TaskPage(tmp_path), [0.0]
    monkeypatch.setattr(queues, "perf_counter", lambda: now[0])
    queue = TaskQueue(program, [], live=True)
    now[0] = 1.0
    assert queue.reached(10) == 11
    now[0] = 1.0001
    assert queue.reached(11) == 11 + queues.MOST_STEPS_BETWEEN_LOOKS
    page.close()


def test_a_result_is_written_again_when_it_is_asked_for(program, tmp_path):
    page = TaskPage(tmp_path)
    queue = TaskQueue(program, [], live=True)
    page.order(TimeWindow(num_steps=1))
    run(queue, program, range(1, 400))
    page.ask_again()
    run(queue, program, range(400, 800))
    (one, again) = program.events
    assert one == again
    page.close()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "damaged"),
        ("[1]", "damaged"),
        (
            '{"schema": "dynotune.task/9", "task": {"type": "time-window"}}',
            "this agent reads dynotune.task/1",
        ),
        ('{"schema": "dynotune.task/1", "task": {"type": "sing"}}', "does not know this task"),
        ('{"schema": "dynotune.task/1"}', "damaged"),
    ],
)
def test_a_task_file_that_cannot_be_carried_out_is_refused_and_the_next_one_is_not(
    text, reason, program, tmp_path
):
    page = TaskPage(tmp_path)
    queue = TaskQueue(program, [], live=True)
    page.order(TimeWindow(num_steps=1))
    (tmp_path / "task-001.json").write_text(text)
    page.order(TimeWindow(num_steps=1))
    run(queue, program, range(1, 400))
    refused, done = program.events
    assert refused["event"] == "given_up"
    assert refused["refused"]
    assert reason in refused["reason"]
    assert (done["event"], done["task"]) == ("noted", 2)
    page.close()


def test_a_page_of_another_version_is_written_down_and_the_program_goes_on(program, tmp_path):
    page = TaskPage(tmp_path)
    PAGE_HEAD.pack_into(page._page, 0, PAGE_MAGIC, PAGE_VERSION + 1, 0, 1, 0)
    queue = TaskQueue(program, [], live=True)
    assert queue.reached(1) == NEVER
    assert "of version" in str(program.errors[0])
    page.close()


def test_a_task_that_fails_says_so_and_the_next_one_is_taken_up(program):
    queue = TaskQueue(program, [{"type": "time-window", "fails": True}, {"type": "time-window"}], live=False)
    run(queue, program, range(1, 9))
    failed, done = program.events
    assert (failed["event"], failed["reason"]) == ("given_up", "it failed: ValueError: no luck")
    assert done["event"] == "noted"


def test_at_the_programs_end_each_task_that_is_not_done_says_so(program, tmp_path):
    page = TaskPage(tmp_path)
    queue = TaskQueue(program, [{"type": "time-window", "at_step": 90}, {"type": "time-window"}], live=True)
    page.order(TimeWindow(num_steps=1))
    run(queue, program, range(1, 9))
    queue.at_exit()
    assert [(event["task"], event["at_exit"]) for event in program.events] == [
        (-1, True),
        (-2, True),
        (1, True),
    ]
    page.close()


def test_a_process_without_steps_has_nothing_to_say_at_its_end(program):
    queue = TaskQueue(program, [{"type": "time-window"}], live=False)
    queue.at_exit()
    assert program.events == []


def test_a_second_parent_is_refused(tmp_path):
    page = TaskPage(tmp_path)
    with pytest.raises(CannotRunHere, match="Another dynotune"):
        TaskPage(tmp_path)
    page.close()
    TaskPage(tmp_path).close()


def test_the_task_file_is_what_the_agent_reads(tmp_path):
    page = TaskPage(tmp_path)
    page.order(RecordTrace(num_steps=3, stacks=True))
    task = json.loads((tmp_path / "task-001.json").read_text())
    assert task["schema"] == queues.TASK_SCHEMA
    assert (task["task"]["type"], task["task"]["num_steps"], task["task"]["stacks"]) == (
        "record-trace",
        3,
        True,
    )
    page.close()
