"""Delays of a part of each step: what is delayed, how it is read back, and that nothing stays."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from dynotune.agent.core.source_location import short_path
from dynotune.agent.sites import delay
from dynotune.agent.sites.registry import by_site
from dynotune.agent.sites.site import NotSwitched

from ..tasks.fake_program import fake_program

SHORT_S = 1e-4


def module_function(number):
    return number + 1


class Owner:
    def method(self, number):
        return number + 2


PLAIN = dict(vars(Owner))


def site(part, value=SHORT_S, torch=None, **more):
    program = fake_program(torch, **{name: more.pop(name) for name in ("world_size",) if name in more})
    planned = [{"knob": f"delay.{part}", "value": value, "site": {"action": f"delay-{part}", **more}}]
    ((kind, group),) = by_site(planned).items()
    return kind(group, program, False)


def place(function):
    return {"file": function.__code__.co_filename, "line": str(function.__code__.co_firstlineno)}


def steps(switched, num, step=lambda: None):
    for _ in range(num):
        switched.between_steps()
        step()


@pytest.mark.parametrize("value", [SHORT_S, 5e-4])
def test_host_is_delayed_by_at_least_the_value_when_a_step_ends(value):
    found = site("host", value)
    found.on()
    steps(found, 5)
    (read,) = found.read()
    assert read["ok"]
    assert float(read["found"]) >= value


def test_only_the_named_rank_is_delayed_when_there_are_several():
    here, other = site("host", rank="0", world_size=2), site("host", rank="1", world_size=2)
    for each in (here, other):
        each.on()
        steps(each, 3)
        assert each.read()[0]["ok"]
    assert here.num_steps == 3
    assert other.num_steps == 0


@pytest.mark.parametrize("part", ["device", "transfer"])
def test_device_cannot_be_delayed_when_the_program_uses_none(part):
    torch = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False))
    assert site(part, torch=torch).cannot() == "the program does not use CUDA"


def test_loader_cannot_be_delayed_when_the_program_draws_from_none():
    assert "no loader" in site("loader").cannot()


def test_delays_cannot_be_applied_at_the_start():
    found = site("host")
    found.at_start = True
    assert "within a run only" in found.cannot()


@pytest.mark.parametrize(
    ("function", "call"),
    [(module_function, lambda: module_function(1)), (Owner.method, lambda: Owner().method(1))],
)
def test_function_is_delayed_once_a_step_when_it_is_called_often(function, call):
    found = site("function", **place(function))
    assert found.cannot() == ""
    plain = call()
    found.on()
    results = []
    steps(found, 4, lambda: results.extend([call(), call(), call()]))
    found.off()
    (read,) = found.read()
    assert read["ok"]
    assert found._num_called == 4
    assert set(results) == {plain}
    before = found.delayed_s
    call()
    assert found.delayed_s == before
    assert vars(Owner) == PLAIN
    assert module_function.__code__.co_firstlineno == int(place(module_function)["line"])


def test_function_is_not_proved_when_no_step_calls_it():
    found = site("function", **place(module_function))
    assert found.cannot() == ""
    found.on()
    steps(found, 3)
    found.off()
    (read,) = found.read()
    assert read["ok"] is False
    assert "not called" in read["detail"]


class Nested:
    def outer(self):
        def inner():
            return 1

        return inner


def test_function_is_found_when_the_line_is_any_of_its_code():
    first = Owner.method.__code__.co_firstlineno
    found = site("function", file=__file__, line=str(first + 1), name="method")
    assert found.cannot() == ""
    assert found._function is Owner.method
    assert "no function" in site("function", file=__file__, line=str(first + 1), name="other").cannot()
    relative = short_path(__file__)
    assert site("function", file=relative, line=str(first + 1)).cannot() == ""


def test_innermost_function_is_found_when_functions_are_nested():
    inner = Nested().outer()
    found = site("function", file=__file__, line=str(inner.__code__.co_firstlineno + 1))
    assert found.cannot() == ""
    assert found._function is inner
    outer = site("function", file=__file__, line=str(Nested.outer.__code__.co_firstlineno))
    assert outer.cannot() == ""
    assert outer._function is Nested.outer


def test_function_cannot_be_delayed_when_none_begins_there():
    assert "no function" in site("function", file=__file__, line="1").cannot()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the interpreter calls back from Python 3.12 on")
def test_function_is_refused_when_nobody_holds_it_by_its_name():
    def inner():
        return 1

    found = site("function", **place(inner))
    assert found.cannot() == ""
    with pytest.raises(NotSwitched, match="by its name"):
        found.on()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring begins with Python 3.12")
def test_function_is_refused_when_other_tools_monitor_all():
    monitoring = sys.monitoring
    taken = [tool for tool in range(6) if monitoring.get_tool(tool) is None]
    for tool in taken:
        monitoring.use_tool_id(tool, "other")
    try:
        found = site("function", **place(module_function))
        assert found.cannot() == ""
        with pytest.raises(NotSwitched, match="other tools"):
            found.on()
    finally:
        for tool in taken:
            monitoring.free_tool_id(tool)


def test_busy_loop_takes_no_less_than_asked():
    assert all(delay.busy_s(value) >= value for value in (0.0, SHORT_S))
