"""Frames that a program marks, and calls of its models by thread, as the record has them."""

import json

from dynotune.agent.facts.frames import Frames
from dynotune.schema.events import FramesDone

SERVE = """
import threading, time
import torch
import dynotune

class Net(torch.nn.Linear):
    pass

net, barrier = Net(2, 2), threading.Barrier(2)

def serve(number):
    barrier.wait()
    for _ in range(3):
        since_s = time.perf_counter()
        net(torch.ones(number + 1, 2))
        dynotune.frame_done(f"camera {number}", since_s)

threads = [threading.Thread(target=serve, args=(number,)) for number in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
MARKS = """
import time, dynotune
for number in range(3):
    dynotune.frame_done(number % 2, time.perf_counter())
dynotune.frame_done(7, "not a time")
print("went on")
"""


def _frames(ran, source):
    return [event for record in ran.records for event in record.all(FramesDone) if event.source == source]


def test_agent_records_marked_frames_and_the_calls_of_each_thread_when_a_plan_asks(fork_under_agent, script):
    ran = fork_under_agent([script(SERVE)], frames=1000)
    assert ran.returncode == 0, ran.stderr
    marked, calls = _frames(ran, "marked"), _frames(ran, "call")
    names = [event.streams[number] for event in marked for number in event.stream]
    assert sorted(names) == ["camera 0"] * 3 + ["camera 1"] * 3
    assert len({name for event in calls for name in event.streams}) == 2
    assert {name for event in calls for name in event.models} == {"Net"}
    assert sorted(num for event in calls for num in event.num_samples) == [1, 1, 1, 2, 2, 2]
    assert all(begin <= end for event in calls for begin, end in zip(event.begin_s, event.end_s, strict=True))
    assert all(len(event.begin_cpu_s) == len(event.end_s) for event in calls)
    assert calls[-1].weights_bytes == 6 * 4


def test_agent_records_marked_frames_when_the_program_calls_no_model(fork_under_agent, script):
    ran = fork_under_agent([script(MARKS)], frames=1000)
    assert ran.stdout == "went on\n"
    marked = _frames(ran, "marked")
    assert [event.streams[number] for event in marked for number in event.stream] == ["0", "1", "0"]
    assert not _frames(ran, "call")


POOL = """
from concurrent.futures import ThreadPoolExecutor
import torch
net = torch.nn.Linear(2, 2)
net(torch.ones(1, 2))
with ThreadPoolExecutor(1) as pool:
    pool.submit(net, torch.ones(1, 2)).result()
"""


def test_agent_says_which_threads_are_of_a_pool_when_they_call_a_model(fork_under_agent, script):
    ran = fork_under_agent([script(POOL)], frames=1000)
    assert ran.returncode == 0, ran.stderr
    calls = _frames(ran, "call")
    pooled = {event.streams[number] for event in calls for number in event.pooled}
    assert len({name for event in calls for name in event.streams}) == 2
    assert len(pooled) == 1


def test_agent_records_no_frame_when_no_plan_asks(fork_under_agent, script):
    ran = fork_under_agent([script(MARKS)])
    assert ran.stdout == "went on\n"
    assert not _frames(ran, "marked")


def test_frames_are_written_when_the_program_has_no_time_for_some():
    events = []
    frames = Frames(events.append, None, lambda: None, 100, None)
    for since_s in (float("nan"), 1.0, float("inf"), 2.0, -float("inf")):
        frames.marked("door", since_s)
    frames.write()
    assert [begin for event in events for begin in event["begin_s"]] == [1.0, 2.0]
    assert events[-1]["num_lost"] in (2, 3)
    for event in events:
        json.dumps(event, allow_nan=False)
