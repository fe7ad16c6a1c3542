"""Which functions of a program are worth a delay: those that claim most, never those that hold the loop."""

from __future__ import annotations

import pytest

from dynotune.diagnose.delayed import delays_of
from dynotune.diagnose.places import FunctionAt, function_at, functions_to_delay, same_function
from dynotune.measure.live import Delay
from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Unknown
from dynotune.schema.host import Line, StackLine, Thread
from dynotune.schema.loader import Loader
from dynotune.schema.observation import ProcessState
from dynotune.schema.trace_summary import Place

from ..doctor.devices import on_cpu
from ..doctor.observations import attribution, observed, timing

TRAIN, STEP, ENCODE, PARSE = "t.py(9): train", "t.py(21): step", "lib/n.py(31): encode", "t.py(41): parse"


def process(*lines, stack=(), drawn="", **fields):
    threads = [
        Thread(of_steps=True, num=100, cpu_s=1.0, lines=[Line(function=at, num=num) for at, num in lines])
    ]
    loaders = [Loader(name="DataLoader", dataset="d", place=Place(drawn))] if drawn else []
    rows = [StackLine(function=at, num=num) for at, num in stack]
    return ProcessState(pid=1, threads=threads, loaders=loaders, stack=rows, **fields)


def loud(share, where, severity="high", kind="speed"):
    return Finding(
        id="built-per-step", severity=severity, kind=kind, claim="", share=share, where=Place(where)
    )


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("t.py(9): train", FunctionAt("t.py", 9, "train")),
        ("/srv/my app/t.py(9): train", FunctionAt("/srv/my app/t.py", 9, "train")),
        ("t.py(9): <module>", None),
        ("t.py(9): <lambda>", None),
        ("t.py: train", None),
        ("/x/site-packages/tqdm/std.py(9): __iter__", None),
        ("/usr/lib/python3.11/json/__init__.py(9): loads", None),
        ("", None),
        ("aten::mm", None),
    ],
)
def test_function_is_read_from_a_place_when_it_is_the_programs(place, expected):
    assert function_at(place) == expected


def test_places_are_of_one_function_when_their_lines_differ():
    assert same_function("t.py(9): train", "t.py(12): train")
    assert not same_function("t.py(9): train", "u.py(9): train")
    assert not same_function("", "")


def test_functions_of_loud_findings_are_chosen_before_the_one_seen_most():
    seen = process((ENCODE, 50), (PARSE, 20))
    findings = [
        loud(0.1, STEP),
        loud(Unknown(""), PARSE),
        loud(0.9, ENCODE, severity="low"),
        loud(0.9, PARSE, kind="jitter"),
    ]
    assert functions_to_delay(findings, seen) == [STEP]


def test_function_seen_most_is_chosen_when_no_finding_names_one():
    assert functions_to_delay([], process((STEP, 40), (ENCODE, 30), (PARSE, 20))) == [STEP]


def test_lines_of_one_function_count_together_when_functions_are_ranked():
    assert functions_to_delay([], process((ENCODE, 30), ("t.py(42): parse", 20), (PARSE, 25))) == [PARSE]


def test_function_is_left_out_when_it_was_hardly_seen():
    assert functions_to_delay([], process((STEP, 9))) == []


@pytest.mark.parametrize(
    "seen",
    [
        process((TRAIN, 60), (PARSE, 30), drawn="t.py(8): train"),
        process(
            (TRAIN, 60),
            (PARSE, 30),
            stack=[("t.py(50): <module>", 100), ("t.py(10): train", 70), (TRAIN, 30)],
        ),
    ],
)
def test_function_is_left_out_when_it_holds_the_loop(seen):
    assert functions_to_delay([loud(0.5, TRAIN)], seen) == [PARSE]


def test_functions_are_delayed_after_parts_when_they_claim_most():
    threads = [Thread(of_steps=True, num=100, cpu_s=1.0, lines=[Line(function=PARSE, num=60)])]
    found = delays_of(
        observed(timed=timing(), attributed=attribution(host=0.6, busy_share=0.4), threads=threads)
    )
    assert [delay.part for delay in found] == ["host", "device", "function"]
    assert found[-1] == Delay(
        part="function", place=PARSE, site={"file": "t.py", "line": "41", "name": "parse"}
    )


def test_device_is_delayed_first_when_it_works_most_of_a_step():
    seen = observed(timed=timing(), attributed=attribution(host=0.2, busy_share=0.8))
    assert [delay.part for delay in delays_of(seen)] == ["device", "host"]


def test_delays_are_left_out_when_a_step_is_the_work_of_one_thread():
    threads = [Thread(of_steps=True, num=100, cpu_s=1.0, lines=[Line(function=PARSE, num=60)])]
    found = delays_of(on_cpu(threads=threads))
    assert isinstance(found, Unknown) and "one thread" in found.reason


def test_two_ranks_are_delayed_when_there_are_several():
    seen = observed(timed=timing(), attributed=attribution(host=0.5))
    first = seen.processes[0]
    ranks = [type(first)(pid=at, rank=at, world_size=3, timing=timing()) for at in range(3)]
    several = type(seen)(processes=ranks, attribution=seen.attribution)
    assert [(delay.part, delay.place) for delay in delays_of(several)] == [
        ("host", ""),
        ("rank", "0"),
        ("rank", "2"),
    ]
