"""Rules on code patterns: each fires, is silent, and says what it lacks."""

from __future__ import annotations

from typing import Any

import pytest

from dynotune.doctor import ObservationView, examine, policy
from dynotune.schema.facts import Unknown
from dynotune.schema.host import Line, Thread
from dynotune.schema.run import EnvironmentChange
from dynotune.schema.trace_summary import Place

from .devices import (
    CALLED,
    LIVE,
    found,
    kernels,
    lacks,
    lost,
    model,
    on_cpu,
    on_gpu,
    operator,
    optimizer,
    settings,
)
from .observations import NOT_ASKED, observed

BACKWARD = operator("autograd::engine::evaluate_function: AddmmBackward0", 10, 0.1)
FORWARD = operator("aten::addmm", 10_000, 0.5)


# The profiler


def test_a_profiler_that_was_left_on():
    profiled = {"live.profiler_place": "train.py:40"}
    finding = found(on_gpu(lost("host-bound", 0.4), live=profiled, shares={"host": 0.5}))["profiler-left-on"]
    assert (finding.share, finding.severity, finding.also) == (0.5, "high", ["host-bound"])
    assert finding.where == Place("train.py:40")
    assert "profiler-left-on" not in found(on_gpu())


def test_a_profiler_that_keeps_the_steps_from_being_recorded_is_bounded_by_nothing():
    finding = found(observed(live={"live.profiler_place": "elsewhere"}))["profiler-left-on"]
    assert (finding.severity, type(finding.share), finding.where) == ("high", Unknown, Place())
    assert lacks(observed(live={"live.profiler_place": NOT_ASKED}), "profiler-left-on") == [
        "live.profiler_place"
    ]


# What the profiler leaves


def profiled_earlier(host: float = 0.6, cuda: str = "13.0", **live: Any) -> Any:
    """A training on a GPU after one session of torch's profiler; `host`: share of waits for the host."""
    sessions = {"sessions": 1, "place": "train.py:40", "activities": ["CPU", "CUDA"], "teardown": False}
    told = {f"live.profiled_{name}": value for name, value in (sessions | live).items()}
    return on_gpu(live=told, shares={"host": host}, facts={"torch.cuda": cuda, "env.TEARDOWN_CUPTI": None})


def test_cupti_left_attached_costs_no_more_than_was_measured_when_the_program_profiled_itself():
    finding = found(profiled_earlier())["cupti-left-attached"]
    assert (finding.share, finding.severity, finding.where) == (
        policy.CUPTI_OF_STEP,
        "high",
        Place("train.py:40"),
    )
    assert settings(finding) == ["env.TEARDOWN_CUPTI=1"]
    assert "before the steps were timed, one session of torch's profiler ended" in finding.evidence
    assert {"the last session began at train.py:40", "TEARDOWN_CUPTI is not set"} <= set(finding.evidence)
    assert found(profiled_earlier(host=0.08))["cupti-left-attached"].share == pytest.approx(0.08)
    several = found(profiled_earlier(sessions=3))["cupti-left-attached"]
    assert "3 sessions of torch's profiler ended" in several.evidence[0]


def test_cupti_left_attached_stands_beside_what_else_makes_launches_slow_when_both_are_there():
    both = on_gpu(lost("launch-bound", 0.3), live={"live.profiled_sessions": 1}, shares={"host": 0.5})
    assert {"launch-bound", "cupti-left-attached"} <= found(both).keys()


@pytest.mark.parametrize(
    "observation",
    [
        on_gpu(),
        profiled_earlier(sessions=0),
        profiled_earlier(teardown=True),
        profiled_earlier(host=0.0),
        on_gpu(
            live={"live.profiled_sessions": 1, "live.profiler_place": "train.py:40"}, shares={"host": 0.5}
        ),
        on_cpu(live={"live.profiled_sessions": 1, "live.profiled_place": "train.py:40"}),
    ],
    ids=["no profiler", "no session that ended", "taken down", "device-bound", "still profiled", "no device"],
)
def test_cupti_left_attached_is_silent_when_nothing_is_lost_to_it(observation):
    assert "cupti-left-attached" not in found(observation)
    assert lacks(observation, "cupti-left-attached") == []


@pytest.mark.parametrize("name", ["live.profiled_sessions", "live.profiled_teardown", "live.profiled_place"])
def test_cupti_left_attached_is_unknown_when_the_sessions_are(name):
    assert lacks(
        profiled_earlier(**{name.removeprefix("live.profiled_"): NOT_ASKED}), "cupti-left-attached"
    ) == [name]


@pytest.mark.parametrize("cuda", ["12.4", NOT_ASKED])
def test_cupti_left_attached_offers_no_setting_when_taking_cupti_down_may_crash(cuda):
    finding = found(profiled_earlier(cuda=cuda))["cupti-left-attached"]
    assert settings(finding) == []
    assert finding.remedy.startswith("Profile in a separate run")


# Gradients that nobody uses


def distilling(**fields: Any) -> Any:
    """A teacher of which 20% of the time is the forward pass, before a backward pass of 50%."""
    call = {
        "grad_enabled": True,
        "training": False,
        "output_requires_grad": True,
        "input_requires_grad": False,
    }
    teacher = model(
        "cpu", name="train.Teacher", training=False, **({"num_updated": 0, "call": call} | fields)
    )
    teaches = Line(function=CALLED.function, text="soft = teacher(x)", num=20)
    backward = Line(
        function="train.py(9): step", num=50, leaf="/lib/torch/autograd/graph.py(9): _engine_run_backward"
    )
    seen = [Thread(of_steps=True, num=100, cpu_s=5.0, lines=[backward, teaches])]
    return on_cpu(models=[model("cpu", num_updated=20), teacher], threads=seen)


def test_gradients_of_a_teacher_that_nothing_updates():
    finding = found(distilling())["gradients-unused"]
    assert (finding.share, finding.where) == (pytest.approx(0.4), CALLED)
    assert "Teacher" in finding.claim and "no_grad" in finding.remedy


def test_a_teacher_of_the_programs_own_is_seen_in_its_own_lines():
    """The innermost line of the user's own is then in its forward(), which other models may share."""
    call = {
        "grad_enabled": True,
        "training": False,
        "output_requires_grad": True,
        "input_requires_grad": False,
    }
    assert found(distilling(call=call | {"seen_share": 0.1}))["gradients-unused"].share == pytest.approx(0.2)
    assert found(distilling(call=call | {"seen_share": 0.3}))["gradients-unused"].share == pytest.approx(0.5)


def test_gradients_that_are_used_or_not_computed_are_left_alone():
    assert "gradients-unused" not in found(distilling(num_updated=20))
    assert "gradients-unused" not in found(distilling(num_updated=None))
    usual = {
        "grad_enabled": True,
        "training": False,
        "output_requires_grad": True,
        "input_requires_grad": False,
    }
    for other in ({"grad_enabled": False}, {"output_requires_grad": False}, {"input_requires_grad": True}):
        assert "gradients-unused" not in found(distilling(call=usual | other))


# Inference


def serving(
    device: str = "cuda:0", *, training: bool = False, num_training: int = 0, **call: Any
) -> dict[str, Any]:
    called = {"grad_enabled": True, "output_requires_grad": True, "training": training} | call
    return {
        "models": [model(device, training=training, num_training=num_training, call=called)],
        "optimizers": [],
        "traced": {"operators": [FORWARD]},
    }


def test_inference_that_keeps_activations():
    waiting = found(on_gpu(shares={"host": 0.4}, **serving()))["inference-mode-absent"]
    assert (waiting.share, waiting.where) == (pytest.approx(1000 * 3e-6 / 0.1), CALLED)
    assert waiting.severity == "medium"
    # Memory for activations that the device's allocator would keep comes from the system.
    finding = found(on_cpu(**serving("cpu")))["inference-mode-absent"]
    assert (type(finding.share), finding.severity) == (Unknown, "medium")
    many = serving("cpu") | {"traced": {"operators": [operator(FORWARD.name, 5 * FORWARD.num, 0.5)]}}
    assert found(on_cpu(**many))["inference-mode-absent"].share == pytest.approx(5000 * 3e-6 / 0.1)
    busy = found(on_gpu(**serving()))["inference-mode-absent"]
    assert (type(busy.share), busy.severity) == (Unknown, "medium")


@pytest.mark.parametrize(
    "fields",
    [
        serving(grad_enabled=False),
        serving(inference_mode=True),
        serving(output_requires_grad=False),
        serving() | {"optimizers": [optimizer()]},
        serving() | {"traced": {"operators": [FORWARD, BACKWARD]}},
    ],
)
def test_inference_that_keeps_nothing_or_is_none(fields):
    assert "inference-mode-absent" not in found(on_gpu(**fields))


def test_a_model_in_training_mode_at_inference_is_a_fault_of_correctness():
    finding = found(on_cpu(**serving("cpu", training=True, num_training=3, grad_enabled=False)))
    assert finding["model-train-mode-eval"].kind == "correctness"
    assert finding["model-train-mode-eval"].severity == "high"
    assert "3 layers" in finding["model-train-mode-eval"].claim


@pytest.mark.parametrize(
    "fields",
    [
        serving(training=True, num_training=0, grad_enabled=False),
        serving(training=False, num_training=0, grad_enabled=False),
        serving(training=True, num_training=3) | {"optimizers": [optimizer()]},
        serving(training=True, num_training=3) | {"traced": {"operators": [BACKWARD]}},
    ],
)
def test_training_mode_that_is_right_or_does_not_matter(fields):
    assert "model-train-mode-eval" not in found(on_gpu(**fields))


def test_inference_rules_are_unknown_without_a_trace_when_a_model_trains():
    fields = serving(training=True, num_training=3)
    fields.pop("traced")
    assert lacks(observed(**fields), "inference-mode-absent") == ["the trace"]
    assert lacks(observed(**fields), "model-train-mode-eval") == ["the trace"]


# Gradients


def test_gradients_that_are_filled_with_zeros_on_the_cpu():
    zeroed: Any = {"live.zero_grad_sets_none": False, "live.zero_grad_place": "train.py:9"}
    traced = {"operators": [operator("aten::zero_", 20, 0.2), operator("aten::addmm", 20, 0.8)]}
    models = [model("cpu", parameter_bytes=10**9)]
    finding = found(on_cpu(models=models, live=zeroed, traced=traced))["zero-grad-memset"]
    assert (finding.share, finding.where) == (pytest.approx(0.2), Place("train.py:9"))
    small = [model("cpu", parameter_bytes=10**7)]
    assert found(on_cpu(models=small, live=zeroed, traced=traced))["zero-grad-memset"].share == pytest.approx(
        0.042
    )


def test_gradients_that_are_filled_with_zeros_on_a_device():
    zeroed: Any = {"live.zero_grad_sets_none": False}
    traced = {"kernels": [kernels(elementwise=0.5, matmul=0.5)]}
    models = [model(parameter_bytes=10**10)]
    finding = found(on_gpu(models=models, live=zeroed, traced=traced))["zero-grad-memset"]
    assert finding.share == pytest.approx(4 * 10**10 / 2e12 / 0.1)
    assert "zero-grad-memset" not in found(on_gpu(models=models, traced=traced))
    assert "zero-grad-memset" not in found(on_gpu(live=zeroed, traced=traced))


def test_zeros_are_bounded_by_nothing_without_a_trace():
    live: Any = LIVE | {"live.zero_grad_sets_none": False}
    fields = {"models": [model()], "optimizers": [optimizer()], "timed": on_gpu().processes[0].timing}
    finding = found(observed(live=live, **fields))["zero-grad-memset"]
    assert (finding.severity, type(finding.share)) == ("low", Unknown)
    assert lacks(observed(live=live, models=[model()], optimizers=[optimizer()]), "zero-grad-memset") == [
        "timing of the plain window"
    ]


# Ultralytics

FILE = "/venv/ultralytics/engine/model.py"


def change(value: str | None = ":4096:8", file: str = FILE) -> EnvironmentChange:
    return EnvironmentChange(
        name="CUBLAS_WORKSPACE_CONFIG", value=value, file=file, line=134, function="__init__"
    )


def test_a_variable_that_ultralytics_sets():
    facts: Any = {"env.CUBLAS_WORKSPACE_CONFIG": None, "torch.version": "2.11.0"}
    fields: Any = {"shares": {"host": 0.3}, "traced": {"operators": [operator("aten::addmm", 1000, 0.2)]}}
    findings, _ = examine(ObservationView(on_gpu(environment_changes=[change()], facts=facts, **fields)))
    finding = next(each for each in findings if each.id == "ul-cublas-env-on-construct")
    assert finding.also == ["cublas-env-regex"]
    assert finding.share == pytest.approx(0.2)
    assert settings(finding) == ["env.CUBLAS_WORKSPACE_CONFIG=@unset"]
    assert finding.where == Place(f"{FILE}(134): __init__")


@pytest.mark.parametrize(
    ("changes", "version"),
    [
        ([], "2.11.0"),
        ([change(), change(None)], "2.11.0"),
        ([change(file="/home/me/train.py")], "2.11.0"),
        ([change()], "2.13.0"),
    ],
)
def test_a_variable_that_costs_nothing_or_is_not_of_ultralytics(changes, version):
    observation = on_gpu(environment_changes=changes, live={"live.torch_version": version})
    assert "ul-cublas-env-on-construct" not in found(observation)


def test_the_variable_is_unknown_where_torch_has_no_version():
    observation = on_gpu(environment_changes=[change()], live={"live.torch_version": NOT_ASKED})
    assert lacks(observation, "ul-cublas-env-on-construct") == ["torch.version"]


def test_ultralytics_that_repeats_its_results():
    live: Any = {"live.deterministic_algorithms": True}
    models = [model(name="ultralytics.nn.tasks.DetectionModel", num_modules={"convolution": 9})]
    traced = {"kernels": [kernels(convolution=0.6, index=0.1, elementwise=0.3)]}
    finding = found(on_gpu(models=models, live=live, traced=traced))["ul-deterministic-default"]
    assert finding.share == pytest.approx(0.4)
    assert "deterministic-algos-on" in finding.also
    assert settings(finding) == ["determinism.algorithms=false", "cudnn.deterministic=false"]
    assert "ul-deterministic-default" not in found(on_gpu(models=models, traced=traced))
    assert "ul-deterministic-default" not in found(on_gpu(live=live, traced=traced))
    asked = {"live.deterministic_algorithms": NOT_ASKED}
    assert lacks(on_gpu(models=models, live=asked), "ul-deterministic-default") == [
        "live.deterministic_algorithms"
    ]
