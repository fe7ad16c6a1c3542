"""When a recording begins and ends. A session and a clock in place of torch's profiler and time."""

from threading import Event, Thread, get_ident

import pytest

from dynotune.agent.tasks import record_trace
from dynotune.agent.tasks.record_trace import RecordTrace
from dynotune.agent.tasks.task import NEVER

from .fake_program import fake_program


class Session:
    is_recording = False
    is_here = True
    ends_anywhere = False
    cupti_stays = ""

    def __init__(self, torch, program, **options):
        self.log = torch.log
        self.log.append("prepare")

    def begin(self):
        self.is_recording = True
        self.log.append("begin")

    def open(self, name):
        self.log.append(name)

    def close(self):
        self.log.append("close")

    def end(self):
        self.log.append("end")

    def abandon(self, *, detach):
        self.log.append("abandon")


class Torch:
    """Of torch, whether a graph is being captured; and what is done with the profiler."""

    def __init__(self):
        self.log, self.capturing, self.cuda = [], False, self

    def is_initialized(self):
        return True

    def is_current_stream_capturing(self):
        return self.capturing

    def device_count(self):
        return 1

    def current_device(self):
        return 0

    def memory_stats(self, index):
        return {}

    def synchronize(self, index):
        assert not self.capturing, "it would end the program's capture"
        self.log.append("wait")


class Profiler:
    place = "train.py:3"

    def __init__(self):
        self.running, self.begins = False, None

    def in_the_way(self):
        return self.running


class Steps:
    is_joined = False

    def between_events(self, function, patience_s):
        function()


@pytest.fixture
def torch(monkeypatch):
    monkeypatch.setattr(record_trace, "Session", Session)
    monkeypatch.setattr(record_trace, "open_optimizer_annotation", lambda: None)
    monkeypatch.setattr(RecordTrace, "_cover_annotations", lambda self: None)
    monkeypatch.setattr(record_trace, "_write", lambda session, folder, name: 7)
    return Torch()


@pytest.fixture
def clock(monkeypatch):
    """Stands still until it is set."""
    clock = type("Clock", (), {"now_s": 0.0})()
    monkeypatch.setattr(record_trace, "perf_counter", lambda: clock.now_s)
    return clock


@pytest.fixture
def record(torch, tmp_path):
    """`record(at_step, num_steps)` gives a task and what it says when it is complete."""

    def make(at_step, num_steps, most_s=60.0):
        program = fake_program(torch, folder=tmp_path)
        program.profiler, program.prepare = Profiler(), lambda: torch.log.append("hold")
        program.steps = Steps()
        return RecordTrace(
            program, {"at_step": at_step, "num_steps": num_steps, "most_s": most_s}
        ), program.events

    return make


def run(made, steps, before=lambda number: None):
    """What the counting of steps does: asks only at the number that it was told."""
    following = 0
    for number in steps:
        before(number)
        if number >= following:
            following = made.reached(number)
    return following


def test_gets_ready_in_one_step_waits_for_the_device_and_records_the_steps_after_it(record, torch, clock):
    made, said = record(4, 2)
    assert run(made, range(1, 20)) == NEVER
    recorded = ["ProfilerStep#5", "close", "ProfilerStep#6", "close"]
    assert torch.log == ["hold", "prepare", "wait", "begin", *recorded, "wait", "end"]
    assert (said[0]["first_step"], said[0]["num_steps"], said[0]["num_bytes"]) == (5, 2, 7)
    assert len(said) == 1


def test_neither_begins_nor_ends_while_the_program_captures_a_graph(record, torch, clock):
    made, said = record(4, 2)

    def capture(number):
        torch.capturing = number in (4, 6, 8)

    run(made, range(1, 20), capture)
    assert (said[0]["first_step"], said[0]["num_steps"]) == (7, 2)
    assert torch.log.count("prepare") == 1


@pytest.mark.parametrize(("most_s", "num_steps"), [(60.0, 3), (25.0, 1), (1.0, 1)])
def test_a_recording_that_takes_too_long_ends_with_the_step_in_which_it_does(
    record, clock, most_s, num_steps
):
    made, said = record(4, 100, most_s)

    def slow(number):
        clock.now_s = 25.0 * number

    run(made, range(1, 20), slow)
    assert (said[0]["stopped_by"], said[0]["step_s"]) == ("time", [25.0] * num_steps)


def test_a_recording_that_fills_the_memory_ends(record, clock, monkeypatch):
    made, said = record(4, 100)
    held = []
    monkeypatch.setattr(record_trace, "_resident_bytes", lambda: (100 << 20) * len(held))

    def fill(number):
        clock.now_s = float(number)
        held.append(number)

    run(made, range(1, 20), fill)
    assert (said[0]["stopped_by"], said[0]["num_steps"]) == ("memory", 3)


def test_steps_that_end_in_another_thread_are_left_out(record, torch, clock, monkeypatch):
    made, said = record(4, 2)
    run(made, range(1, 6))
    monkeypatch.setattr(Session, "is_here", False)
    other = Thread(target=lambda: run(made, range(6, 9)))
    other.start()
    other.join()
    assert said == []
    monkeypatch.setattr(Session, "is_here", True)
    run(made, range(9, 12))
    assert said[0]["num_steps"] == 2


def test_a_session_of_the_programs_own_at_that_moment_is_a_reason(record, torch, clock):
    made, said = record(4, 2)
    made.program.profiler.running = True
    assert run(made, range(1, 20)) == NEVER
    assert (said[0]["code"], said[0]["reason"]) == ("program-profiles", "train.py:3")
    assert torch.log == ["hold"]


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (range(1, 3), "the recording began"),
        (range(1, 8), "more than 2 of 9 steps were recorded"),
    ],
)
def test_a_program_that_ends_before_has_its_reason(steps, reason, record, torch, clock):
    made, said = record(4, 9)
    run(made, steps)
    made.at_exit()
    assert (said[0]["event"], said[0]["code"], said[0]["reason"]) == ("given_up", "program-ended", reason)
    assert said[0]["at_exit"]
    assert torch.log[-1:] == (["abandon"] if len(steps) > 5 else [])


class Ending:
    """A session of a joined program, whose end waits for `may_end`."""

    def __init__(self, monkeypatch):
        self.may_end, self.has_ended, self.threads = Event(), Event(), []
        monkeypatch.setattr(Session, "ends_anywhere", True)
        monkeypatch.setattr(Session, "end", lambda _: self.end())
        monkeypatch.setattr(Steps, "between_events", lambda _, function, patience_s: self.told(function))

    def end(self):
        self.threads.append(get_ident())
        assert self.may_end.wait(30)

    def told(self, function):
        function()
        self.has_ended.set()


@pytest.fixture
def ending(monkeypatch):
    return Ending(monkeypatch)


def test_program_makes_further_steps_when_a_joined_recording_ends(record, torch, clock, ending):
    made, said = record(4, 2)
    assert run(made, range(1, 20)) == 20
    assert said == [] and made.is_ending and made.overdue() == ""
    ending.may_end.set()
    assert ending.has_ended.wait(30)
    assert (said[0]["first_step"], said[0]["num_steps"], said[0]["num_bytes"]) == (5, 2, 7)
    assert run(made, range(20, 22)) == NEVER and len(said) == 1
    assert get_ident() not in ending.threads
    assert "abandon" not in torch.log


def test_recording_is_complete_when_the_program_ends_meanwhile(record, torch, clock, ending):
    made, said = record(4, 2)
    run(made, range(1, 10))
    ending.may_end.set()
    made.at_exit()
    assert ending.has_ended.wait(30)
    assert [event["event"] for event in said] == ["trace"]


def test_programs_own_session_waits_when_a_joined_recording_is_about_to_end(record, torch, clock, ending):
    made, said = record(4, 2)
    run(made, range(1, 10))
    other = Thread(target=made.program.profiler.begins)
    other.start()
    assert said == [] and other.is_alive()
    ending.may_end.set()
    other.join(30)
    assert ending.has_ended.wait(30)
    assert [event["event"] for event in said] == ["trace"]


def test_reason_is_told_when_a_joined_recording_cannot_be_written(record, torch, clock, ending, monkeypatch):
    def refuse(session, folder, name):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record_trace, "_write", refuse)
    made, said = record(4, 2)
    ending.may_end.set()
    run(made, range(1, 10))
    assert ending.has_ended.wait(30)
    assert said[0]["event"] == "given_up" and "No space" in said[0]["reason"]
