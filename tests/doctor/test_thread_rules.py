"""Rules on threads that wait at a line of the program, or compete for the interpreter lock."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dynotune.schema.host import Line, Thread
from dynotune.schema.trace_summary import HostTime, Place

from .devices import found, lacks, lost, on_cpu, on_gpu
from .test_habit_rules import LISTED, MODULE, PARSES, python, thread

SLEEPS = Line(function="serve.py(9): fill", text="time.sleep(0.04)", num=60, cpu_s=0.01)


def test_a_thread_that_was_hardly_looked_at_tells_nothing():
    assert lacks(on_cpu(), "program-waits") == ["lines of the program"]
    assert lacks(on_cpu(threads=[thread(PARSES, num=5)]), "text-parsed-per-item") == ["lines of the program"]


def test_a_sleep_is_no_work_and_its_line_is_named():
    findings = found(python(SLEEPS, MODULE, host=0.6))
    waits = findings["program-waits"]
    assert waits.share == pytest.approx(0.6) and waits.where == Place("serve.py(9): fill")
    assert "host-bound" not in findings


def test_a_short_sleep_is_no_work_though_the_time_before_it_was():
    """Half of the looks at a sleep of 20 ms come right after other work."""
    polls = Line(
        function="feed.py(9): read", text="time.sleep(self.poll)", num=24, cpu_s=0.4, least_cpu_s=0.02
    )
    findings = found(python(polls, MODULE, host=0.3))
    assert findings["program-waits"].share == pytest.approx(0.24)
    assert "host-bound" not in findings
    asks = msgspec.structs.replace(polls, text="found = table.get(key)", least_cpu_s=0.35)
    assert "program-waits" not in found(python(asks, MODULE, host=0.3))


def test_a_sleep_shorter_than_the_looks_at_it_is_one_all_the_same():
    # What follows a short sleep takes processor time before the thread is looked at again.
    short = Line(function="serve.py(9): fill", text="time.sleep(0.01)", num=50, cpu_s=0.9)
    assert found(python(short, MODULE, host=0.5))["program-waits"].share == pytest.approx(0.5)
    # A device that works meanwhile waits for less.
    beside = on_gpu(lost("host-bound", 0.3), shares={"host": 0.3}, threads=[thread(short, MODULE)])
    assert found(beside)["program-waits"].share == pytest.approx(0.3)


def test_an_event_loop_with_nothing_to_do_waits_where_a_task_awaits():
    awaits = Line(
        function="serve.py(21): fill",
        text="await asyncio.sleep(0.04)",
        inside="event-loop",
        num=70,
        cpu_s=0.5,
    )
    assert found(python(awaits, MODULE, host=0.7))["program-waits"].where == Place("serve.py(21): fill")


def test_a_wait_for_a_thread_of_its_own_names_what_that_thread_does():
    gets = Line(function="train.py(50): main", text="batch = ready.get()", num=60, cpu_s=0.01,
                callee="/usr/lib/python3.12/queue.py(154): get")  # fmt: skip
    maker = thread(LISTED, of_steps=False, name="maker", cpu_s=4.5)
    finding = found(python(gets, MODULE, host=0.6, others=[maker]))["program-waits"]
    assert "data.py(20): __getitem__" in finding.remedy
    assert finding.evidence[-1].startswith("meanwhile: data.py(20)")


GETS = Line(function="serve.py(18): <module>", text="sent, x = requests.get()", num=60, cpu_s=0.01,
            callee="/usr/lib/python3.12/queue.py(154): get")  # fmt: skip
CLIENT = Line(function="serve.py(11): clients", text="time.sleep(rng.expovariate(50))", num=90, cpu_s=0.01)
RECEIVES = Line(function="serve.py(30): run", text="data = connection.recv(4096)", num=60, cpu_s=0.01)
AWAITS = Line(
    function="serve.py(9): work", text="item = await q.get()", inside="event-loop", num=60, cpu_s=0.1
)


@pytest.mark.parametrize("line", [GETS, RECEIVES, AWAITS])
def test_service_is_idle_when_no_request_is_waiting(line):
    clients = thread(CLIENT, of_steps=False, name="clients", cpu_s=0.05)
    findings = found(python(line, MODULE, host=0.6, others=[clients], optimizers=[]))
    idle = findings["service-idle"]
    assert (idle.severity, idle.kind, idle.where) == ("low", "measurement", Place(line.function))
    assert idle.claim.startswith("The program is idle for 60% of a step, as no request is waiting: serve.py")
    assert "program-waits" not in findings and "host-bound" not in findings


@pytest.mark.parametrize("producer", [LISTED, None])
def test_service_is_not_idle_when_a_thread_makes_what_it_waits_for(producer):
    others = [] if producer is None else [thread(producer, of_steps=False, name="maker", cpu_s=4.5)]
    findings = found(python(GETS, MODULE, host=0.6, others=others, optimizers=[]))
    assert "service-idle" not in findings and "program-waits" in findings


def test_service_is_not_idle_when_it_works_for_longer_than_it_waits():
    clients = thread(CLIENT, of_steps=False, name="clients", cpu_s=0.05)
    busy = python(GETS, MODULE, shares={"device": 0.7, "host": 0.3}, others=[clients], optimizers=[])
    assert "service-idle" not in found(busy)


def test_training_is_not_idle_when_its_loader_thread_sleeps():
    clients = thread(CLIENT, of_steps=False, name="feed", cpu_s=0.05)
    findings = found(python(GETS, MODULE, host=0.6, others=[clients]))
    assert "service-idle" not in findings and "program-waits" in findings


def test_reading_a_value_of_the_device_is_no_sleep():
    reads = Line(function="train.py(33): step", text="loss.item()", num=60, cpu_s=0.01)
    assert "program-waits" not in found(on_gpu(shares={"host": 0.1}, threads=[thread(reads, MODULE)]))


def test_a_line_that_waits_for_a_core_is_no_sleep():
    """Others take the cores: an operator gets hardly any time of them."""
    starved = Line(function="train.py(33): step", text="h = torch.relu(x @ w)", num=60, cpu_s=0.01)
    assert "program-waits" not in found(python(starved, MODULE))


def test_a_thread_that_computes_in_python_beside_the_steps_takes_the_lock():
    maker = thread(LISTED, of_steps=False, name="maker", cpu_s=2.5)
    finding = found(_competing(maker))["threads-compete"]
    assert finding.where == Place("data.py(20): __getitem__")
    assert "thread maker" in finding.evidence[0]
    assert "threads-compete" not in found(_competing(thread(LISTED, of_steps=False, cpu_s=0.1)))
    # Where there was no core for it, it waited for that.
    assert "threads-compete" not in found(_competing(maker, **{"window.tree_cpu_s_per_s": 7.8}))


def test_a_thread_in_code_that_leaves_the_lock_to_others_competes_for_nothing():
    decodes = Line(
        function="patches.py(60): imread", text="image = cv2.imdecode(data, flags)", num=40, cpu_s=1.9
    )
    assert "threads-compete" not in found(
        _competing(thread(decodes, of_steps=False, name="reads ahead", cpu_s=2.5))
    )


def test_threads_that_take_much_of_cores_that_are_used_up_compete_for_those():
    maker = thread(msgspec.structs.replace(LISTED, num=90), of_steps=False, name="maker", cpu_s=4.5)
    small: dict[str, float] = {"host.num_cores": 2, "window.tree_cpu_s_per_s": 1.9}
    assert found(_competing(maker, **small))["threads-compete"].share == pytest.approx(0.4)
    # Where other programs take them, it is not known what it waited for.
    crowded = small | {"host.num_cores": 8, "window.others_cpu_s_per_s": 6.0}
    assert "threads-compete" not in found(_competing(maker, **crowded))


def test_competing_threads_finding_leaves_out_threads_of_libraries():
    # Torch's thread that pins batches: it was seen once at a line that is none of torch's.
    pins = thread(
        Line(function="<string>(1): <lambda>", num=1), of_steps=False, name="_pin_memory_loop", cpu_s=2.5
    )
    assert "threads-compete" not in found(_competing(pins))


def test_threads_whose_time_nobody_knows_are_no_threads_that_did_nothing():
    maker = thread(LISTED, of_steps=False, name="maker", cpu_s=None)
    assert lacks(_competing(maker), "threads-compete") == ["processor time of threads"]


def _competing(other: Thread, **more: float) -> Any:
    hosts = [HostTime(rank=None, window_s=1.0, loader_s=0.0, operator_s=0.5, communication_s=0.0)]
    steps = thread(Line(function="train.py(40): step", text="y = f(x)", num=50, cpu_s=1.5), MODULE, cpu_s=3.0)
    facts = {"window.tree_cpu_s_per_s": 2.0, **more}
    return on_cpu(shares={"host": 0.5}, traced={"hosts": hosts}, threads=[steps, other], facts=facts)
