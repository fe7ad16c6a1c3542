"""Which lines threads are at, in this process: until enough was seen, however long that takes."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import time
import types
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from dynotune.agent.facts import lines
from dynotune.agent.facts.lines import Lines, Seen

ENOUGH = 25
HERE = Path(__file__).name


def parses() -> None:
    json.loads(json.dumps(list(range(2000))))


class Items(Dataset[int]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        return sum(number * number for number in range(5000)) + index


@pytest.fixture
def looking(monkeypatch):
    """`looking(work)`: the threads that were seen while this thread did `work` again and again."""
    monkeypatch.setattr(lines, "INTERVAL_S", 0.001)
    # What is under test is no code of the user's own: it belongs to the agent.
    made = Lines()

    def often(seen):
        mine = seen.get(threading.get_ident())
        return mine is not None and mine.num >= ENOUGH

    def look(work, enough=often):
        made.begin()
        while not enough(made._seen):
            work()
        return made.facts()

    yield look
    made.facts()


def at(thread, inside=None, **wanted):
    """Times that the thread was seen at lines that hold these texts, inside of exactly this."""
    lines = [line for line in thread["lines"] if inside in (None, line["inside"])]
    return sum(line["num"] for line in lines if all(text in line[name] for name, text in wanted.items()))


def test_a_line_is_known_with_its_text_and_what_it_calls(looking):
    thread, *_ = looking(parses)
    assert thread["of_steps"] and thread["name"] == threading.current_thread().name
    called = [line for line in thread["lines"] if "json" in line["callee"]]
    assert called and called[0]["text"] == "json.loads(json.dumps(list(range(2000))))"
    assert f"{HERE}(" in called[0]["function"] and called[0]["function"].endswith(": parses")
    assert at(thread, function=": parses") >= thread["num"] / 2
    assert thread["num"] >= ENOUGH and thread["cpu_s"] >= 0


def test_a_line_is_told_as_it_was_though_the_thread_goes_on_while_its_stack_is_read(looking, monkeypatch):
    """The thread wants the lock back at once: what is read of its frames one by one is of different
    moments."""

    def counts() -> None:
        json.dumps(list(range(2000)))
        for _ in range(2000):
            str(1.5)

    def slow(*args):
        time.sleep(0.002)  # the lock is the other thread's meanwhile
        return lines.WHOSE_USER if args[0].co_filename == __file__ else "standard"

    monkeypatch.setattr(lines, "whose", slow)
    thread, *_ = looking(counts)
    called = {line["text"] for line in thread["lines"] if "json" in line["callee"]}
    assert called <= {"json.dumps(list(range(2000)))"}


class Frame:
    """A frame of `parses` at an instruction; reading who called it takes so long that its thread may go
    on."""

    f_code, f_lineno, f_globals = parses.__code__, 1, globals()

    def __init__(self, caller, goes_on):
        self.f_lasti, self._caller, self._goes_on = 4, caller, goes_on

    @property
    def f_back(self):
        self.f_lasti += 2 * self._goes_on
        return self._caller


@pytest.mark.parametrize(("goes_on", "num_taken"), [(False, 1), (True, 0)])
def test_a_stack_whose_thread_went_on_while_its_frames_were_read_is_left_out(monkeypatch, goes_on, num_taken):
    made = Lines()
    made._clock = time.pthread_getcpuclockid(threading.get_ident())
    monkeypatch.setattr(lines.sys, "_current_frames", lambda: {1: Frame(Frame(None, False), goes_on)})
    assert len(made._take(2)[0]) == num_taken


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 10)), min_size=1))
def test_the_time_that_a_place_surely_took_is_what_it_ran_for_before_or_after_each_look(looks):
    seen = Seen()
    for place, ran_ns in looks:
        seen.add((0, 0, 0, 0, place), ran_ns)
    for key, (num, cpu_ns, least_ns) in seen.at.items():
        mine = [at for at, (place, _) in enumerate(looks) if place == key[4]]
        assert num == len(mine) and cpu_ns == sum(looks[at][1] for at in mine)
        assert least_ns == sum(min(looks[at][1], looks[at + 1][1]) for at in mine if at + 1 < len(looks))


def test_another_thread_is_known_by_its_name_and_has_its_own_lines(looking):
    ends = threading.Event()

    def spins() -> None:
        while not ends.is_set():
            sum(range(2000))

    other = threading.Thread(target=spins, name="preparer")
    other.start()
    try:
        found = looking(
            parses, lambda seen: len(seen) > 1 and min(each.num for each in seen.values()) >= ENOUGH
        )
    finally:
        ends.set()
        other.join()
    by_name = {thread["name"]: thread for thread in found}
    assert found[0]["of_steps"] and not by_name["preparer"]["of_steps"]
    assert at(by_name["preparer"], function=": spins") >= ENOUGH / 2


def test_lines_of_a_loader_are_told_apart_from_the_loops_lines(looking):
    def epoch() -> None:
        for batch in DataLoader(Items(), batch_size=8):
            batch.sum()

    thread, *_ = looking(epoch)
    assert (
        at(thread, inside="loader", function=": __getitem__")
        + at(thread, inside="loader", function="<genexpr>")
        > 0
    )
    assert at(thread, inside="", function=": __getitem__") == 0


def test_no_frame_of_the_program_is_held_on_to_between_two_looks(looking, monkeypatch):
    """It would keep alive all that its function had, as the data of an epoch that is over."""
    held: list[str] = []

    def sleep(duration_s: float) -> None:
        frames = {
            name for name, value in sys._getframe(1).f_locals.items() if isinstance(value, types.FrameType)
        }
        held.extend(frames)
        time.sleep(duration_s)

    monkeypatch.setattr(lines, "time", types.SimpleNamespace(**{**vars(time), "sleep": sleep}))
    looking(parses)
    assert held == []


def test_line_sampler_keeps_no_objects_of_other_threads_functions_after_they_end(looking):
    """In a worker forked meanwhile, a collection would free pinned batches of its parent, which ends the
    worker."""

    class Batch:
        pass

    def works() -> None:
        batch = Batch()
        made.append(weakref.ref(batch))
        parses()

    def goes_on() -> None:
        while not over.is_set():
            works()

    made: list[weakref.ref[Batch]] = []
    over, thread = threading.Event(), threading.Thread(target=goes_on)
    gc.disable()
    try:
        thread.start()
        looking(parses)
        over.set()
        thread.join()
        kept = [batch for batch in made if batch() is not None]
    finally:
        gc.enable()
    assert kept == []


def test_stacks_that_are_seen_while_they_are_told_break_nothing_off():
    moments, are_told = lines.Moments(), False

    class Frame(tuple):
        __slots__ = ()

        def __hash__(self):
            if are_told:
                moments.add([(2, 20)], 8)  # as the thread that looks does
            return tuple.__hash__(self)

    moments.add([Frame((1, 10))], 7)
    code, are_told = compile("pass", "train.py", "exec"), True
    told = moments.facts(lambda identity: code)
    assert told["stacks"] == [[0]]
    assert told["seen"] == [(0, 7)]


def test_each_look_at_the_steps_is_known_with_its_step_and_its_stack(monkeypatch):
    monkeypatch.setattr(lines, "INTERVAL_S", 0.001)
    made, step = Lines(), 7
    made.begin(lambda: step)

    def seen():
        return [number for _, number in made.moments()["seen"]]

    while not seen():
        parses()
    step = 8
    while 8 not in seen():
        parses()
    made.facts()
    told = made.moments()
    assert set(seen()) == {7, 8}
    innermost = [told["frames"][stack[-1]] for stack in told["stacks"]]
    assert any(frame.endswith(": parses") and HERE in frame for frame in innermost)
    # What the standard library and torch do inside is no frame of the program.
    assert not [frame for frame in told["frames"] if "json/" in frame]
    assert "json.loads(json.dumps(list(range(2000))))" in told["texts"]


def test_a_call_of_a_module_is_torchs(looking):
    net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(20)))
    batch = torch.ones(16, 64)

    def step() -> None:
        net(batch).sum().backward()

    thread, *_ = looking(step)
    assert at(thread, callee="torch/", function=": step") > 0


def test_line_that_awaits_is_named_when_an_event_loop_waits(looking):
    async def serves() -> None:
        for _ in range(5):
            await asyncio.sleep(0.02)

    thread, *_ = looking(lambda: asyncio.run(serves()))
    waiting = [line for line in thread["lines"] if line["inside"] == "event-loop"]
    assert waiting and "await asyncio.sleep(0.02)" in {line["text"] for line in waiting}
    assert any(line["function"].endswith(": serves") and "sleep" in line["callee"] for line in waiting)


def test_afterwards_everything_is_as_before(looking, monkeypatch):
    threads, interval_s = threading.enumerate(), sys.getswitchinterval()
    seen = []
    looking(lambda: seen.append(sys.getswitchinterval()) or parses())
    assert threading.enumerate() == threads
    assert min(seen) < interval_s and sys.getswitchinterval() == interval_s


def test_a_program_whose_threads_take_turns_keeps_its_own_interval(looking):
    ends, interval_s, seen = threading.Event(), sys.getswitchinterval(), []
    other = threading.Thread(target=ends.wait)
    other.start()
    try:
        looking(lambda: seen.append(sys.getswitchinterval()) or parses())
    finally:
        ends.set()
        other.join()
    assert set(seen) == {interval_s}


def test_an_interval_that_the_program_sets_meanwhile_stays(looking):
    interval_s = sys.getswitchinterval()
    try:
        looking(lambda: sys.setswitchinterval(0.002) or parses())
        assert sys.getswitchinterval() == pytest.approx(0.002)
    finally:
        sys.setswitchinterval(interval_s)


def test_line_sampler_looks_at_some_threads_alone_when_told_to(monkeypatch):
    monkeypatch.setattr(lines, "INTERVAL_S", 0.001)
    among = set[int]()
    made = Lines(among=among)
    made.begin()
    for _ in range(50):
        parses()
    assert made.parts() == []
    among.add(threading.get_ident())
    while not made.parts():
        parses()
    among.clear()
    made.facts()


def test_a_thread_of_steps_that_ends_leaves_no_word_behind(monkeypatch, capfd):
    monkeypatch.setattr(lines, "INTERVAL_S", 0.001)
    made = Lines()

    def steps() -> None:
        made.begin()
        while not made._seen:
            parses()

    ended = threading.Thread(target=steps)
    ended.start()
    ended.join()
    for _ in range(50):
        parses()
    made.facts()
    assert capfd.readouterr().err == ""
