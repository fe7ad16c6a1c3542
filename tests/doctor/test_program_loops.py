"""The program's loop that makes most launches: which one counts, its line, and the findings that name it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dynotune.doctor import ObservationView
from dynotune.doctor.program_loops import main_loop
from dynotune.schema.host import StackLine
from dynotune.schema.observation import Observation
from dynotune.schema.trace_summary import Loop, Place

from .devices import found, kernels, lost, model, on_cpu, on_gpu, operator

NET = "/home/me/net.py(38): forward"
TURN = StackLine(
    function="net.py(46): forward", text="h = self.cell(x[t], h)", callee="net.py(22): forward", num=50
)
STACK = [
    StackLine(function="train.py(60): main", text="out = net(x)", callee=TURN.function, num=60),
    TURN,
    StackLine(function="net.py(22): forward", text="r = torch.sigmoid(self.gate(x))", num=50),
    StackLine(function="net.py(40): forward", text="h = torch.zeros(8)", num=90),
    StackLine(function="other/net.py(46): forward", num=95),
]


SHORT = msgspec.structs.replace(kernels(elementwise=1.0, num=9000), num_short=8000, short_s=0.5)


def loop(**fields: Any) -> Loop:
    usual: dict[str, Any] = {
        "function": NET,
        "callee": "/home/me/net.py(20): forward",
        "turns": 160,
        "calls": 1.0,
        "launches": 12.0,
        "share": 0.8,
        "num_share": 0.9,
    }
    return Loop(**(usual | fields))


def small(*loops: Loop, **fields: Any) -> Observation:
    rows = [operator("aten::tanh_", 8000, 0.04), operator("aten::mm", 100, 0.005)]
    return on_cpu(**{"traced": {"operators": rows, "loops": list(loops)}, "stack": STACK} | fields)


def test_loop_has_the_line_that_calls_what_a_turn_calls_when_samples_show_it() -> None:
    found_loop = main_loop(ObservationView(small(loop())))
    assert found_loop is not None and found_loop.where == Place("net.py(46): forward")
    assert found_loop.evidence() == (
        "160 turns of the loop at net.py(46): forward, 12 operators each: 90% of all operators, 80% of "
        "their time: "
        "h = self.cell(x[t], h)"
    )


def test_loop_has_the_function_when_no_sample_shows_its_line() -> None:
    found_loop = main_loop(ObservationView(small(loop(), stack=[])))
    assert found_loop is not None and found_loop.where == Place(NET)


def test_line_is_of_the_last_function_before_it_when_two_have_one_name() -> None:
    cell = loop(function="/home/me/net.py(20): forward", callee="aten::mul")
    found_loop = main_loop(ObservationView(small(cell, loop(num_share=0.1, share=0.1))))
    assert found_loop is not None and found_loop.where == Place("net.py(22): forward")


@pytest.mark.parametrize(
    ("inner", "turns"),
    [
        ({"turns": 8, "calls": 160.0, "share": 0.7, "num_share": 0.7}, 8),
        ({"turns": 8, "calls": 160.0, "share": 0.1, "num_share": 0.35}, 160),
    ],
)
def test_inner_loop_counts_when_it_makes_most_of_the_outer_loops_launches(
    inner: dict[str, Any], turns: int
) -> None:
    found_loop = main_loop(ObservationView(small(loop(), loop(**inner))))
    assert found_loop is not None and found_loop.loop.turns == turns


def test_loop_of_collectives_is_apart_from_loops_that_compute() -> None:
    view = ObservationView(small(loop(callee="torch/distributed/c10d_logger.py(80): wrapper")))
    assert main_loop(view) is None and main_loop(view, of_collectives=True) is not None
    assert main_loop(ObservationView(small(loop())), of_collectives=True) is None


def test_loop_of_few_launches_is_not_named() -> None:
    assert main_loop(ObservationView(small(loop(num_share=0.2, share=0.2)))) is None
    assert main_loop(ObservationView(Observation(command=["train"]))) is None


@pytest.mark.parametrize(
    ("id", "observation"),
    [
        ("small-operators", small(loop())),
        (
            "python-elementwise-loops",
            small(loop(), traced={"operators": [operator("aten::mul", 8000, 0.06)], "loops": [loop()]}),
        ),
        (
            "launch-bound",
            on_gpu(lost("launch-bound", 0.4), shares={"host": 0.4}, traced={"loops": [loop()]}, stack=STACK),
        ),
        (
            "launch-bound",
            on_gpu(traced={"loops": [loop()], "kernels": [SHORT]}, stack=STACK),
        ),
    ],
)  # fmt: skip
def test_finding_names_the_loop_when_one_makes_its_launches(id: str, observation: Observation) -> None:
    finding = found(observation)[id]
    assert finding.where == Place("net.py(46): forward")
    assert finding.evidence[0].startswith("160 turns of the loop at net.py(46): forward, 12 ")


def recurrent(product_s: float = 5e-4, num_tensors: int = 20, **fields: Any) -> Observation:
    """Ten steps, each with 160 turns of five products; `product_s` is what a busy machine makes of a small
    one."""
    rows = [operator("aten::addmm", 8000, 8000 * product_s), operator("aten::sigmoid", 3200, 0.1)]
    turns = loop(**{"share": 0.95, "num_share": 0.95} | fields)
    models = [model("cpu", num_tensors=num_tensors)]
    return on_cpu(traced={"operators": rows, "loops": [turns]}, stack=STACK, models=models)


def test_loop_over_time_steps_is_found_when_a_busy_machine_makes_its_operators_long() -> None:
    finding = found(recurrent())["small-operators"]
    assert "in a loop of 160 turns" in finding.claim
    assert finding.where == Place("net.py(46): forward")


@pytest.mark.parametrize(
    "seen",
    [
        recurrent(num_tensors=2000),  # layers, each with weights of its own
        recurrent(turns=8),
        recurrent(num_share=0.4),
        recurrent(turns=16, launches=20.0),  # 300 µs each: large products, such as those of tiles
    ],
)
def test_loop_is_no_fault_when_its_operators_are_large_or_of_many_layers(seen: Observation) -> None:
    assert "small-operators" not in found(seen)


def test_compiling_is_not_offered_when_it_would_write_out_a_long_loop() -> None:
    short, long = (found(small(loop(launches=launches)))["small-operators"] for launches in (12.0, 38.0))
    assert [str(each) for each in short.candidates] == ["compile.mode=default"]
    assert long.candidates == []
    assert "nn.GRU" in long.remedy
