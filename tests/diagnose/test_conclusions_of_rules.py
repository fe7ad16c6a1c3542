"""Conclusions that are made of the findings of the real rules: each can be reached, and none is filtered
away."""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

import msgspec
import pytest

from dynotune.diagnose.conclusions import (
    OF_SOME_STEPS,
    conclude,
    leading_finding,
)
from dynotune.doctor import FAMILIES, Family, all_rules
from dynotune.schema.causes import CAUSES
from dynotune.schema.diagnosis import Bottleneck
from dynotune.schema.host import Collections, Line, Thread
from dynotune.schema.loader import Loader, Loading, Padding, SamplePart
from dynotune.schema.observation import Observation
from dynotune.schema.timing import PeriodicWork
from dynotune.schema.trace_summary import HostTime, Place

from ..doctor.devices import kernels, lost, model, on_cpu, on_gpu, operator
from ..doctor.observations import timing

AUTOCAST = {"live.autocast_dtypes": ["bfloat16"]}
LOOP = [
    operator("aten::select", 8000, 0.02),
    operator("aten::mul", 8000, 0.06),
    operator("aten::mm", 10, 0.02),
]


class Reached(NamedTuple):
    """An observation, the bottleneck that is concluded, and the finding that the verdict names."""

    bottleneck: Bottleneck
    leading: str
    said: str
    observation: Observation


def on_device(*losses: Any, **fields: Any) -> Observation:
    """A training under autocast on a device, so that no finding is about number formats."""
    return on_gpu(*losses, **{"live": AUTOCAST} | fields)


def loader(num_workers: int) -> Loader:
    return Loader(name="DataLoader", dataset="data.Rows", num_workers=num_workers)


CONVOLUTIONS = model(num_modules={"convolution": 8})
CONVOLVING = {
    "models": [CONVOLUTIONS],
    "traced": {"kernels": [kernels(convolution=1.0)]},
}


def seen(*lines: Line) -> dict[str, Any]:
    """Return fields of a program on the CPU that was seen a hundred times, half of them in Python."""
    hosts = [HostTime(rank=None, window_s=1.0, loader_s=0.0, operator_s=0.5, communication_s=0.0)]
    steps = Thread(of_steps=True, num=100, cpu_s=5.0, lines=list(lines))
    return {"shares": {"host": 0.5}, "traced": {"hosts": hosts}, "threads": [steps]}


PARSES = Line(function="train.py(12): rows", text="row = json.loads(text)", num=40, cpu_s=1.9)
PARSED = Loading(
    num_batches=20,
    fetch_s=0.3,
    longest_s=0.3,
    cpu_s=0.3,
    parts=[SamplePart(part="decode", what="text", num=90, wall_s=1.0, function="data.py(9): __getitem__")],
)
HERE = Place("train.py(31): main")
PADDING = Padding(by="zeros", num_batches=8, share=0.5, longest_share=0.1, sorted_share=0.1)
COLLECTED = Collections(num=50, num_oldest=50, total_s=2.0, longest_s=0.05)
GRADED = {
    "models": [model("cpu", call={"grad_enabled": True, "output_requires_grad": True})],
    "optimizers": [],
}
OPERATORS = {"operators": [operator("aten::linear", 50_000, 0.9)]}
"""In ten steps. Recording a graph for them takes 15% of a step, and calling them half of it."""
SMALL = {"operators": [operator("aten::tanh_", 8_000, 0.04), operator("aten::mm", 100, 0.005)]}
REACHED = [
    Reached(
        "input",
        "num-workers-zero",
        (
            "60% of it the device waits for the data loader (train.py:31): batches are made in the training "
            "process"
        ),
        on_device(
            lost("loader-bound", 0.6), shares={"input": 0.6}, loaders=[loader(0)], timed=timing(wait_s=0.06)
        ),
    ),
    Reached(
        "transfer",
        "h2d-not-overlapped",
        "40% of it goes to copies between host and device",
        on_device(lost("h2d-not-overlapped", 0.4), shares={"transfer": 0.4}),
    ),
    Reached(
        "communication",
        "communication-exposed",
        "30% of it goes to communication that nothing else overlaps (train.py:31).",
        on_device(lost("communication-exposed", 0.3), shares={"communication": 0.3}),
    ),
    Reached(
        "memory",
        "empty-cache-in-loop",
        (
            "30% of it the device waits while device memory is allocated and freed (train.py:31): the loop "
            "returns"
        ),
        on_device(lost("empty-cache-in-loop", 0.3), shares={"host": 0.3}),
    ),
    Reached(
        "host",
        "python-elementwise-loops",
        "40% of it Python runs between operators (train.py:12): 1,600 pointwise and indexing operators",
        on_cpu(shares={"host": 0.4}, traced={"operators": LOOP}),
    ),
    Reached(
        "host",
        "sync-per-step",
        "30% of it the device waits for the host (train.py:31): the host waits for the device",
        on_device(lost("sync-per-step", 0.3), shares={"host": 0.3}),
    ),
    Reached(
        "device",
        "channels-last",
        "the device works for 100% of it (train.py:31): ",
        on_device(lost("channels-last", 0.6), **CONVOLVING),
    ),
    Reached(
        "device",
        "cudnn-benchmark-off",
        "the device works for 100% of it (train.py:12): ",
        on_device(**CONVOLVING | {"live": AUTOCAST | {"live.cudnn_benchmark": False}}),
    ),
    Reached(
        "device",
        "fp32-matmul-no-tf32",
        "the device works for 100% of it (train.py:31): matrix products run in full float32",
        on_gpu(lost("fp32-matmul-no-tf32", 0.5), traced={"kernels": [kernels(matmul=0.5, optimizer=0.5)]}),
    ),
    Reached(
        "device",
        "compile-default",
        "the device works for 100% of it (train.py:31): ",
        on_device(lost("compile-default", 0.6)),
    ),
    Reached(
        "input",
        "text-parsed-per-item",
        "60% of it the program waits for the data loader (data.py:9): parsing text",
        on_cpu(
            shares={"input": 0.6},
            loaders=[msgspec.structs.replace(loader(2), loading=PARSED)],
            timed=timing(wait_s=0.06),
            threads=seen()["threads"],
        ),
    ),
    Reached(
        "host",
        "text-parsed-per-item",
        "50% of it Python runs between operators (train.py:12): parsing text",
        on_cpu(**seen(PARSES)),
    ),
    Reached(
        "host",
        "gc-jitter",
        "50% of it Python runs between operators: collecting garbage takes 40% of the host's time.",
        on_cpu(**seen(), collections=COLLECTED),
    ),
    Reached(
        "host",
        "inference-mode-absent",
        "40% of it the device waits for the host (train.py:12): the model runs with gradients",
        on_gpu(shares={"host": 0.4}, traced=OPERATORS, **GRADED),
    ),
    Reached(
        "device",
        "inference-mode-absent",
        "100% of it operators run on the CPU (train.py:12): the model runs with gradients enabled",
        on_cpu(traced=OPERATORS, **GRADED),
    ),
    Reached(
        "device",
        "small-operators",
        "100% of it operators run on the CPU (train.py:12): the program calls 810 operators a step",
        on_cpu(traced=SMALL),
    ),
    Reached(
        "device",
        "padding-waste",
        "100% of it operators run on the CPU (train.py:31): 50% of a batch is padding",
        on_cpu(loaders=[msgspec.structs.replace(loader(2), padding=PADDING, place=HERE)]),
    ),
    Reached(
        "none",
        "",
        "40% of it operators run on the CPU, and what 60% of it goes to is not known.",
        on_cpu(shares={"other": 0.6}),
    ),
]


@pytest.mark.parametrize("reached", REACHED, ids=lambda reached: f"{reached.bottleneck} by {reached.leading}")
def test_conclusion_names_the_finding_when_its_rule_finds_it(reached: Reached) -> None:
    diagnosis = conclude(reached.observation)
    assert diagnosis.bottleneck == reached.bottleneck
    leading = leading_finding(diagnosis.bottleneck, diagnosis.findings)
    assert (leading.id if leading else "") == reached.leading
    assert diagnosis.verdict.startswith(f"A step takes 100 ms; {reached.said}")


def test_every_bottleneck_and_every_family_of_one_is_reached() -> None:
    rules = all_rules()
    assert {reached.bottleneck for reached in REACHED} == set(get_args(Bottleneck))
    pairs = {(reached.bottleneck, rules[reached.leading].family) for reached in REACHED if reached.leading}
    assert pairs >= {
        (bottleneck, name) for name, entry in FAMILIES.items() for bottleneck in entry.bottlenecks
    }


@pytest.mark.parametrize("program", [on_cpu, on_device])
@pytest.mark.parametrize(("kind", "what"), [("validation", "validation"), ("other", "`check(model)`")])
def test_verdict_names_work_of_some_steps_when_it_takes_much_of_the_time(
    program: Any, kind: str, what: str
) -> None:
    work = PeriodicWork(
        kind=kind, share=0.4, function="train.py(31): main", text="check(model)", num_steps=5, every=100
    )
    diagnosis = conclude(program(periodic=[work]))
    assert diagnosis.verdict == (
        f"A step takes 100 ms; {what} takes 40% of the time, after every 100 steps (train.py:31)."
    )


def test_families_and_findings_that_conclusions_depend_on_exist() -> None:
    assert FAMILIES.keys() == set(get_args(Family)) and OF_SOME_STEPS in FAMILIES
    assert all_rules().keys() >= CAUSES.keys()
